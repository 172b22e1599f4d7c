package mesh

import (
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func mustAuthority(t *testing.T, mesh string) *Authority {
	t.Helper()
	a, err := EphemeralAuthority(mesh)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func mustIssue(t *testing.T, a *Authority, name string, validity time.Duration) Identity {
	t.Helper()
	id, err := a.Issue(name, validity)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestWrittenIdentityLoads(t *testing.T) {
	dir := t.TempDir()
	ca := mustAuthority(t, "prod")
	if err := ca.Write(dir); err != nil {
		t.Fatal(err)
	}
	if err := mustIssue(t, ca, "g1", time.Hour).Write(dir); err != nil {
		t.Fatal(err)
	}
	id, err := LoadIdentity(dir, "g1")
	if err != nil {
		t.Fatal(err)
	}
	if err := id.Check("prod", "g1", time.Now()); err != nil {
		t.Error(err)
	}
	for file, want := range map[string]os.FileMode{"g1-key.pem": 0o600, "ca-key.pem": 0o600, "g1.pem": 0o644} {
		st, err := os.Stat(filepath.Join(dir, file))
		if err != nil || st.Mode().Perm() != want {
			t.Errorf("%s has mode %v (%v), want %v", file, st.Mode(), err, want)
		}
	}
}

func TestLoadedAuthorityIssuesForItsMesh(t *testing.T) {
	dir := t.TempDir()
	if err := mustAuthority(t, "prod").Write(dir); err != nil {
		t.Fatal(err)
	}
	ca, err := LoadAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := mustIssue(t, ca, "g2", time.Hour).Check("prod", "g2", time.Now()); err != nil {
		t.Error(err)
	}
	if err := ca.Write(dir); err == nil {
		t.Error("a CA was replaced")
	}
}

func TestIdentityFaultsAreSaidInASentence(t *testing.T) {
	ca, other := mustAuthority(t, "prod"), mustAuthority(t, "prod")
	good := mustIssue(t, ca, "g1", time.Hour)
	foreign := mustIssue(t, other, "g1", time.Hour)
	now := time.Now()
	for _, test := range []struct {
		name       string
		id         Identity
		mesh, peer string
		at         time.Time
		want       string
	}{
		{"good", good, "prod", "g1", now, ""},
		{"nothing", Identity{}, "prod", "g1", now, "no certificate, key or CA was given"},
		{"expired", good, "prod", "g1", now.Add(2 * time.Hour), "certificate expired at"},
		{"not yet valid", good, "prod", "g1", now.Add(-2 * time.Hour), "certificate is valid only from"},
		{"wrong mesh", good, "test", "g1", now, `the certificate is for mesh "prod", not "test"`},
		{"wrong name", good, "prod", "g2", now, `the certificate is for agent "g1", not "g2"`},
		{"other CA", Identity{Certificate: foreign.Certificate, CAs: good.CAs}, "prod", "g1", now, "not from this mesh's CA"},
		{"other key", Identity{CAs: good.CAs, Certificate: tls.Certificate{
			Leaf: good.Certificate.Leaf, PrivateKey: foreign.Certificate.PrivateKey,
		}}, "prod", "g1", now, "the key is not the certificate's"},
		{
			"the CA itself",
			Identity{CAs: ca.trusted, Certificate: tls.Certificate{Leaf: ca.cert, PrivateKey: ca.key}},
			"prod", "g1", now, "names no agent",
		},
	} {
		err := test.id.Check(test.mesh, test.peer, test.at)
		if (test.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

func TestLoadFaultsNameTheFile(t *testing.T) {
	dir := t.TempDir()
	ca := mustAuthority(t, "prod")
	g1, g2 := mustIssue(t, ca, "g1", time.Hour), mustIssue(t, ca, "g2", time.Hour)
	for _, id := range []Identity{g1, g2} {
		if err := id.Write(dir); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := LoadIdentity(dir, "g3"); err == nil || !strings.Contains(err.Error(), "g3.pem") {
		t.Errorf("missing file: %v", err)
	}
	key, _ := os.ReadFile(filepath.Join(dir, "g2-key.pem"))
	os.WriteFile(filepath.Join(dir, "g1-key.pem"), key, 0o600)
	if _, err := LoadIdentity(dir, "g1"); err == nil || !strings.Contains(err.Error(), "g1-key.pem is not the key of") {
		t.Errorf("key of another: %v", err)
	}
	os.WriteFile(filepath.Join(dir, "g1.pem"), key, 0o600)
	want := `g1.pem holds a PEM block "PRIVATE KEY", not "CERTIFICATE"`
	if _, err := LoadIdentity(dir, "g1"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("key in place of certificate: %v", err)
	}
}

func TestHalfWrittenFilesAreNotRead(t *testing.T) {
	dir := t.TempDir()
	if err := mustIssue(t, mustAuthority(t, "prod"), "g1", time.Hour).Write(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"g1.pem", "g1-key.pem", CAFile} {
		file := filepath.Join(dir, name)
		whole, _ := os.ReadFile(file)
		for _, b := range [][]byte{nil, whole[:len(whole)/2], append(slices.Clone(whole), whole[:len(whole)/2]...)} {
			os.WriteFile(file, b, 0o600)
			if _, err := LoadIdentity(dir, "g1"); err == nil {
				t.Errorf("%s of %d bytes was read, it has %d", name, len(b), len(whole))
			}
		}
		os.WriteFile(file, whole, 0o600)
	}
	if _, err := LoadIdentity(dir, "g1"); err != nil {
		t.Error(err)
	}
}

func TestSeveralAuthoritiesAreBelieved(t *testing.T) {
	dir := t.TempDir()
	older, newer := mustAuthority(t, "prod"), mustAuthority(t, "prod")
	if err := newer.Write(dir); err != nil {
		t.Fatal(err)
	}
	if err := writePEM(filepath.Join(dir, CAFile), "CERTIFICATE", 0o644, older.cert.Raw, newer.cert.Raw); err != nil {
		t.Fatal(err)
	}
	ca, err := LoadAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := mustIssue(t, ca, "g1", time.Hour).Write(dir); err != nil {
		t.Fatal(err)
	}
	id, err := LoadIdentity(dir, "g1")
	if err != nil {
		t.Fatal(err)
	}
	if !id.Certificate.Leaf.NotAfter.Before(newer.cert.NotAfter) || issuer(id.CAs, id.Certificate.Leaf) == nil || len(id.CAs) != 2 {
		t.Errorf("issued by none of %d", len(id.CAs))
	}
	for _, by := range []*Authority{older, newer} {
		if _, err := verify(id.CAs, mustIssue(t, by, "g2", time.Hour).Certificate.Certificate, time.Now()); err != nil {
			t.Error(err)
		}
	}
	stranger := mustIssue(t, mustAuthority(t, "prod"), "g2", time.Hour)
	if _, err := verify(id.CAs, stranger.Certificate.Certificate, time.Now()); err == nil {
		t.Error("a third CA was believed")
	}
}

func TestOnlyOneKvmeshURIIsBelieved(t *testing.T) {
	parse := func(s string) *url.URL {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	for _, test := range []struct {
		uris []*url.URL
		ok   bool
	}{
		{[]*url.URL{parse("kvmesh://prod/g1")}, true},
		{nil, false},
		{[]*url.URL{parse("kvmesh://prod/g1"), parse("kvmesh://prod/g2")}, false},
		{[]*url.URL{parse("spiffe://prod/g1")}, false},
		{[]*url.URL{parse("kvmesh://prod/")}, false},
		{[]*url.URL{parse("kvmesh://prod/g1/g2")}, false},
		{[]*url.URL{parse("kvmesh:///g1")}, false},
		{[]*url.URL{parse("kvmesh://PROD/g1")}, false},
	} {
		if mesh, name, err := parseURIs(test.uris); (err == nil) != test.ok || test.ok && (mesh != "prod" || name != "g1") {
			t.Errorf("%v: %q, %q, %v", test.uris, mesh, name, err)
		}
	}
}

func TestCertificateForOtherUsesIsRefused(t *testing.T) {
	ca := mustAuthority(t, "prod")
	id := mustIssue(t, ca, "g1", time.Hour)
	tmpl := *id.Certificate.Leaf
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}
	der, err := x509.CreateCertificate(nil, &tmpl, ca.cert, id.signer().Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := verify(ca.trusted, [][]byte{der}, time.Now()); err == nil {
		t.Error("a code signing certificate was believed")
	}
}

func TestGossipKeysRoundTrip(t *testing.T) {
	file := filepath.Join(t.TempDir(), GossipKeyFile)
	want := [][]byte{NewGossipKey(), NewGossipKey()}
	if err := WriteGossipKeys(file, want...); err != nil {
		t.Fatal(err)
	}
	got, err := LoadGossipKeys(file)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v, %s", err, diff)
	}
	for text, want := range map[string]string{"": "holds no gossip key", "# one\n\nAAAA\n": "key 1 is not 32 bytes"} {
		os.WriteFile(file, []byte(text), 0o600)
		if _, err := LoadGossipKeys(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestLoopbackOnly(t *testing.T) {
	for _, test := range []struct {
		addrs []string
		want  bool
	}{
		{[]string{"127.0.0.1:7081", "[::1]:7082", "localhost:1", "127.9.9.9"}, true},
		{nil, true},
		{[]string{"127.0.0.1:1", "10.0.0.1:1"}, false},
		{[]string{":7081"}, false},
		{[]string{"0.0.0.0:7081"}, false},
		{[]string{"[::]:7081"}, false},
		{[]string{"example.org:1"}, false},
	} {
		if got := LoopbackOnly(test.addrs...); got != test.want {
			t.Errorf("%q: %v", test.addrs, got)
		}
	}
}
