package engineagent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// toldAgent returns an Agent of an engine that tells its KV events, in blocks of four tokens.
func toldAgent(t testing.TB, edit func(*Config)) *Agent {
	t.Helper()
	a := upAgent(t, edit)
	a.noteDescription(engine.KindVLLM, []card{{ID: "m", Root: "m"}, {ID: "lora", Parent: new("m")}}, serverInfo{})
	a.noteCapability(newestOf(engine.KindVLLM))
	a.noteFollowed(1)
	(*sink)(a).Apply(0, []cachestate.BlockEvent{storedTokens(tokensOf(9, 4))})
	return a
}

// sparse gives the engine a second cache group, of a sliding window.
func sparse(a *Agent) {
	e := storedTokens(tokensOf(9, 4))
	e.Group, e.GroupKind, e.Window = 1, cachestate.GroupSliding, 8
	(*sink)(a).Apply(0, []cachestate.BlockEvent{e})
}

// tokensOf returns n token ids that begin with those of every shorter list of the same family.
func tokensOf(family uint32, n int) []uint32 {
	out := make([]uint32, 0, n)
	for i := range n {
		out = append(out, family*1000+uint32(i))
	}
	return out
}

// storedTokens is the event of a whole sequence in blocks of four.
func storedTokens(tokens []uint32) cachestate.BlockEvent {
	e := cachestate.BlockEvent{Kind: cachestate.BlocksStored, Tokens: tokens, BlockTokens: 4, ShowsExtras: true}
	for i := 3; i < len(tokens); i += 4 {
		e.Hashes = append(e.Hashes, uint64(tokens[0])<<32|uint64(i))
	}
	return e
}

// removedTokens takes back the last n blocks of storedTokens.
func removedTokens(tokens []uint32, n int) cachestate.BlockEvent {
	hashes := storedTokens(tokens).Hashes
	return cachestate.BlockEvent{Kind: cachestate.BlocksRemoved, Hashes: hashes[len(hashes)-n:]}
}

// dense is prompt with its classes of bytes, as a hasher makes it.
func dense(p *cachestate.Prompt) *cachestate.Prompt {
	p.Odd, p.High, p.Sure = make([]uint32, len(p.Keys)), make([]uint32, len(p.Keys)), len(p.Keys)
	return p
}

func TestIDsAreAskedOnlyWhereTheyTeach(t *testing.T) {
	tests := []struct {
		name string
		edit func(*Agent, *Admission)
		want string
	}{
		{"a new prompt", func(*Agent, *Admission) {}, "return_token_ids"},
		{"in a stream", func(_ *Agent, ad *Admission) { ad.Traits = openai.TraitStream }, "return_token_ids"},
		{"a short prompt", func(_ *Agent, ad *Admission) { ad.Prompt = dense(prompt(1, 0, 0, 1)); ad.Prompt.Bytes = 20 }, ""},
		{"a short prompt of an engine with a sparse group", func(a *Agent, ad *Admission) {
			sparse(a)
			ad.Prompt = dense(prompt(1, 0, 0, 1))
			ad.Prompt.Bytes = 20
		}, "return_token_ids"},
		{"the same, its last key known", func(a *Agent, ad *Admission) {
			sparse(a)
			ad.Prompt = dense(prompt(1, 0, 0, 1))
			a.blocks.Teach(cachestate.Lesson{Prompt: ad.Prompt, Tokens: tokensOf(3, 8)})
		}, ""},
		{"no keys", func(a *Agent, ad *Admission) {
			sparse(a)
			ad.Prompt = &cachestate.Prompt{Bytes: 80_000}
		}, ""},
		{"several answers", func(_ *Agent, ad *Admission) { ad.Traits = openai.TraitMany }, ""},
		{"computed without the cache", func(_ *Agent, ad *Admission) { ad.Traits = openai.TraitSkipsCache }, ""},
		{"echoed", func(_ *Agent, ad *Admission) { ad.Traits = openai.TraitEcho }, ""},
		{"the client asks itself", func(_ *Agent, ad *Admission) { ad.Traits = openai.TraitAsksIDs }, ""},
		{"thoughts left out", func(_ *Agent, ad *Admission) { ad.Traits = openai.TraitNoReasoning }, ""},
		{"pictures", func(_ *Agent, ad *Admission) { ad.Media = true }, ""},
		{"the prompt is token ids", func(_ *Agent, ad *Admission) { ad.Traits = openai.TraitTokenPrompt }, "none needed"},
		{"Responses", func(_ *Agent, ad *Admission) { ad.Route = openai.RouteResponses }, ""},
		{"no KV events", func(a *Agent, _ *Admission) { a.noteUnfollowed("a test") }, ""},
		{"SGLang's streams", func(a *Agent, ad *Admission) {
			a.engine.Kind, ad.Traits = engine.KindSGLang, openai.TraitStream
			a.noteCapability(newestOf(engine.KindSGLang))
		}, ""},
		{"another server", func(a *Agent, _ *Admission) { a.engine.Kind = engine.KindOther }, ""},
		{"refused before", func(a *Agent, ad *Admission) {
			mustAdmit(t, a, *ad).AskRefused(fieldTokenIDs)
		}, ""},
		{"salt that events do not show", func(a *Agent, ad *Admission) {
			e := storedTokens(tokensOf(9, 4))
			e.ShowsExtras = false
			(*sink)(a).Apply(0, []cachestate.BlockEvent{e})
			ad.Salt = "tenant"
		}, ""},
		{"salt", func(_ *Agent, ad *Admission) { ad.Salt = "tenant" }, "return_token_ids"},
		{"no CPU time left", func(a *Agent, _ *Admission) {
			a.teaching.refill(a.cfg.Now())
			a.teaching.spend(10 * time.Second)
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := toldAgent(t, nil)
			ad := Admission{Prompt: dense(prompt(1, 0, 0, 20)), QueuedAtProbe: -1, Route: openai.RouteChat, Model: "m"}
			tt.edit(a, &ad)
			b := mustAdmit(t, a, ad)
			ask := b.Ask()
			got := strings.Join(ask.Fields, " ")
			if b.WantsPrompt() && got == "" {
				got = "none needed"
			}
			if got != tt.want {
				t.Errorf("asks %q, want %q", got, tt.want)
			}
		})
	}
}

