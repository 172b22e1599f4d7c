package engineagent

import (
	"context"
	"encoding/json"
	"errors"
	"hash/fnv"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
	"github.com/kvmesh/kvmesh/internal/simengine"
)

const seenByTokenize = openai.LayoutToolsFirst | openai.LayoutEffortHead | openai.LayoutNoDocuments | openai.LayoutHeadLast

func TestLayoutsOfSimulatedEnginesAreFound(t *testing.T) {
	tests := []struct {
		template string
		want     layoutFinding
	}{
		{simengine.TemplatePlain, layoutFinding{}},
		{simengine.TemplateToolsFirst, layoutFinding{layout: openai.LayoutToolsFirst}},
		{simengine.TemplateDropsThoughts, layoutFinding{dropsThoughts: true}},
		{simengine.TemplateToolsInLastUser, layoutFinding{layout: openai.LayoutHeadLast, unstable: true}},
		{simengine.TemplateDated, layoutFinding{layout: openai.LayoutEffortHead}},
	}
	for _, kind := range []string{simengine.KindVLLM, simengine.KindSGLang} {
		for _, tt := range tests {
			t.Run(kind+" "+tt.template, func(t *testing.T) {
				want := tt.want
				want.path = tokenizePath
				want.layout |= openai.LayoutNoDocuments // none of them renders any
				want.known = seenByTokenize
				if kind == simengine.KindSGLang {
					want.layout |= openai.LayoutToolsFiltered
					want.known |= openai.LayoutToolsFiltered
				}
				a := simAgent(t, func(c *simengine.Config) { c.Kind, c.Template = kind, tt.template })
				e := engine.Engine{Kind: engine.Kind(kind), Models: []engine.Model{{Name: "sim-model"}}}
				got, settled := a.findLayout(t.Context(), &e)
				if kind == simengine.KindVLLM { // known if its render route is turned on
					got.known &^= openai.LayoutToolsFiltered | openai.LayoutConstraintsHead
				}
				if diff := cmp.Diff(want, got, cmp.AllowUnexported(layoutFinding{})); diff != "" || !settled {
					t.Errorf("settled %v, finding differs (-want +got):\n%s", settled, diff)
				}
			})
		}
	}
}

// fakeRequest is what a template sees.
type fakeRequest struct {
	Model    string `json:"model"`
	Messages []struct {
		Role      string `json:"role"`
		Content   string `json:"content"`
		Reasoning string `json:"reasoning"`
	} `json:"messages"`
	Tools   []json.RawMessage `json:"tools"`
	Options struct {
		Effort    string            `json:"reasoning_effort"`
		Think     *bool             `json:"enable_thinking"`
		Documents []json.RawMessage `json:"documents"`
	} `json:"chat_template_kwargs"`
	ToolChoice string          `json:"tool_choice"`
	Form       json.RawMessage `json:"response_format"`
}

// fake is a renderer with a template of the test's own.
type fake struct {
	template func(*fakeRequest) string
	split    func(string) []string
	status   func(path string, r *fakeRequest) int // 0 is 200
	asked    int
	longest  int
}

func (f *fake) ask(_ context.Context, path string, body any) ([]uint32, error) {
	f.asked++
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	var r fakeRequest
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, err
	}
	if f.status != nil {
		if code := f.status(path, &r); code != 0 {
			return nil, &statusError{code}
		}
	}
	if path == tokenizePath { // does not know these
		r.ToolChoice, r.Form = "", nil
	}
	var ids []uint32
	for _, s := range f.split(f.template(&r)) {
		h := fnv.New32a()
		h.Write([]byte(s))
		ids = append(ids, h.Sum32())
	}
	f.longest = max(f.longest, len(ids))
	return ids, nil
}

var (
	word = regexp.MustCompile(`<\|[a-z]+\|>| ?[A-Za-z]+|[0-9]|\s+|[^A-Za-z0-9\s]+`)
	// joined makes one token of a word and the line break or mark beside it.
	joined = regexp.MustCompile(`<\|[a-z]+\|>|\n?[A-Za-z]+\n?| [A-Za-z]+[\n.]*|[0-9]|\s+|[^A-Za-z0-9\s]+`)
)

