package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// asCommand makes the test binary behave as kvmesh, so that tests see what a user sees: both outputs and the exit code.
const asCommand = "KVMESH_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// result is what a run of kvmesh left.
type result struct {
	code        int
	out, errout string
}

// kvmesh runs the command with the environment of no flag but those in env, as NAME=VALUE.
func kvmesh(t *testing.T, env []string, args ...string) result {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(without(os.Environ(), "KVMESH_"), asCommand+"=1", "GORACE=atexit_sleep_ms=0") // else 1 s a run
	cmd.Env = append(cmd.Env, env...)
	var out, errout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errout
	r := result{}
	if err := cmd.Run(); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			t.Fatal(err)
		}
		r.code = exit.ExitCode()
	}
	r.out, r.errout = out.String(), errout.String()
	return r
}

func without(env []string, prefix string) []string {
	var out []string
	for _, e := range env {
		if !strings.HasPrefix(e, prefix) {
			out = append(out, e)
		}
	}
	return out
}

// file writes a file of the test and returns its path.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// contains fails the test for every text that is not in s.
func contains(t *testing.T, s string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(s, text) {
			t.Errorf("%q is missing in:\n%s", text, s)
		}
	}
}

func TestHelpOfEverySubcommand(t *testing.T) {
	for command, flag := range map[string]string{
		"agent": "--engine", "status": "--token-file", "cert": "--mesh-id", "gossip-key list": "--token-file", "gossip-key rotate": "--token-file", "demo": "--seed", "policy apply": "--dry-run", "cordon": "--for", "drain": "--timeout", "raft recover": "--data", "simengine": "--fault-hang", "": "agent",
	} {
		t.Run("kvmesh "+command, func(t *testing.T) {
			args := append(strings.Fields(command), "--help")
			r := kvmesh(t, nil, args...)
			if r.code != 0 || r.errout != "" {
				t.Errorf("exit code %d, %q", r.code, r.errout)
			}
			contains(t, r.out, "Usage: kvmesh "+command, flag)
			for line := range strings.Lines(r.out) {
				if strings.Contains(line, "kvmesh: error") {
					t.Errorf("help says %q", line)
				}
			}
		})
	}
}

func TestUnknownFlagsAndCommandsAreErrors(t *testing.T) {
	for _, args := range [][]string{{"nothing"}, {"agent", "--no-such-flag"}, {"status", "--http", ":1"}, {"cert"}} {
		if r := kvmesh(t, nil, args...); r.code == 0 || r.errout == "" {
			t.Errorf("kvmesh %q: exit code %d, %q", args, r.code, r.errout)
		}
	}
}