// TestTokensAreAskedForWhereEnginesTellThem: whether or not they would teach, until the engine refuses.
func TestTokensAreAskedForWhereEnginesTellThem(t *testing.T) {
	for _, tt := range []struct {
		kind  engine.Kind
		route openai.Route
		want  string
		style openai.Style
	}{
		{engine.KindVLLM, openai.RouteChat, "return_token_ids", openai.StyleNull},
		{engine.KindVLLM, openai.RouteCompletions, "return_token_ids", openai.StyleNull},
		{engine.KindVLLM, openai.RouteResponses, "", openai.StyleNull},
		{engine.KindSGLang, openai.RouteChat, "", openai.StyleAbsent},
		{engine.KindSGLang, openai.RouteCompletions, "return_token_ids", openai.StyleAbsent},
		{engine.KindTRTLLM, openai.RouteChat, "", openai.StyleAbsent},
	} {
		a := toldAgent(t, nil)
		a.engine.Kind, a.capability = tt.kind, newestOf(tt.kind)
		b := mustAdmit(t, a, Admission{QueuedAtProbe: -1, Route: tt.route, Traits: openai.TraitStream})
		if ask := b.AskTokens(); strings.Join(ask.Fields, " ") != tt.want || ask.Style != tt.style || ask.Usage {
			t.Errorf("%s, %s: asks %+v", tt.kind, tt.route, ask)
		}
		if b.AskRefused("return_token_ids"); len(b.AskTokens().Fields) != 0 {
			t.Errorf("%s, %s: asks again", tt.kind, tt.route)
		}
	}
}

func TestRefusedUsageCostsNoLessonOfItsOwn(t *testing.T) {
	for traits, want := range map[openai.Traits]bool{openai.TraitTokenPrompt: true, 0: false} {
		b := mustAdmit(t, toldAgent(t, nil), Admission{
			Prompt: dense(prompt(1, 0, 0, 20)), QueuedAtProbe: -1, Route: openai.RouteCompletions, Traits: openai.TraitStream | traits,
		})
		b.AskRefused(streamOptions)
		if ask := b.Ask(); b.WantsPrompt() != want || !ask.Empty() {
			t.Errorf("traits %b: wants the prompt %v, asks %+v; want %v and nothing", traits, b.WantsPrompt(), ask, want)
		}
	}
}