func byWord(s string) []string   { return word.FindAllString(s, -1) }
func byJoined(s string) []string { return joined.FindAllString(s, -1) }

func turn(role, text string) string { return "<|start|>" + role + "\n" + text + "<|end|>\n" }

func toolText(r *fakeRequest) string {
	var b strings.Builder
	for _, t := range r.Tools {
		b.WriteString("\n" + string(t))
	}
	return b.String()
}

// chatOf renders system text and tools with head before, between and after them, then the other messages.
func chatOf(r *fakeRequest, head string, thoughts bool) string {
	var b strings.Builder
	b.WriteString(head)
	for _, m := range r.Messages {
		text := m.Content
		switch {
		case m.Role == "system":
			text += toolText(r)
		case m.Reasoning != "" && thoughts:
			text = "<|think|>" + m.Reasoning + "<|think|>" + text
		}
		b.WriteString(turn(m.Role, text))
	}
	return b.String() + "<|start|>assistant\n"
}

func lastUserOf(r *fakeRequest) int { return len(r.Messages) - 1 }

// orElse is s, or what stands for an empty one.
func orElse(s, empty string) string {
	if s == "" {
		return empty
	}
	return s
}

func thinks(r *fakeRequest, byDefault bool) bool {
	if r.Options.Think == nil {
		return byDefault
	}
	return *r.Options.Think
}

