package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/node"
	"github.com/kvmesh/kvmesh/mesh"
)

func exampleStatus() *node.Status {
	return &node.Status{
		Agent: "a1", Mesh: "prod", Uptime: 3725.4, Ready: true, Settled: true,
		Counters: node.Counters{InFlight: 3, Waiting: 1, PeerStreams: 2, Booked: map[string]int{"g0": 4}},
		Engines: []node.EngineStatus{
			{
				Engine: "a1/g0", State: "own", Kind: "vllm", Models: []string{"m", "m-lora"}, InFlight: 4, QueuedSeconds: 0.125,
				KVUsage: 0.5, LoadAge: 0.26, Residency: "events", Evidence: "usage", OverlapScale: 0.9375,
				Digests: []node.DigestStatus{{Tier: "gpu", Version: 17, Keys: 1204, Fill: 0.031, Age: -1}},
			},
			{Engine: "a2/engine0", State: "down", Models: []string{}, LoadAge: -1, Residency: "mirror", Evidence: "none", OverlapScale: 1},
			{
				Engine: "a2/engine1", State: "fresh", Kind: "sglang", Models: []string{"m"}, LoadAge: 1.25, Residency: "events",
				Evidence: "none", OverlapScale: 0.5, Unstable: true,
				Digests: []node.DigestStatus{
					{Tier: "gpu", Version: 3, Keys: 20, Fill: 0.001, Age: 0.4}, {Tier: "cpu", Version: 4, Keys: 3000, Fill: 0.08, Age: 0.44},
				},
			},
		},
		Agents: []node.AgentStatus{
			{Name: "a1", State: "own", Connected: true, Address: "10.0.0.1:7081"},
			{Name: "a2", State: "unreachable", Address: "[fd00::2]:7081", RTTMillis: 0.421},
		},
		Queues: []node.QueueStatus{
			{Model: "m", Waiting: 12, Classes: map[string]int{"chat": 4, "batch": 8}, Keys: 3, Bytes: 48000, Oldest: 2.34, DrainRate: 4.25},
			{Model: "n", Waiting: 1, Classes: map[string]int{"default": 1}, Keys: 1, Bytes: 200, Oldest: 0.1, DrainRate: -1},
		},
		Refusals: []node.RefusalStatus{
			{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Count: 3, Peer: "a9", Addr: "10.0.0.9:7081", Reason: "another mesh"},
			{Time: time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC), Count: 1, Peer: "a8", Addr: "10.0.0.8:7081", Reason: "too old", ByPeer: true},
		},
		Doubts: []forward.Doubt{
			{Agent: "a2", What: forward.DoubtLoad, Count: 40, Last: time.Date(2026, 1, 2, 3, 4, 8, 0, time.UTC)},
			{Agent: "a2", Engine: "a2/engine0", What: forward.DoubtDigest, Count: 2, Last: time.Date(2026, 1, 2, 3, 4, 7, 0, time.UTC)},
		},
		GossipKeys: mesh.GossipKeys{Version: 3, Keys: []string{"00112233aabbccdd", "ffeeddccbbaa0099"}},
		Agreed: node.AgreedStatus{
			Role: "watcher", Index: 14, Policy: node.PolicyStatus{Source: node.SourceFile, Classes: 2},
			Cordons: []node.CordonStatus{{Agent: "a2", Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}},
		},
		Notes: []string{"engine g0 beside this agent is down: requests go to other engines"},
	}
}