func TestCPUTimeForLearningComesBack(t *testing.T) {
	now := newClock()
	a := toldAgent(t, func(c *Config) { c.Now = now.Now })
	asks := func() bool {
		b := mustAdmit(t, a, Admission{Prompt: dense(prompt(1, 0, 0, 20)), QueuedAtProbe: -1, Route: openai.RouteChat})
		defer b.Finish(Outcome{})
		return b.WantsPrompt()
	}
	if !asks() {
		t.Fatal("nothing is asked at first")
	}
	a.teaching.spend(maxSpare + 400*time.Millisecond)
	if asks() {
		t.Error("asked with no time to spare")
	}
	now.advance(10 * time.Second) // brings back half a second of a core
	if !asks() {
		t.Error("not asked ten seconds later")
	}
}

func TestOneStreamInFourIsAskedForItsUsage(t *testing.T) {
	a := upAgent(t, func(c *Config) { c.Kind = engine.KindVLLM })
	a.noteDescription(engine.KindVLLM, nil, serverInfo{})
	asked := 0
	for i := range 40 {
		b := mustAdmit(t, a, Admission{
			Prompt: dense(prompt(1, 0, 0, 2)), QueuedAtProbe: -1, Route: openai.RouteChat, Traits: openai.TraitStream,
		})
		if b.Ask().Usage {
			asked++
		}
		b.Finish(Outcome{})
		traits := []openai.Traits{0, openai.TraitStream | openai.TraitUsage, openai.TraitStream | openai.TraitStreamOptions}
		b = mustAdmit(t, a, Admission{
			Prompt: dense(prompt(1, 0, 0, 2)), QueuedAtProbe: -1, Route: openai.RouteChat, Traits: traits[i%3],
		})
		if b.Ask().Usage {
			t.Fatalf("asked for usage with traits %b", traits[i%3])
		}
		b.Finish(Outcome{})
	}
	if asked != 10 {
		t.Errorf("asked %d of 40 streams, want 10", asked)
	}
}

// overlapOf books p and gives it up again.
func overlapOf(t *testing.T, a *Agent, p *cachestate.Prompt) int {
	t.Helper()
	b := mustAdmit(t, a, Admission{Prompt: p, QueuedAtProbe: -1, Route: openai.RouteChat, Model: "m"})
	defer b.Finish(Outcome{})
	return b.Overlap()
}

// keysTold is how many keys the digest of the GPU tier holds.
func keysTold(a *Agent) int {
	a.Publish()
	return int(a.Digests()[0].Keys)
}

func TestBlocksSpeakForWhatWasTaught(t *testing.T) {
	a := toldAgent(t, nil)
	p := dense(prompt(1, 0, 0, 20)) // 80,000 bytes
	tokens := tokensOf(1, 400)
	b := mustAdmit(t, a, Admission{Prompt: p, QueuedAtProbe: -1, Route: openai.RouteChat, Model: "m"})
	b.FirstContent()
	if keysTold(a) != 20 {
		t.Fatalf("%d keys by the mirror, want 20", keysTold(a))
	}
	b.Learn(tokens, time.Millisecond)
	if keysTold(a) != 0 {
		t.Errorf("%d keys of blocks that the engine has not stored", keysTold(a))
	}
	(*sink)(a).Apply(0, []cachestate.BlockEvent{storedTokens(tokens)})
	b.Finish(Outcome{HasUsage: true, Usage: openai.Usage{PromptTokens: 400, CompletionTokens: 8}})
	if got := overlapOf(t, a, p); got != 396 || keysTold(a) != 20 {
		t.Errorf("overlap %d and %d keys, want 396 and 20", got, keysTold(a))
	}
	(*sink)(a).Apply(0, []cachestate.BlockEvent{removedTokens(tokens, 50)})
	if got := overlapOf(t, a, p); got != 200 {
		t.Errorf("overlap %d after half was evicted, want 200", got)
	}
	e := a.Engine()
	if e.Residency != engine.ResidencyEvents {
		t.Errorf("residency %v", e.Residency)
	}
}

