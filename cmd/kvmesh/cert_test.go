package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/mesh"
)

func TestCertWritesWhatAgentsNeed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	r := kvmesh(t, nil, "cert", "--dir", dir, "--mesh-id", "prod", "a1", "a2")
	if r.code != 0 {
		t.Fatalf("exit code %d, %s", r.code, r.errout)
	}
	contains(t, r.out, "a1.pem", "a2-key.pem", "gossip.key", "ca.pem")
	for name, want := range map[string]os.FileMode{
		"": os.ModeDir | 0o700, "ca.pem": 0o644, "ca-key.pem": 0o600, "gossip.key": 0o600,
		"a1.pem": 0o644, "a1-key.pem": 0o600, "a2.pem": 0o644, "a2-key.pem": 0o600,
	} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		} else if info.Mode() != want {
			t.Errorf("mode of %q is %v, want %v", name, info.Mode(), want)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 7 {
		t.Errorf("%d files, %v: %v", len(files), err, files)
	}
	for _, name := range []string{"a1", "a2"} {
		id, err := mesh.LoadIdentity(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		if err := id.Check("prod", name, time.Now()); err != nil {
			t.Error(err)
		}
	}
	if _, err := mesh.LoadGossipKeys(filepath.Join(dir, mesh.GossipKeyFile)); err != nil {
		t.Error(err)
	}
}

// contents returns the files of a folder.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[f.Name()] = string(b)
	}
	return out
}

func TestCertKeepsTheAuthorityItFinds(t *testing.T) {
	dir := t.TempDir()
	if r := kvmesh(t, nil, "cert", "--dir", dir, "--mesh-id", "prod", "a1"); r.code != 0 {
		t.Fatal(r.errout)
	}
	before := contents(t, dir)
	if r := kvmesh(t, nil, "cert", "--dir", dir, "--mesh-id", "prod", "a2"); r.code != 0 {
		t.Fatal(r.errout)
	}
	after := contents(t, dir)
	for name, text := range before {
		if after[name] != text {
			t.Errorf("%s has changed", name)
		}
	}
	if len(after) != len(before)+2 {
		t.Errorf("files %d, want two more than %d", len(after), len(before))
	}
}

func TestCertRefusesTheAuthorityOfAnotherMesh(t *testing.T) {
	dir := t.TempDir()
	if r := kvmesh(t, nil, "cert", "--dir", dir, "--mesh-id", "prod", "a1"); r.code != 0 {
		t.Fatal(r.errout)
	}
	before := contents(t, dir)
	r := kvmesh(t, nil, "cert", "--dir", dir, "--mesh-id", "test", "a2")
	if r.code != 1 {
		t.Errorf("exit code %d, %s", r.code, r.out)
	}
	contains(t, r.errout, `"prod"`, `"test"`)
	for name, text := range contents(t, dir) {
		if before[name] != text {
			t.Errorf("%s was written", name)
		}
	}
}

func TestCertRefusesBadNames(t *testing.T) {
	for _, args := range [][]string{{"--mesh-id", "Prod!", "a1"}, {"a/b"}, {"../a"}, {""}} {
		dir := t.TempDir()
		if r := kvmesh(t, nil, append([]string{"cert", "--dir", dir}, args...)...); r.code != 1 || r.errout == "" {
			t.Errorf("%q: exit code %d, %s", args, r.code, r.errout)
		}
	}
}

func TestCertRefusesAFolderWithoutTheAuthoritysKey(t *testing.T) {
	dir := t.TempDir()
	if r := kvmesh(t, nil, "cert", "--dir", dir, "a0"); r.code != 0 {
		t.Fatal(r.errout)
	}
	if err := os.Remove(filepath.Join(dir, mesh.CAKeyFile)); err != nil {
		t.Fatal(err)
	}
	if r := kvmesh(t, nil, "cert", "--dir", dir, "a1"); r.code != 1 {
		t.Errorf("exit code %d, %s", r.code, r.out)
	}
}

func TestCertRevokesByNameAndBySerial(t *testing.T) {
	dir := t.TempDir()
	if r := kvmesh(t, nil, "cert", "--dir", dir, "a1", "a2"); r.code != 0 {
		t.Fatal(r.errout)
	}
	serial := func(name string) string {
		id, err := mesh.LoadIdentity(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		return id.Serial()
	}
	first, second := serial("a1"), serial("a2")
	r := kvmesh(t, nil, "cert", "--dir", dir, "--revoke", "a1", "a1")
	if r.code != 0 {
		t.Fatal(r.errout)
	}
	renewed := serial("a1")
	contains(t, r.out, first, renewed)
	if r := kvmesh(t, nil, "cert", "--dir", dir, "--revoke", "serial="+second); r.code != 0 {
		t.Fatal(r.errout)
	}
	got, err := mesh.LoadRevoked(filepath.Join(dir, mesh.RevokedFile))
	if diff := cmp.Diff([]string{first, second}, got); diff != "" || err != nil || renewed == first {
		t.Errorf("%v, %s", err, diff)
	}
	for _, args := range [][]string{{"--revoke", "nobody"}, {}} {
		if r := kvmesh(t, nil, append([]string{"cert", "--dir", dir}, args...)...); r.code != 1 || r.errout == "" {
			t.Errorf("%q: exit code %d, %s", args, r.code, r.out)
		}
	}
}