func TestLayoutsAreFoundByWhereRenderingsPart(t *testing.T) {
	tests := []struct {
		name     string
		template func(*fakeRequest) string
		want     layoutFinding // layout without NoDocuments, which is the rule
		docs     bool
	}{
		{"plain", func(r *fakeRequest) string { return chatOf(r, "", true) }, layoutFinding{}, false},
		{"thoughts dropped", func(r *fakeRequest) string { return chatOf(r, "", false) }, layoutFinding{dropsThoughts: true}, false},
		{"effort at the head", func(r *fakeRequest) string {
			return chatOf(r, turn("system", "Knowledge until 2024\nReasoning: "+orElse(r.Options.Effort, "medium")), true)
		}, layoutFinding{layout: openai.LayoutEffortHead}, false},
		{"thinking at the head, off by default", func(r *fakeRequest) string {
			head := ""
			if thinks(r, false) {
				head = "<|think|>"
			}
			return chatOf(r, head, true)
		}, layoutFinding{layout: openai.LayoutEffortHead}, false},
		{"thinking between system text and question", func(r *fakeRequest) string {
			if thinks(r, true) {
				r.Messages[0].Content += "\nThink first."
			}
			return chatOf(r, "", true)
		}, layoutFinding{layout: openai.LayoutEffortHead}, false},
		{"thinking at the tail", func(r *fakeRequest) string {
			s := chatOf(r, "", false)
			if !thinks(r, true) {
				s += "<|think|>\n\n<|think|>\n\n"
			}
			return s
		}, layoutFinding{dropsThoughts: true}, false},
		{"thinking after the question", func(r *fakeRequest) string {
			if !thinks(r, true) {
				r.Messages[lastUserOf(r)].Content += " /nothink"
			}
			return chatOf(r, "", true)
		}, layoutFinding{}, false},
		{"documents at the head", func(r *fakeRequest) string {
			head := ""
			for _, d := range r.Options.Documents {
				head += turn("document", string(d))
			}
			return chatOf(r, head, true)
		}, layoutFinding{}, true},
		{"tools first, in a turn of their own", func(r *fakeRequest) string {
			head := ""
			if len(r.Tools) > 0 {
				head = turn("tools", toolText(r))
			}
			r.Tools = nil
			return chatOf(r, head, true)
		}, layoutFinding{layout: openai.LayoutToolsFirst}, false},
		{"a word about tools first, tools later", func(r *fakeRequest) string {
			head := turn("system", "You are a model")
			if len(r.Tools) > 0 {
				head = turn("system", "You are a model\nCalls go to the other channel")
			}
			return chatOf(r, head, true)
		}, layoutFinding{layout: openai.LayoutToolsFirst}, false},
		{"tools in the first question", func(r *fakeRequest) string {
			r.Messages[1].Content = toolText(r) + "\n" + r.Messages[1].Content
			r.Tools = nil
			return chatOf(r, "", true)
		}, layoutFinding{}, false},
		{"tools in the last question", func(r *fakeRequest) string {
			r.Messages[lastUserOf(r)].Content = toolText(r) + "\n" + r.Messages[lastUserOf(r)].Content
			r.Tools = nil
			return chatOf(r, "", true)
		}, layoutFinding{unstable: true}, false},
		{"all in the last question", func(r *fakeRequest) string {
			last := &r.Messages[lastUserOf(r)].Content
			*last = toolText(r) + "\n" + r.Messages[0].Content + "\n\n" + *last
			r.Tools, r.Messages = nil, r.Messages[1:]
			return chatOf(r, "", true)
		}, layoutFinding{layout: openai.LayoutToolsFirst | openai.LayoutHeadLast, unstable: true}, false},
		{"system text in the last question, tools at the head", func(r *fakeRequest) string {
			head := turn("tools", toolText(r))
			last := &r.Messages[lastUserOf(r)].Content
			*last = r.Messages[0].Content + "\n\n" + *last
			r.Tools, r.Messages = nil, r.Messages[1:]
			return chatOf(r, head, true)
		}, layoutFinding{layout: openai.LayoutToolsFirst | openai.LayoutHeadLast, unstable: true}, false},
		{"system text in the first question, tools in the last", func(r *fakeRequest) string {
			r.Messages[lastUserOf(r)].Content = toolText(r) + "\n" + r.Messages[lastUserOf(r)].Content
			r.Messages[1].Content = r.Messages[0].Content + "\n\n" + r.Messages[1].Content
			r.Tools, r.Messages = nil, r.Messages[1:]
			return chatOf(r, "", true)
		}, layoutFinding{unstable: true}, false},
		{"tools at the very end", func(r *fakeRequest) string {
			tools := toolText(r)
			r.Tools = nil
			s := strings.TrimSuffix(chatOf(r, "", true), "<|start|>assistant\n")
			if tools != "" {
				s += turn("tools", tools)
			}
			return s + "<|start|>assistant\n"
		}, layoutFinding{}, false},
		{"tools at the very end, effort at the head", func(r *fakeRequest) string {
			tools := toolText(r)
			r.Tools = nil
			return chatOf(r, turn("system", orElse(r.Options.Effort, "medium")), true) + tools
		}, layoutFinding{layout: openai.LayoutEffortHead}, false},
		{"effort after a long head that comes only with it", func(r *fakeRequest) string {
			head := ""
			if r.Options.Effort != "" {
				head = turn("system", strings.Repeat("Think as much as you are told to ", 12)+r.Options.Effort)
			}
			return chatOf(r, head, true)
		}, layoutFinding{layout: openai.LayoutEffortHead}, false},
		{"no system text beside tools", func(r *fakeRequest) string {
			if len(r.Tools) > 0 {
				r.Messages[0].Content = "You have tools"
			}
			return chatOf(r, "", true)
		}, layoutFinding{layout: openai.LayoutToolsFirst}, false},
		{"tools are not rendered", func(r *fakeRequest) string {
			r.Tools = nil
			return chatOf(r, "", true)
		}, layoutFinding{}, false},
		{"no marks at all", func(r *fakeRequest) string {
			var b strings.Builder
			for _, m := range r.Messages {
				b.WriteString(strings.ToUpper(m.Role) + ": " + m.Content + "\n")
			}
			return b.String() + "ASSISTANT:"
		}, layoutFinding{dropsThoughts: true}, false},
	}
	for _, tt := range tests {
		for name, split := range map[string]func(string) []string{"words": byWord, "joined": byJoined} {
			t.Run(tt.name+", "+name, func(t *testing.T) {
				f := &fake{template: tt.template, split: split, status: noRender}
				got, err := probeLayout(t.Context(), f.ask, engine.KindVLLM, "m")
				want := tt.want
				want.known, want.path = seenByTokenize, tokenizePath
				if !tt.docs {
					want.layout |= openai.LayoutNoDocuments
				}
				if diff := cmp.Diff(want, got, cmp.AllowUnexported(layoutFinding{})); diff != "" || err != nil {
					t.Errorf("error %v, finding differs (-want +got):\n%s", err, diff)
				}
				if f.asked > 8 || f.longest > 300 {
					t.Errorf("%d renderings of up to %d tokens", f.asked, f.longest)
				}
			})
		}
	}
}