func TestLostEventsWithdrawWhatWasTold(t *testing.T) {
	for name, lose := range map[string]func(*sink){
		"lost":      func(s *sink) { s.Lost(0, "a test") },
		"restarted": func(s *sink) { s.Restarted(0, "a test") },
		"cleared":   func(s *sink) { s.Apply(0, []cachestate.BlockEvent{{Kind: cachestate.BlocksCleared}}) },
	} {
		t.Run(name, func(t *testing.T) {
			a := toldAgent(t, nil)
			p, tokens := dense(prompt(1, 0, 0, 20)), tokensOf(1, 400)
			b := mustAdmit(t, a, Admission{Prompt: p, QueuedAtProbe: -1, Route: openai.RouteChat, Model: "m"})
			b.FirstContent()
			b.Learn(tokens, 0)
			b.Finish(Outcome{})
			(*sink)(a).Apply(0, []cachestate.BlockEvent{storedTokens(tokens)})
			before := a.Engine().Generation
			lose((*sink)(a))
			if keysTold(a) != 0 || overlapOf(t, a, p) != 0 {
				t.Errorf("%d keys and overlap %d", keysTold(a), overlapOf(t, a, p))
			}
			if renewed := a.Engine().Generation > before; renewed != (name != "cleared") {
				t.Errorf("a new generation: %v", renewed)
			}
			(*sink)(a).Apply(0, []cachestate.BlockEvent{storedTokens(tokens)})
			if got := overlapOf(t, a, p); got != 396 {
				t.Errorf("overlap %d of a prompt that was stored again, want 396", got)
			}
		})
	}
}

// TestSourcesThatEndTakeTheirBlocksAlong: once an engine names no source, or another one, nothing tells any more when a
// block of the old one goes.
func TestSourcesThatEndTakeTheirBlocksAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine()
		source := func(port int) string { return fmt.Sprintf(`[{"endpoint":"tcp://engine:%d"}]`, port) }
		e.pages["/kv_event_sources"] = source(1)
		c := testConfig(e)
		c.DialEvents = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("nobody there") }
		a := newAgent(t, c)
		follow(t, a)
		time.Sleep(2 * time.Second)
		p, tokens := dense(prompt(1, 0, 0, 20)), tokensOf(1, 400)
		for _, next := range []string{source(2), "[]"} {
			(*sink)(a).Apply(0, []cachestate.BlockEvent{storedTokens(tokens)})
			b := mustAdmit(t, a, Admission{Prompt: p, QueuedAtProbe: -1, Route: openai.RouteChat, Model: "m"})
			b.FirstContent()
			b.Learn(tokens, 0)
			b.Finish(Outcome{})
			before := a.Engine()
			if before.Residency != engine.ResidencyEvents || keysTold(a) == 0 {
				t.Fatalf("residency by %v, %d keys", before.Residency, keysTold(a))
			}
			e.mu.Lock()
			e.pages["/kv_event_sources"] = next
			e.mu.Unlock()
			time.Sleep(describePeriod + 2*time.Second)
			now := a.Engine()
			if now.Residency != engine.ResidencyMirror || now.Generation == before.Generation || keysTold(a) != 0 {
				t.Errorf("residency by %v, the same generation: %v, %d keys",
					now.Residency, now.Generation == before.Generation, keysTold(a))
			}
		}
		if s := a.eventStats(); s.sources != 0 {
			t.Errorf("%d sources are followed", s.sources)
		}
	})
}

// TestFaultOfSourcesEnds: what hindered once is not told for ever.
func TestFaultOfSourcesEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFakeEngine()
		e.pages["/kv_event_sources"] = `[{"endpoint":"tcp://elsewhere:5557"}]`
		a := newAgent(t, testConfig(e))
		follow(t, a)
		time.Sleep(2 * time.Second)
		told := func() bool {
			return slices.ContainsFunc(a.Notes(), func(n string) bool { return strings.Contains(n, "elsewhere") })
		}
		if !told() {
			t.Errorf("notes %q", a.Notes())
		}
		e.mu.Lock()
		e.pages["/kv_event_sources"] = "[]"
		e.mu.Unlock()
		time.Sleep(describePeriod + 2*time.Second)
		if told() {
			t.Errorf("notes %q after the fault", a.Notes())
		}
	})
}

// TestScaleFollowsWhatIsReported: an engine whose KV events promise more than it finds is believed less.
func TestScaleFollowsWhatIsReported(t *testing.T) {
	a := toldAgent(t, nil)
	p, tokens := dense(prompt(1, 0, 0, 20)), tokensOf(1, 400)
	(*sink)(a).Apply(0, []cachestate.BlockEvent{storedTokens(tokens)})
	for range 200 {
		b := mustAdmit(t, a, Admission{Prompt: p, QueuedAtProbe: -1, Route: openai.RouteChat, Model: "m"})
		b.FirstContent()
		b.Learn(tokens, 0)
		b.Finish(Outcome{HasUsage: true, Usage: openai.Usage{PromptTokens: 400, CachedTokens: 100, HasCached: true}})
	}
	e := a.Engine()
	if e.Scale != 0.25 || e.Evidence != engine.EvidenceUsage {
		t.Errorf("scale %v by %v, want 0.25 by usage", e.Scale, e.Evidence)
	}
}

