package forward

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/internal/openai"
	"github.com/kvmesh/kvmesh/internal/simengine"
)

// What differs between two answers to one request: when it came, and ids that are drawn.
var (
	madeAt  = regexp.MustCompile(`"(created|created_at|completed_at)":[0-9.]+`)
	drawnID = regexp.MustCompile(`((?:chatcmpl|cmpl|resp|msg|message|reasoning)[-_]|"signature":")[0-9a-f-]{16,}`)
)

func comparable(body string) string {
	return drawnID.ReplaceAllString(madeAt.ReplaceAllString(body, `"$1":0`), "$1")
}

// engineAnswer is what an engine of the kind gives to a request that comes to it directly.
func engineAnswer(t *testing.T, c simengine.Config, path, body string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	newEngine(t, c).ServeHTTP(w, r)
	return w
}

func newEngine(t *testing.T, c simengine.Config) http.Handler {
	t.Helper()
	e, err := simengine.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return e.Handler()
}

// stripCase is one request to one kind of engine, and what its owner adds.
type stripCase struct {
	name   string
	engine simengine.Config
	path   string
	body   string
	ask    openai.Ask
}

// stripCases are all kinds, templates, routes and ways of asking that an owner may meet.
func stripCases() []stripCase {
	var list []stripCase
	for _, kind := range []string{simengine.KindVLLM, simengine.KindSGLang, simengine.KindTRTLLM} {
		for _, template := range []string{simengine.TemplatePlain, simengine.TemplateDropsThoughts} {
			for _, force := range []bool{false, true} {
				c := simengine.DefaultConfig()
				c.Kind, c.Template, c.Model, c.Seed, c.AnswerTokens, c.ForceIncludeUsage = kind, template, "m", 1, 24, force
				if force && (kind != simengine.KindVLLM || template == simengine.TemplatePlain) {
					continue // others give no sign of it before the usage comes: their agents ask what they were started with
				}
				for _, r := range stripRequests() {
					r.engine = c
					r.name = fmt.Sprintf("%s/%s/force=%t/%s%s", kind, template, force, r.path, r.name)
					r.ask = askFor(kind, &r)
					list = append(list, r)
				}
			}
		}
	}
	return list
}

// askFor is what the table of who tells what allows to ask.
func askFor(kind string, r *stripCase) openai.Ask {
	ask := openai.Ask{Style: openai.StyleAbsent}
	switch stream := strings.Contains(r.body, `"stream":true`); {
	case kind == simengine.KindVLLM:
		ask.Style, ask.Usage = openai.StyleNull, true
		if r.path == chatPath || r.path == completionPath {
			ask.Fields = []string{"return_token_ids"}
		}
	case kind == simengine.KindSGLang && r.path == completionPath:
		ask.Fields, ask.Usage = []string{"return_token_ids"}, true
	case kind == simengine.KindSGLang && r.path == chatPath && !stream:
		ask.Fields = []string{"return_prompt_token_ids"}
	default:
		ask.Usage = true
	}
	ask.Usage = ask.Usage && (r.path == chatPath || r.path == completionPath)
	return ask
}

func stripRequests() []stripCase {
	const (
		user     = `{"role":"user","content":"tell me of the prefix, please"}`
		function = `{"name":"f","description":"d","parameters":{"type":"object"}}`
	)
	streams := []string{
		``, `,"stream":true`, `,"stream":true,"stream_options":{"include_usage":true}`,
		`,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`,
	}
	var list []stripCase
	add := func(path, body string, more ...string) {
		for _, stream := range streams {
			for _, m := range append([]string{""}, more...) {
				list = append(list, stripCase{name: stream + m, path: path, body: `{"model":"m",` + body + m + stream + `}`})
			}
		}
	}
	add(chatPath, `"messages":[`+user+`]`, `,"n":4`, `,"tools":[{"type":"function","function":`+function+`}]`)
	add(completionPath, `"max_tokens":40,"prompt":"tell me of the prefix"`, `,"n":4`, `,"echo":true`)
	add(completionPath, `"prompt":[1,2,3]`)
	streams = streams[:2]
	add("/v1/responses", `"input":"tell me of the prefix","store":false`, `,"tools":[{"type":"function","name":"f","parameters":{}}]`)
	add("/v1/messages", `"max_tokens":40,"messages":[`+user+`]`, `,"tools":[{"name":"f","input_schema":{"type":"object"}}]`)
	return list
}

// TestClientsGetWhatTheEngineWouldHaveSent asks each engine once directly and once through an owner that adds fields.
func TestClientsGetWhatTheEngineWouldHaveSent(t *testing.T) {
	asked, taught := 0, 0
	for i, tt := range stripCases() {
		t.Run(tt.name, func(t *testing.T) {
			mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
				owner, other := a, b
				if i%5 == 0 { // over the wire
					owner, other = b, a
				}
				other.book.refuse = "draining"
				owner.book.ask, owner.book.wantsPrompt = tt.ask, true
				var sent string
				engine := newEngine(t, tt.engine)
				owner.engine = recording(engine, &sent)
				want := engineAnswer(t, tt.engine, tt.path, tt.body)
				got := a.post(t.Context(), tt.body, func(r *http.Request) { r.URL.Path = tt.path })
				if got.Code != want.Code || got.Header().Get("Content-Type") != want.Header().Get("Content-Type") {
					t.Errorf("got %d %v, want %d %v", got.Code, got.Header(), want.Code, want.Header())
				}
				if diff := cmp.Diff(comparable(want.Body.String()), comparable(got.Body.String())); diff != "" {
					t.Errorf("%s (-engine +owner):\n%s", sent, diff)
				}
				if length := got.Header().Get("Content-Length"); length != "" && length != fmt.Sprint(got.Body.Len()) {
					t.Errorf("Content-Length %s for %d bytes", length, got.Body.Len())
				}
				if sent != tt.body {
					asked++
				}
				ids := promptIDs(t, &tt)
				if lessons := owner.book.lessons; ids == nil && len(lessons) > 0 || ids != nil && (len(lessons) != 1 || !slices.Equal(lessons[0], ids)) {
					t.Errorf("taught %v, want %v once: %d", lessons, ids, want.Code)
				}
				taught += len(owner.book.lessons)
			})
		})
	}
	if asked < 100 || taught < 50 {
		t.Errorf("only %d requests were added to, and %d taught: the test proves little", asked, taught)
	}
}

// promptIDs is what the case can teach: the ids that the engine gives when it is asked as nobody asks it here.
func promptIDs(t *testing.T, c *stripCase) []uint32 {
	if strings.Contains(c.body, `"n":4`) {
		return nil
	}
	if strings.Contains(c.body, `"prompt":[1,2,3]`) {
		return []uint32{1, 2, 3}
	}
	if len(c.ask.Fields) == 0 || strings.Contains(c.body, `"echo":true`) {
		return nil
	}
	ask := openai.Ask{Fields: c.ask.Fields}
	body := ask.Apply([]byte(c.body))
	answer := engineAnswer(t, c.engine, c.path, string(body)).Body.String()
	_, list, ok := strings.Cut(answer, `"prompt_token_ids":[`)
	if !ok {
		t.Fatalf("no ids in %s", answer)
	}
	list, _, _ = strings.Cut(list, "]")
	return openai.ParseIDs([]byte("[" + list + "]"))
}
