package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
)

func TestFlagsWinOverTheEnvironmentAndThatOverTheFile(t *testing.T) {
	config := file(t, "kvmesh.yaml", "http: from-file\n")
	env := []string{"KVMESH_HTTP=from-env"}
	for _, tt := range []struct {
		name string
		env  []string
		args []string
		want string
	}{
		{"file", nil, nil, "from-file"},
		{"environment", env, nil, "from-env"},
		{"flag", env, []string{"--http", "from-flag"}, "from-flag"},
		{"flag over file", nil, []string{"--http", "from-flag"}, "from-flag"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := append([]string{"agent", "--config", config, "--quic-bind=127.0.0.1:0", "--gossip-bind=127.0.0.1:0", "--name=a"}, tt.args...)
			r := kvmesh(t, tt.env, args...)
			if want := fmt.Sprintf("http (%q) must be", tt.want); r.code != 1 || !strings.Contains(r.errout, want) {
				t.Errorf("exit code %d, %s, want %s", r.code, r.errout, want)
			}
		})
	}
}

func TestFileIsFoundByTheEnvironment(t *testing.T) {
	config := file(t, "kvmesh.yaml", "http: from-file\n")
	r := kvmesh(t, []string{"KVMESH_CONFIG=" + config}, "agent")
	contains(t, r.errout, `http ("from-file") must be`)
}

// parse reads an agent's flags from a config file and arguments, as main does.
func parse(t *testing.T, text string, args ...string) (agentCmd, []error, error) {
	t.Helper()
	var c cli
	var faults problems
	k, err := kong.New(&c, kong.Name("kvmesh"), kong.Configuration(faults.load), kong.Bind(&faults), kong.Exit(func(int) {}),
		kong.BindTo(t.Context(), (*context.Context)(nil)))
	if err != nil {
		t.Fatal(err)
	}
	_, err = k.Parse(append([]string{"agent", "--config", file(t, "kvmesh.yaml", text)}, args...))
	return c.Agent, faults.errs, err
}

func TestEveryKindOfValueCanComeFromTheFile(t *testing.T) {
	got, faults, err := parse(t, `
mesh-id: prod
name: a1
http: "0.0.0.0:80"
join:
  - seed-1:7081
  - "[::1]:7081"
engine: ["g0=http://127.0.0.1:8000 kind=vllm max-running=4", "http://127.0.0.1:8001"]
max-body: 1024
body-budget: 9999999999
queue-limit: 0
queue-timeout: 1m30s
explain: false
log-level: debug
log-format: json
`)
	if err != nil || len(faults) > 0 {
		t.Fatal(err, faults)
	}
	want, _, err := parse(t, "", "--mesh-id=prod", "--name=a1", "--http=0.0.0.0:80", "--join=seed-1:7081", "--join=[::1]:7081",
		"--engine=g0=http://127.0.0.1:8000 kind=vllm max-running=4", "--engine=http://127.0.0.1:8001", "--max-body=1024",
		"--body-budget=9999999999", "--queue-limit=0", "--queue-timeout=90s", "--no-explain", "--log-level=debug", "--log-format=json")
	if err != nil {
		t.Fatal(err)
	}
	want.Config, got.Config = "", ""
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("flags and file differ (-flags +file):\n%s", diff)
	}
	if got.QueueTimeout != 90*time.Second || got.Explain || got.LogLevel != slog.LevelDebug || len(got.Engine) != 2 || len(got.Join) != 2 {
		t.Errorf("read %+v", got)
	}
}

func TestOneValueStandsForAListOfOne(t *testing.T) {
	got, faults, err := parse(t, "join: seed:7081\nengine: g0=http://127.0.0.1:8000 kind=vllm\n")
	if err != nil || len(faults) > 0 {
		t.Fatal(err, faults)
	}
	if diff := cmp.Diff([]string{"seed:7081"}, got.Join); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"g0=http://127.0.0.1:8000 kind=vllm"}, got.Engine); diff != "" {
		t.Error(diff)
	}
}

func TestFaultsOfTheFileNameTheirKeys(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"unknown keys", "colour: red\nqueue-limit: 3\nsize: 4\n", []string{`unknown key "colour"`, `unknown key "size"`}},
		{"keys of other subcommands", "seed: 3\ntoken-file: x\n", []string{`unknown key "seed"`, `unknown key "token-file"`}},
		{"underscores", "queue_limit: 3\n", []string{`unknown key "queue_limit"`}},
		{"a file in a file", "config: other.yaml\n", []string{`unknown key "config"`}},
		{"nested map", "engine:\n  name: g0\n", []string{"engine must be"}},
		{"maps in a list", "engine: [{name: g0}]\n", []string{"engine must be"}},
		{"list in a list", "join: [[a]]\n", []string{"join must be"}},
		{"null", "http:\n", []string{"http must be"}},
		{"all at once", "a: 1\nhttp: {}\nb: 2\n", []string{`"a"`, `"b"`, "http must be"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, faults, err := parse(t, tt.text)
			if err != nil {
				t.Fatal(err)
			}
			told := fmt.Sprint(faults)
			if len(faults) != len(tt.want) {
				t.Errorf("%d faults: %s", len(faults), told)
			}
			contains(t, told, tt.want...)
		})
	}
}

func TestFileThatCannotBeReadIsAnError(t *testing.T) {
	for name, text := range map[string]string{
		"not YAML":       "a: [1\n",
		"a list":         "- http\n",
		"a text":         "hello\n",
		"a key twice":    "http: a\nhttp: b\n",
		"a wrong number": "queue-limit: many\n",
		"a wrong word":   "log-format: xml\n",
	} {
		if _, _, err := parse(t, text); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if r := kvmesh(t, nil, "agent", "--config", "/no/such/file.yaml"); r.code == 0 || !strings.Contains(r.errout, "file.yaml") {
		t.Errorf("missing file: exit code %d, %s", r.code, r.errout)
	}
}
