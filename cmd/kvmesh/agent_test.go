package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/node"
)

func TestEngineSpecs(t *testing.T) {
	key := file(t, "key", " secret\n")
	empty := file(t, "empty", "\n")
	tests := []struct {
		spec string
		want node.EngineConfig // without the URL
		url  string
		err  string // part of it; "" for none
	}{
		{spec: "http://127.0.0.1:8000", want: node.EngineConfig{Name: "engine2"}, url: "http://127.0.0.1:8000"},
		{spec: "g0=http://127.0.0.1:8000", want: node.EngineConfig{Name: "g0"}, url: "http://127.0.0.1:8000"},
		{spec: "  g0=https://gpu/prefix?x=y  ", want: node.EngineConfig{Name: "g0"}, url: "https://gpu/prefix?x=y"},
		{spec: "http://gpu/?a=b", want: node.EngineConfig{Name: "engine2"}, url: "http://gpu/?a=b"},
		{
			spec: "g0=http://gpu:1 kind=sglang capacity-tokens=1000000 max-running=64 key-file=" + key, url: "http://gpu:1",
			want: node.EngineConfig{Name: "g0", Kind: engine.KindSGLang, CapacityTokens: 1_000_000, MaxRunning: 64, APIKey: "secret"},
		},
		{spec: "http://gpu kind=other", want: node.EngineConfig{Name: "engine2", Kind: engine.KindOther}, url: "http://gpu"},
		{
			spec: "http://gpu queue=off prefill-step=2048", url: "http://gpu",
			want: node.EngineConfig{Name: "engine2", NoQueue: true, PrefillStep: 2048},
		},
		{spec: "http://gpu queue=on", want: node.EngineConfig{Name: "engine2"}, url: "http://gpu"},
		{spec: "http://gpu queue=no", err: "queue"},
		{spec: "http://gpu prefill-step=all", err: "prefill-step"},
		{spec: "r1=http://gpu rank=1", want: node.EngineConfig{Name: "r1", Rank: new(1)}, url: "http://gpu"},
		{spec: "http://gpu rank=one", err: "rank"},
		{spec: "", err: "is empty"},
		{spec: "   ", err: "is empty"},
		{spec: "http://gpu kind=vlm", err: "kind"},
		{spec: "http://gpu kind", err: "kind"},
		{spec: "http://gpu capacity-tokens=many", err: "capacity-tokens"},
		{spec: "http://gpu capacity-tokens=99999999999999999999", err: "capacity-tokens"},
		{spec: "http://gpu max-running=", err: "max-running"},
		{spec: "http://gpu key-file=" + key + ".none", err: "key-file"},
		{spec: "http://gpu key-file=" + empty, err: "is empty"},
		{spec: "http://gpu color=red", err: `unknown option "color"`},
		{spec: "http://gp u:x", err: "unknown option"},
		{spec: "http://[::1", err: "missing"},
	}
	for _, tt := range tests {
		t.Run(tt.spec, func(t *testing.T) {
			got, err := parseEngine(tt.spec, 2)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want one about %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.URL.String() != tt.url {
				t.Errorf("URL %s, want %s", got.URL, tt.url)
			}
			got.URL = nil
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestKeyOfAnEngineIsNotPrinted(t *testing.T) {
	key := file(t, "key", "top-secret-key")
	r := kvmesh(t, nil, "agent", "--http", "x", "--engine", "e=ftp://gpu key-file="+key)
	if r.code == 0 || strings.Contains(r.out+r.errout, "top-secret-key") {
		t.Errorf("exit code %d, %s%s", r.code, r.out, r.errout)
	}
}

func TestEveryFaultOfAConfigurationIsToldAtOnce(t *testing.T) {
	config := file(t, "bad.yaml", "colour: red\nqueue-limit: {a: 1}\ntimeout: 0s\njoin: [seed]\n")
	r := kvmesh(t, []string{"KVMESH_MAX_BODY=0", "KVMESH_DRAIN_TIMEOUT=-1s", "KVMESH_ZONE=a\tb"}, "agent", "--config", config,
		"--mesh-id", "Not A Mesh", "--name", "a/b", "--http", "nowhere", "--debug", "0.0.0.0:7083",
		"--queue-timeout", "0s", "--body-budget=-1",
		"--engine", "e=ftp://gpu", "--engine", "http://gpu color=red", "--engine", "e=http://gpu")
	if r.code != 1 || r.out != "" {
		t.Errorf("exit code %d, output %q", r.code, r.out)
	}
	for _, want := range []string{
		`unknown key "colour"`, "queue-limit must", "timeout (0s)", `join ("seed")`, "max-body (0)", "drain-timeout (-1s)",
		`mesh-id ("Not A Mesh")`, `name ("a/b")`, `http ("nowhere")`, "debug (0.0.0.0:7083)", "queue-timeout (0s)",
		"body-budget (-1)", `zone ("a\tb")`, `engine "e":`, `unknown option "color"`, "is there twice", "certs is missing",
	} {
		ofEngine := strings.Contains(want, "option") || strings.Contains(want, "twice") // after the engine's name
		if !strings.Contains(r.errout, "\n  "+want) && (!ofEngine || !strings.Contains(r.errout, want)) {
			t.Errorf("no line begins with %q in:\n%s", want, r.errout)
		}
	}
	for line := range strings.Lines(r.errout) {
		if strings.HasPrefix(line, "  ") && strings.ToLower(line[2:3]) != line[2:3] {
			t.Errorf("a fault is told by the name of a field: %s", line)
		}
	}
}

func TestAgentWithoutCertificatesStaysOnLoopback(t *testing.T) {
	for _, args := range [][]string{
		{"--gossip-bind", "127.0.0.1:0"},
		{"--quic-bind", "127.0.0.1:0"},
		{"--quic-bind", "0.0.0.0:0", "--gossip-bind", "127.0.0.1:0"},
	} {
		r := kvmesh(t, nil, append([]string{"agent", "--http", "127.0.0.1:0", "--debug", ""}, args...)...)
		if r.code != 1 || !strings.Contains(r.errout, "certs is missing") {
			t.Errorf("%q: exit code %d, %s", args, r.code, r.errout)
		}
	}
}

func TestFlagNamesOfFields(t *testing.T) {
	for field, want := range map[string]string{
		"HTTP": "http", "MeshID": "mesh-id", "QUICBind": "quic-bind", "GossipAdvertise": "gossip-advertise", "MaxBody": "max-body",
		"Name": "name", "QueueTimeout": "queue-timeout", "Identity": "certs",
	} {
		if got := kebab(field); got != want {
			t.Errorf("%s is told as %s, want %s", field, got, want)
		}
	}
}