// noRender is a server whose render route is turned off.
func noRender(path string, _ *fakeRequest) int {
	if path == renderPath {
		return 403
	}
	return 0
}

func TestConstraintsAreSeenByTheRenderRoute(t *testing.T) {
	const both = openai.LayoutToolsFiltered | openai.LayoutConstraintsHead
	filtered := func(r *fakeRequest) string {
		if r.ToolChoice == "none" {
			r.Tools = nil
		}
		return chatOf(r, "", true)
	}
	tests := []struct {
		name        string
		template    func(*fakeRequest) string
		kind        engine.Kind
		status      func(string, *fakeRequest) int
		want, known openai.Layout
	}{
		{"kept", func(r *fakeRequest) string { return chatOf(r, "", true) }, engine.KindVLLM, nil, 0, both},
		{"filtered", filtered, engine.KindVLLM, nil, openai.LayoutToolsFiltered, both},
		{"form at the head", func(r *fakeRequest) string {
			return chatOf(r, string(r.Form), true)
		}, engine.KindVLLM, nil, openai.LayoutConstraintsHead, both},
		{"form at the tail", func(r *fakeRequest) string {
			return chatOf(r, "", true) + string(r.Form)
		}, engine.KindVLLM, nil, 0, both},
		{"form refused", filtered, engine.KindVLLM, func(_ string, r *fakeRequest) int {
			return len(r.Form) * 400 / max(len(r.Form), 1)
		}, openai.LayoutToolsFiltered, openai.LayoutToolsFiltered},
		{"no tokenize", filtered, engine.KindVLLM, func(path string, _ *fakeRequest) int {
			return map[string]int{tokenizePath: 404}[path]
		}, openai.LayoutToolsFiltered, both},
		{"a tokenize that takes no messages", filtered, engine.KindVLLM, func(path string, _ *fakeRequest) int {
			return map[string]int{tokenizePath: 400}[path]
		}, openai.LayoutToolsFiltered, both},
		{"sglang, choice not known", filtered, engine.KindSGLang, noRender, 0, openai.LayoutToolsFiltered},
	}
	for _, tt := range tests {
		f := &fake{template: tt.template, split: byWord, status: tt.status}
		got, err := probeLayout(t.Context(), f.ask, tt.kind, "m")
		path := tokenizePath
		if tt.status != nil && tt.status(tokenizePath, &fakeRequest{}) != 0 {
			path = renderPath
		}
		if err != nil || got.path != path || got.layout != tt.want|openai.LayoutNoDocuments || got.known != tt.known|seenByTokenize {
			t.Errorf("%s: layout %b of known %b by %s, error %v; want %b of %b by %s", tt.name, got.layout, got.known, got.path, err,
				tt.want|openai.LayoutNoDocuments, tt.known|seenByTokenize, path)
		}
	}
}