const statusGolden = `agent a1 of mesh prod: ready, up 1h2m5s, 3 requests in flight, 1 waiting, 2 for peers

ENGINE      STATE  KIND    MODELS    IN FLIGHT  QUEUED  KV   LOAD AGE  RESIDENCY                                      DIGESTS (KEYS, FILL, AGE)
a1/g0       own    vllm    m,m-lora  4          0.12s   50%  0.3s      events, 94% true                               gpu: 1204, 3.1%, -
a2/engine0  down                     0          0.00s   0%   -         mirror, unverified                             -
a2/engine1  fresh  sglang  m         0          0.00s   0%   1.2s      events, unverified, 50% true, unstable layout  gpu: 20, 0.1%, 0.4s; cpu: 3000, 8.0%, 0.4s

AGENT  STATE        CONNECTED  QUIC ADDRESS    ROUND TRIP
a1     own          true       10.0.0.1:7081   0.00ms
a2     unreachable  false      [fd00::2]:7081  0.42ms

QUEUE OF  WAITING  CLASSES          API KEYS  BYTES  OLDEST  SERVED/S
m         12       batch 8, chat 4  3         48000  2.3s    4.2
n         1        default 1        1         200    0.1s    -

agreed state: index 14, this agent is a watcher, no quorum: nothing can be changed
policy: file, 2 classes
cordoned: a2, by unknown since 2026-01-02T03:04:05Z

gossip keys, version 3
  00112233aabbccdd encrypts
  ffeeddccbbaa0099 decrypts

refused a9 10.0.0.9:7081, 3 times, last 03:04:05: another mesh

refused by a8 10.0.0.8:7081, 1 times, last 03:04:06: too old

not believed: agent a2: load out of range, 40 times, last 03:04:08

not believed: agent a2, engine a2/engine0: digest too full, 2 times, last 03:04:07

note: engine g0 beside this agent is down: requests go to other engines
`

func TestStatusTables(t *testing.T) {
	var out strings.Builder
	printStatus(&out, exampleStatus())
	if diff := cmp.Diff(statusGolden, out.String()); diff != "" {
		t.Errorf("status differs (-want +got):\n%s", diff)
	}
}

func TestStatusOfAnEmptyMesh(t *testing.T) {
	var out strings.Builder
	printStatus(&out, &node.Status{Agent: "a1", Mesh: "prod", Agreed: node.AgreedStatus{Role: "standby"}})
	contains(t, out.String(), "agent a1 of mesh prod: not ready", "ENGINE", "AGENT", "agreed state: none yet; this agent is a standby\n")
}

// debugServer answers as an agent's does, to those who know the token.
func debugServer(t *testing.T, token string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != token:
			http.Error(w, "the debug server needs its token", http.StatusUnauthorized)
		case r.Method == http.MethodPost && r.URL.Path == "/debug/gossip-key":
			_ = json.NewEncoder(w).Encode(mesh.GossipKeys{Version: 4, Keys: []string{"0011223344556677"}})
		case r.URL.Path == "/debug/gossip-key":
			_ = json.NewEncoder(w).Encode(mesh.GossipKeys{
				Version: 3, Keys: []string{"00112233aabbccdd", "ffeeddccbbaa0099"}, Behind: []string{"a7"},
			})
		case r.URL.Path == "/debug/mesh.json":
			_ = json.NewEncoder(w).Encode(exampleStatus())
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func TestStatusAsksAnAgent(t *testing.T) {
	open, guarded := debugServer(t, ""), debugServer(t, "Bearer secret")
	token := file(t, "token", "secret\n")
	if r := kvmesh(t, nil, "status", open); r.code != 0 || !strings.HasPrefix(r.out, "agent a1 of mesh prod: ready") {
		t.Errorf("exit code %d, %s%s", r.code, r.out, r.errout)
	}
	if r := kvmesh(t, nil, "status", "--token-file", token, guarded); r.code != 0 {
		t.Errorf("with its token: exit code %d, %s", r.code, r.errout)
	}
	r := kvmesh(t, nil, "status", "--json", open)
	var s node.Status
	if err := json.Unmarshal([]byte(r.out), &s); err != nil || s.Agent != "a1" {
		t.Errorf("--json: %v, %s", err, r.out)
	}
	if r := kvmesh(t, nil, "status", guarded); r.code != 1 || !strings.Contains(r.errout, "needs its token") {
		t.Errorf("without token: exit code %d, %s", r.code, r.errout)
	}
}

func TestStatusSaysWhatIsWrong(t *testing.T) {
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }))
	nobody := httptest.NewServer(http.NotFoundHandler())
	nobody.Close()
	t.Cleanup(page.Close)
	for name, tt := range map[string]struct{ addr, want string }{
		"another server": {page.URL, "is no debug server"},
		"nobody":         {nobody.URL, "no agent answers"},
	} {
		c := statusCmd{debugClient: debugClient{Addr: strings.TrimPrefix(tt.addr, "http://")}}
		if err := c.Run(context.Background()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
