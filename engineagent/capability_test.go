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

func TestCapabilityIsFoundByVersionThenBySchema(t *testing.T) {
	vllm, sglang := newestOf(engine.KindVLLM), newestOf(engine.KindSGLang)
	pages := func(path, answer, schema string) map[string]string {
		p := map[string]string{path: answer}
		if schema != "" {
			p["/openapi.json"] = schema
		}
		return p
	}
	version := func(v, schema string) map[string]string { return pages("/version", `{"version":"`+v+`"}`, schema) }
	info := func(v, schema string) map[string]string {
		return pages("/server_info", `{"page_size":16,"version":"`+v+`"}`, schema)
	}
	live := string(liveSchema(t))
	tests := []struct {
		name    string
		kind    engine.Kind
		pages   map[string]string
		busy    bool
		want    capability // without info
		settled bool
		schemas int // asked for
	}{
		{"vllm, new enough", engine.KindVLLM, version("0.32.0", live), false, vllm, true, 0},
		{"vllm, new enough and busy", engine.KindVLLM, version("0.10.2", live), true, vllm, true, 0},
		{"vllm, a build without release", engine.KindVLLM, version("0.1.dev7+g0123abc", live), false, vllm, true, 1},
		{"vllm, such a build, busy", engine.KindVLLM, version("0.1.dev7+g0123abc", live), true, capability{}, false, 0},
		{"vllm, too old", engine.KindVLLM, version("0.10.1.1", oldSchema), false, capability{}, true, 1},
		{"vllm, schema off", engine.KindVLLM, version("dev", ""), false, capability{}, true, 1},
		{"vllm, a schema of something else", engine.KindVLLM, version("dev", `{}`), false, capability{}, true, 1},
		{"vllm, says nothing", engine.KindVLLM, map[string]string{}, false, capability{}, true, 1},
		{"sglang, new enough", engine.KindSGLang, info("0.5.23", ""), false, sglang, true, 0},
		{"sglang, schema", engine.KindSGLang, info("0.5.14", sglangSchema), false, sglang, true, 1},
		{"sglang, old schema", engine.KindSGLang, info("0.5.14", oldSchema), false, capability{}, true, 1},
		{"sglang, schema off", engine.KindSGLang, info("0.5.10.post1", ""), false, capability{}, true, 1},
		{"trtllm", engine.KindTRTLLM, version("1.2.1", live), false, capability{}, true, 0},
		{"other", engine.KindOther, version("0.32.0", live), false, capability{}, true, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeEngine()
			f.pages = tt.pages
			c, settled := newAgent(t, testConfig(f)).findCapability(t.Context(), tt.kind, !tt.busy)
			if diff := cmp.Diff(tt.want.chat, c.chat) + cmp.Diff(tt.want.completion, c.completion); diff != "" || settled != tt.settled {
				t.Errorf("settled %v, capability differs (-want +got):\n%s", settled, diff)
			}
			if got := f.count("/openapi.json"); got != tt.schemas {
				t.Errorf("schema asked for %d times, want %d", got, tt.schemas)
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
			a := simAgent(t, func(c *simengine.Config) {
				c.Kind, c.Version, c.TokenIDs, c.CachedTokens = kind, "dev", knows, false
			})
			c, settled := a.findCapability(t.Context(), engine.Kind(kind), true)
			if asks := len(c.ask(engine.Kind(kind), openai.RouteChat, false)) == 1; asks != knows || !settled {
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
		if len(c.chat) > 2 || len(c.completion) > 2 {
			t.Errorf("too many fields: %+v", c)
		}
		for _, name := range slices.Concat(c.chat, c.completion) {
			if name != fieldTokenIDs && name != fieldPromptIDs {
				t.Errorf("field %q", name)
			}
		}
		if v := parseVersion(b); len(v) > maxNameBytes || len(numbersOf(v)) > 3 {
			t.Errorf("version %q", v)
		}
	})
}