func TestWhatIsRefusedStaysUnknown(t *testing.T) {
	inLast := func(r *fakeRequest) string {
		last := &r.Messages[lastUserOf(r)].Content
		*last = r.Messages[0].Content + *last
		r.Messages = r.Messages[1:]
		return chatOf(r, "", true)
	}
	deny := func(what func(*fakeRequest) bool) func(string, *fakeRequest) int {
		return func(path string, r *fakeRequest) int {
			if what(r) || path == renderPath {
				return 400
			}
			return 0
		}
	}
	tests := []struct {
		name   string
		status func(string, *fakeRequest) int
		want   layoutFinding
	}{
		{"tools", deny(func(r *fakeRequest) bool { return len(r.Tools) > 0 }), layoutFinding{
			layout: openai.LayoutNoDocuments | openai.LayoutHeadLast, unstable: true,
			known: openai.LayoutNoDocuments | openai.LayoutEffortHead | openai.LayoutHeadLast,
		}},
		{"documents", deny(func(r *fakeRequest) bool { return len(r.Options.Documents) > 0 }), layoutFinding{
			layout: openai.LayoutHeadLast, unstable: true,
			known: openai.LayoutToolsFirst | openai.LayoutEffortHead | openai.LayoutHeadLast,
		}},
		{"one effort", deny(func(r *fakeRequest) bool { return r.Options.Effort == "high" }), layoutFinding{
			layout: openai.LayoutNoDocuments | openai.LayoutHeadLast, unstable: true,
			known: openai.LayoutNoDocuments | openai.LayoutToolsFirst | openai.LayoutHeadLast,
		}},
		{"a second turn", deny(func(r *fakeRequest) bool { return len(r.Messages) > 2 }), layoutFinding{
			layout: openai.LayoutNoDocuments, known: seenByTokenize &^ openai.LayoutHeadLast,
		}},
		{"another system text", deny(func(r *fakeRequest) bool { return r.Messages[0].Content == otherSystem }), layoutFinding{
			layout: openai.LayoutNoDocuments, known: openai.LayoutNoDocuments,
		}},
	}
	for _, tt := range tests {
		f := &fake{template: inLast, split: byWord, status: tt.status}
		got, err := probeLayout(t.Context(), f.ask, engine.KindVLLM, "m")
		tt.want.path = tokenizePath
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(layoutFinding{})); diff != "" || err != nil {
			t.Errorf("%s refused: error %v, finding differs (-want +got):\n%s", tt.name, err, diff)
		}
	}
}

func TestAProbeEndsWithTheFirstFailure(t *testing.T) {
	tests := []struct {
		name    string
		failAt  int
		err     error
		kind    engine.Kind
		asked   int
		refused bool
	}{
		{"vllm without any route", 1, &statusError{404}, engine.KindVLLM, 2, true},
		{"sglang without the route", 1, &statusError{404}, engine.KindSGLang, 1, true},
		{"no answer", 1, context.DeadlineExceeded, engine.KindVLLM, 1, false},
		{"an error of the server", 1, &statusError{500}, engine.KindVLLM, 1, false},
		{"no answer later", 4, context.DeadlineExceeded, engine.KindVLLM, 4, false},
		{"no answer to the last", 8, context.DeadlineExceeded, engine.KindSGLang, 8, false},
	}
	for _, tt := range tests {
		f := &fake{template: func(r *fakeRequest) string { return chatOf(r, "", true) }, split: byWord}
		ask := func(ctx context.Context, path string, body any) ([]uint32, error) {
			ids, err := f.ask(ctx, path, body)
			if f.asked >= tt.failAt {
				return nil, tt.err
			}
			return ids, err
		}
		got, err := probeLayout(t.Context(), ask, tt.kind, "m")
		if !errors.Is(err, tt.err) || got != (layoutFinding{}) || f.asked != tt.asked || refused(err) != tt.refused {
			t.Errorf("%s: finding %+v, error %v, %d asked, refused %v", tt.name, got, err, f.asked, refused(err))
		}
	}
}

func TestTextsOfTheProbeShareNoThreeWords(t *testing.T) {
	texts := []string{firstSystem, otherSystem, firstQuestion, otherQuestion, nextQuestion, firstAnswer}
	seen := make(map[string]string)
	for _, text := range texts {
		words := strings.Fields(strings.ToLower(text))
		for i := range len(words) - 2 {
			three := strings.Join(words[i:i+3], " ")
			if in, ok := seen[three]; ok {
				t.Errorf("%q stands in %q and in %q", three, in, text)
			}
			seen[three] = text
		}
		for _, o := range texts {
			others := strings.Fields(strings.ToLower(o))
			if o != text && (others[0] == words[0] || others[len(others)-1] == words[len(words)-1]) {
				t.Errorf("%q and %q begin or end alike", text, o)
			}
		}
	}
}

