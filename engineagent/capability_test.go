package engineagent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
	"github.com/kvmesh/kvmesh/internal/simengine"
)

func liveSchema(t testing.TB) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "schema", "vllm-0.32-live.json"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	oldSchema    = `{"components":{"schemas":{"ChatCompletionRequest":{"properties":{"messages":{}}},"CompletionRequest":{}}}}`
	sglangSchema = `{"components":{"schemas":{
 "ChatCompletionRequest":{"properties":{"return_prompt_token_ids":{},"return_token_ids":{}}},
 "CompletionRequest":{"properties":{"return_token_ids":{}}}}}}`
)

func TestFieldsAreAskedForByTheTable(t *testing.T) {
	ids, prompts := []string{"return_token_ids"}, []string{"return_prompt_token_ids"}
	tests := []struct {
		kind         engine.Kind
		route        openai.Route
		whole, event []string // in one piece, as a stream
	}{
		{engine.KindVLLM, openai.RouteChat, ids, ids},
		{engine.KindVLLM, openai.RouteCompletions, ids, ids},
		{engine.KindVLLM, openai.RouteResponses, nil, nil},
		{engine.KindVLLM, openai.RouteMessages, nil, nil},
		{engine.KindSGLang, openai.RouteChat, prompts, nil},
		{engine.KindSGLang, openai.RouteCompletions, ids, ids},
		{engine.KindSGLang, openai.RouteResponses, nil, nil},
		{engine.KindSGLang, openai.RouteMessages, nil, nil},
		{engine.KindTRTLLM, openai.RouteChat, nil, nil},
		{engine.KindTRTLLM, openai.RouteCompletions, nil, nil},
		{engine.KindOther, openai.RouteChat, nil, nil},
	}
	for _, tt := range tests {
		// Schemas that have more than the table: the table decides where a field works.
		both := []string{fieldTokenIDs, fieldPromptIDs}
		c := capability{chat: both, completion: both}
		for stream, want := range map[bool][]string{false: tt.whole, true: tt.event} {
			if got := c.ask(tt.kind, tt.route, stream); !slices.Equal(got, want) {
				t.Errorf("%s, %s, stream %v: asks for %v, want %v", tt.kind, tt.route, stream, got, want)
			}
		}
		if none := (&capability{}); none.ask(tt.kind, tt.route, false) != nil {
			t.Errorf("%s, %s: asks for a field that no schema has", tt.kind, tt.route)
		}
	}
}

func TestCapabilityIsFoundBySchemaThenByVersion(t *testing.T) {
	vllm, sglang := newestOf(engine.KindVLLM), newestOf(engine.KindSGLang)
	version := func(v string) map[string]string { return map[string]string{"/version": `{"version":"` + v + `"}`} }
	info := func(v string) map[string]string {
		return map[string]string{"/server_info": `{"page_size":16,"version":"` + v + `"}`}
	}
	with := func(pages map[string]string, schema string) map[string]string {
		pages["/openapi.json"] = schema
		return pages
	}
	tests := []struct {
		name    string
		kind    engine.Kind
		pages   map[string]string
		busy    bool
		want    capability // without info
		settled bool
	}{
		{"vllm, schema", engine.KindVLLM, with(version("0.32.0"), string(liveSchema(t))), false, vllm, true},
		{"vllm, a schema against the version", engine.KindVLLM, with(version("0.32.0"), oldSchema), false, capability{}, true},
		{"vllm, a schema without version", engine.KindVLLM, with(version("dev"), string(liveSchema(t))), false, vllm, true},
		{"vllm, schema off", engine.KindVLLM, version("0.10.2"), false, vllm, true},
		{"vllm, schema off, too old", engine.KindVLLM, version("0.10.1.1"), false, capability{}, true},
		{"vllm, a schema of something else", engine.KindVLLM, with(version("0.11.0"), `{}`), false, vllm, true},
		{"vllm, busy", engine.KindVLLM, with(version("0.32.0"), oldSchema), true, vllm, false},
		{"vllm, says nothing", engine.KindVLLM, map[string]string{}, false, capability{}, true},
		{"sglang, schema", engine.KindSGLang, with(info("0.5.20"), sglangSchema), false, sglang, true},
		{"sglang, old schema", engine.KindSGLang, with(info("0.5.20"), oldSchema), false, capability{}, true},
		{"sglang, schema off", engine.KindSGLang, info("0.5.23"), false, sglang, true},
		{"sglang, schema off, too old", engine.KindSGLang, info("0.5.10.post1"), false, capability{}, true},
		{"trtllm", engine.KindTRTLLM, with(version("1.2.1"), string(liveSchema(t))), false, capability{}, true},
		{"other", engine.KindOther, with(version("0.32.0"), string(liveSchema(t))), false, capability{}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeEngine()
			f.pages = tt.pages
			c, settled := newAgent(t, testConfig(f)).findCapability(t.Context(), tt.kind, !tt.busy)
			if diff := cmp.Diff(tt.want.chat, c.chat) + cmp.Diff(tt.want.completion, c.completion); diff != "" || settled != tt.settled {
				t.Errorf("settled %v, capability differs (-want +got):\n%s", settled, diff)
			}
			if tt.busy && f.count("/openapi.json") > 0 {
				t.Error("asked for the schema of an engine that works")
			}
		})
	}
}