// TestCountersJudgeKVEvents: without cached tokens in its answers, an engine's counters say how far its KV events are true.
// The mirror's bound is not what was wrong.
func TestCountersJudgeKVEvents(t *testing.T) {
	for found, want := range map[int]float64{0: 0.25, 370: 1} { // of 396 tokens a prompt: the edge of a window takes some
		c := newClock()
		a := toldAgent(t, func(cfg *Config) { cfg.Now, cfg.CapacityTokens = c.Now, 1_000_000 })
		p, tokens := dense(prompt(1, 0, 0, 20)), tokensOf(1, 400)
		(*sink)(a).Apply(0, []cachestate.BlockEvent{storedTokens(tokens)})
		a.blocks.Teach(cachestate.Lesson{Prompt: p, Tokens: tokens})
		hits := 0.0
		for range 45 {
			for range 10 {
				serve(t, a, c, Admission{Prompt: p, Route: openai.RouteResponses}, 0, openai.Usage{PromptTokens: 400})
				hits += float64(found)
			}
			c.advance(counterPeriod)
			a.noteReading(&reading{hitTokens: hits, hasHits: true}, engine.KindVLLM, a.book.mark())
		}
		_, capacity, source := a.belief()
		if scale := a.Engine().Scale; scale != want || capacity != 1_000_000 || source != engine.EvidenceCounters {
			t.Errorf("%d found: scale %v, want %v; the mirror may use %d; by %v", found, scale, want, capacity, source)
		}
	}
}

func TestNotesNameWhatIsMissing(t *testing.T) {
	tests := []struct {
		name string
		edit func(*Agent)
		want string
	}{
		{"vllm without evidence", func(a *Agent) { a.evidence.silent = maxSilent }, "--enable-prompt-tokens-details"},
		{"sglang without evidence", func(a *Agent) {
			a.engine.Kind, a.evidence.silent = engine.KindSGLang, maxSilent
		}, "--enable-cache-report"},
		{"vllm with evidence in sum only", func(a *Agent) {
			a.evidence.silent, a.evidence.source = maxSilent, engine.EvidenceCounters
		}, "--enable-prompt-tokens-details"},
		{"trtllm without events", func(a *Agent) { a.engine.Kind, a.asked = engine.KindTRTLLM, true }, "event_buffer_max_size"},
		{"lost events", func(a *Agent) { a.noteFollowed(1); (*sink)(a).Lost(0, "of a test") }, "of a test"},
		{"events of a new release", func(a *Agent) { a.noteSkipped(3) }, "3 KV events"},
		{"vllm without events", func(*Agent) {}, "--kv-events-config"},
		{"no prefix cache", func(a *Agent) { a.reuses = false }, "by load alone"},
		{"events on another host", func(a *Agent) { a.noteEventFault("it is on another host") }, "on another host"},
		{"pages of one token", func(a *Agent) {
			a.noteFollowed(1)
			e := storedTokens(tokensOf(1, 4))
			e.BlockTokens, e.Hashes = 1, []uint64{1, 2, 3, 4}
			(*sink)(a).Apply(0, []cachestate.BlockEvent{e})
		}, "larger blocks"},
		{"an unknown cache group", func(a *Agent) {
			a.noteFollowed(1)
			e := storedTokens(tokensOf(1, 4))
			e.Group, e.GroupKind = 1, cachestate.GroupOther
			(*sink)(a).Apply(0, []cachestate.BlockEvent{e})
		}, "unknown kind"},
		{"an unstable layout", func(a *Agent) { a.layout.unstable = true }, "anew in each turn"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := upAgent(t, nil)
			a.engine.Kind = engine.KindVLLM
			tt.edit(a)
			notes := a.Notes()
			if !slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, tt.want) }) {
				t.Errorf("notes %s, none names %q", fmt.Sprintf("%q", notes), tt.want)
			}
		})
	}
}