func TestEngineIsExaminedWhileItIsIdle(t *testing.T) {
	a := simAgent(t, func(c *simengine.Config) {
		c.Template, c.Version = simengine.TemplateToolsInLastUser, "dev" // only its schema tells
	})
	cards := []card{{ID: "sim-model", OwnedBy: "vllm"}}
	a.noteDescription(engine.KindVLLM, cards, serverInfo{})
	a.noteReading(&reading{running: 1}, engine.KindVLLM, a.book.mark())
	if a.examine(t.Context()) || len(a.capability.chat) > 0 || a.layout.unstable {
		t.Errorf("a working engine: capability %+v, layout %+v", a.capability, a.layout)
	}
	a.noteReading(&reading{}, engine.KindVLLM, a.book.mark())
	if !a.examine(t.Context()) || len(a.capability.chat) == 0 || !a.layout.unstable ||
		!a.Engine().Models[0].HasLayout {
		t.Errorf("an idle engine: capability %+v, layout %+v, engine %+v", a.capability, a.layout, a.Engine())
	}
}

func TestOtherKindsAreNotProbed(t *testing.T) {
	for _, kind := range []engine.Kind{engine.KindTRTLLM, engine.KindOther} {
		f := newFakeEngine()
		a := newAgent(t, testConfig(f))
		a.noteDescription(kind, []card{{ID: "m"}}, serverInfo{})
		if !a.examine(t.Context()) || len(f.asked) > 0 {
			t.Errorf("%s: asked %v", kind, f.asked)
		}
	}
}

func TestTokenIDsAreBounded(t *testing.T) {
	tests := []struct {
		body string
		want []uint32
	}{
		{`{"count":2,"max_model_len":9,"tokens":[1,488],"token_strs":null}`, []uint32{1, 488}},
		{`{"request_id":"chatcmpl-1","token_ids":[7],"features":null,"sampling_params":{}}`, []uint32{7}},
		{`{"tokens":[]}`, nil},
		{`{"tokens":[-1]}`, nil},
		{`{"tokens":[[1],[2]]}`, nil},
		{`{"tokens":[4294967296]}`, nil},
		{`[1]`, nil},
		{`{"tokens":[` + strings.Repeat("1,", 100) + `1]}`, nil},
	}
	for _, tt := range tests {
		if got, err := parseTokens([]byte(tt.body), 100); !slices.Equal(got, tt.want) || (err == nil) != (tt.want != nil) {
			t.Errorf("%.40s: %d ids, error %v", tt.body, len(got), err)
		}
	}
}

func FuzzParseTokens(f *testing.F) {
	f.Add([]byte(`{"tokens":[1,2]}`))
	f.Add([]byte(`{"token_ids":[1],"tokens":[2]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if ids, err := parseTokens(b, 100); (err == nil) != (len(ids) > 0) || len(ids) > 100 {
			t.Errorf("%d ids, error %v", len(ids), err)
		}
	})
}

// FuzzFinding compares renderings of any form: none may break the comparison.
func FuzzFinding(f *testing.F) {
	f.Add([]byte("abcdefghij"), []byte("abcXdefghij"), []byte("abcdYfghij"), []byte("abcdefghijklm"))
	f.Add([]byte(""), []byte("a"), []byte(""), []byte("aaaaaaaaaaaaaaaa"))
	f.Fuzz(func(t *testing.T, base, tools, other, turns []byte) {
		r := renderings{base: idsOf(base), tools: idsOf(tools), other: idsOf(other), turns: idsOf(turns)}
		r.low, r.high, r.docs, r.none, r.form = r.other, r.turns, r.tools, r.base, r.low
		got := r.finding(true)
		if got.layout&^got.known != 0 {
			t.Errorf("bits %b that are not known (%b)", got.layout, got.known)
		}
	})
}

func idsOf(b []byte) []uint32 {
	ids := []uint32{}
	for _, c := range b {
		ids = append(ids, uint32(c))
	}
	return ids
}
