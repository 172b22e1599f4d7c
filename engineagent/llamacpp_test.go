package engineagent

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/internal/engine"
)

const (
	slots = `[{"id":0,"id_task":135,"n_ctx":65536,"speculative":false,"is_processing":true,"params":{"n_predict":-1},
  "next_token":[{"has_next_token":true,"n_remain":-1,"n_decoded":136}]},
 {"id":1,"n_ctx":65536,"speculative":false,"is_processing":false}]`
	oldSlots = `[{"id":0,"n_ctx":2048,"state":1,"prompt":"Hello"},{"id":1,"n_ctx":2048,"state":0,"prompt":""}]`
)

func TestSlotsAreTheCache(t *testing.T) {
	tests := []struct {
		name, body string
		want       reading
		bad        bool
	}{
		{"now", slots, reading{running: 1, maxRunning: 2, capacityTokens: 131072}, false},
		{"until 2024", oldSlots, reading{running: 1, maxRunning: 2, capacityTokens: 4096}, false},
		{"absurd", `[{"n_ctx":-4,"is_processing":true},{"n_ctx":1e30}]`, reading{
			running: 1, maxRunning: 2, capacityTokens: maxCapacityTokens,
		}, false},
		{"none", `[]`, reading{}, true},
		{"an error", `{"error":{"code":501,"message":"This server does not support slots"}}`, reading{}, true},
		{"no JSON", `slots`, reading{}, true},
	}
	for _, tt := range tests {
		got, err := parseSlots([]byte(tt.body))
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(reading{})); diff != "" || (err != nil) != tt.bad {
			t.Errorf("%s: error %v, reading differs (-want +got):\n%s", tt.name, err, diff)
		}
	}
}

// statuses answers with the status of a path where there is one, and as the engine else.
type statuses struct {
	*fakeEngine
	codes map[string]int
}

func (s statuses) RoundTrip(r *http.Request) (*http.Response, error) {
	if code, ok := s.codes[r.URL.Path]; ok {
		return response(code, `{"error":{}}`), nil
	}
	return s.fakeEngine.RoundTrip(r)
}

func TestLoadOfLlamaCpp(t *testing.T) {
	metrics := string(page(t, "llamacpp.txt"))
	counters := map[string]float64{"llamacpp:prompt_tokens_total": 1234}
	off := map[string]int{"/metrics": http.StatusNotImplemented}
	tests := []struct {
		name          string
		pages         map[string]string
		codes         map[string]int
		want          reading
		bad, gone     bool
		kind          engine.Kind
		slotsNotAsked bool
	}{
		{
			"both",
			map[string]string{"/metrics": metrics, "/slots": slots},
			nil,
			reading{running: 2, waiting: 1, maxRunning: 2, capacityTokens: 131072, counters: counters},
			false, false, engine.KindOther, false,
		},
		{
			"slots only",
			map[string]string{"/slots": slots},
			off,
			reading{running: 1, maxRunning: 2, capacityTokens: 131072},
			false, false, engine.KindOther, false,
		},
		{
			"metrics only",
			map[string]string{"/metrics": metrics},
			nil,
			reading{running: 2, waiting: 1, counters: counters},
			false, false, engine.KindOther, false,
		},
		{"neither", map[string]string{}, off, reading{}, true, true, engine.KindOther, false},
		{
			"slots fail",
			map[string]string{},
			map[string]int{"/metrics": 501, "/slots": 500},
			reading{},
			true, false, "", false,
		},
		{"metrics fail", map[string]string{"/slots": slots}, map[string]int{"/metrics": 500}, reading{}, true, false, "", true},
		{
			"another program",
			map[string]string{"/metrics": "go_goroutines 8\n", "/slots": slots},
			nil,
			reading{counters: map[string]float64{}},
			true, false, engine.KindOther, true,
		},
		{
			"known names",
			map[string]string{"/metrics": "vllm:num_requests_running 2\n"},
			nil,
			reading{running: 2, counters: map[string]float64{}},
			false, false, engine.KindVLLM, true,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeEngine()
			f.pages = tt.pages
			c := testConfig(f)
			c.Transport = statuses{f, tt.codes}
			got, kind, err := newAgent(t, c).askLoad(t.Context(), engine.KindOther)
			if (err != nil) != tt.bad || missing(err) != tt.gone || kind != tt.kind {
				t.Errorf("kind %q, error %v", kind, err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(reading{})); diff != "" {
				t.Errorf("reading differs (-want +got):\n%s", diff)
			}
			if f.count("/slots") > 0 && tt.slotsNotAsked {
				t.Error("slots asked")
			}
		})
	}
}

func TestOwnerOfACardNamesTheSoftware(t *testing.T) {
	for owner, want := range map[string]engine.Kind{
		"vllm": engine.KindVLLM, "sglang": engine.KindSGLang, "tensorrt_llm": engine.KindTRTLLM, "llamacpp": engine.KindOther,
	} {
		if got, ok := kindOfOwner(owner); !ok || got != want {
			t.Errorf("%s is %q, %v; want %q", owner, got, ok, want)
		}
	}
	if _, ok := kindOfOwner("library"); ok {
		t.Error("an owner that names no software is known")
	}
}