func TestCapabilityIsLookedForAgainWhenTheEngineDidNotAnswer(t *testing.T) {
	f := newFakeEngine()
	f.set(resetting)
	if _, settled := newAgent(t, testConfig(f)).findCapability(t.Context(), engine.KindVLLM, true); settled {
		t.Error("settled without an answer")
	}
}

func TestSimulatedEnginesTellWhatTheyTake(t *testing.T) {
	for _, kind := range []string{simengine.KindVLLM, simengine.KindSGLang} {
		for _, knows := range []bool{true, false} {
			a := simAgent(t, func(c *simengine.Config) { c.Kind, c.TokenIDs, c.CachedTokens = kind, knows, false })
			c, settled := a.findCapability(t.Context(), engine.Kind(kind), true)
			if asks := len(c.ask(engine.Kind(kind), openai.RouteChat, false)) == 1; asks != knows || !settled || !c.told {
				t.Errorf("%s that knows %v: capability %+v, settled %v", kind, knows, c, settled)
			}
			if words := c.advice(true); (len(words) == 1) != (kind == simengine.KindSGLang) {
				t.Errorf("%s: advice %q", kind, words)
			}
		}
	}
}

func TestVersionsAreCompared(t *testing.T) {
	want := release{0, 10, 2}
	for version, enough := range map[string]bool{
		"0.10.2": true, "v0.10.2": true, "0.10.2rc1": true, "0.11": true, "0.11.0+cu128": true, "1.0": true, "0.25.1": true,
		"0.10.1": false, "0.10": false, "0.9.2": false, "0.1.dev7+g0123abc": false, "dev": false, "": false, "-1.0": false,
		"0.99999999999999999999999.1": false,
	} {
		if got := want.atMost(version); got != enough {
			t.Errorf("%q has what 0.10.2 has: %v", version, got)
		}
	}
}

func TestFlagsOfSGLangAreAdvised(t *testing.T) {
	tests := []struct {
		name     string
		info     serverInfo
		followed bool
		want     int
	}{
		{"all well", serverInfo{PageSize: 16, CacheReport: true, Metrics: true}, true, 0},
		{"defaults, without events", serverInfo{PageSize: 1}, false, 2},
		{"defaults, with events", serverInfo{PageSize: 1}, true, 3},
		{"says nothing", serverInfo{}, true, 0},
	}
	for _, tt := range tests {
		if got := (&capability{info: tt.info}).advice(tt.followed); len(got) != tt.want {
			t.Errorf("%s: %q, want %d", tt.name, got, tt.want)
		}
	}
}

func FuzzParseSchema(f *testing.F) {
	f.Add(liveSchema(f))
	f.Add([]byte(sglangSchema))
	f.Add([]byte(`{"components":{"schemas":{"CompletionRequest-Input":{"properties":{"return_token_ids":null}}}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := parseSchema(b)
		for _, name := range slices.Concat(c.chat, c.completion) {
			if name != fieldTokenIDs && name != fieldPromptIDs {
				t.Errorf("field %q", name)
			}
		}
		if len(c.chat)+len(c.completion) > 0 && !c.told {
			t.Error("fields without a schema")
		}
		if v := parseVersion(b); len(v) > maxNameBytes || len(numbersOf(v)) > 3 {
			t.Errorf("version %q", v)
		}
	})
}
