package simengine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAnswersGoOnFromAnyToken cuts answers everywhere: what an engine answers to the prompt and the first tokens of an
// answer, given as ids, is the rest.
func TestAnswersGoOnFromAnyToken(t *testing.T) {
	const user = `"messages":[{"role":"user","content":"tell me of the block"}]`
	for _, tt := range []struct {
		name, template, path, body string
		limit                      int // that the body names; 0 for none
	}{
		{"chat", TemplatePlain, "/v1/chat/completions", user, 0},
		{"chat, limit", TemplatePlain, "/v1/chat/completions", user + `,"max_tokens":20`, 20},
		{"chat, limit ignored end", TemplatePlain, "/v1/chat/completions", user + `,"max_tokens":60,"ignore_eos":true`, 60},
		{"chat with thoughts", TemplateDropsThoughts, "/v1/chat/completions", user, 0},
		{"chat with thoughts off", TemplateDropsThoughts, "/v1/chat/completions", user + `,"reasoning_effort":"none"`, 0},
		{"completion after words", TemplatePlain, "/v1/completions", `"prompt":"tell me of","max_tokens":99`, 99},
		{"completion after a full stop", TemplatePlain, "/v1/completions", `"prompt":"Once. ","max_tokens":99`, 99},
		{"completion after one word", TemplatePlain, "/v1/completions", `"prompt":"tell"`, completionLimit},
		{"completion of ids", TemplatePlain, "/v1/completions", `"prompt":[300,7,9],"max_tokens":30`, 30},
	} {
		for _, odd := range []float64{0, 1} {
			t.Run(fmt.Sprint(tt.name, odd), func(t *testing.T) { goOnEverywhere(t, tt.template, tt.path, tt.body, tt.limit, odd) })
		}
	}
}

func goOnEverywhere(t *testing.T, template, path, body string, limit int, odd float64) {
	cfg := DefaultConfig()
	cfg.Template, cfg.AnswerTokens, cfg.RetokenizeRate, cfg.Seed = template, 40, odd, 1
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	body = fmt.Sprintf(`{"model":%q,%s}`, cfg.Model, body)
	var c *call
	if path == "/v1/completions" {
		c, err = e.completionCall(&http.Request{}, []byte(body))
	} else {
		c, err = e.chatCall(&http.Request{}, []byte(body))
	}
	if err != nil {
		t.Fatal(err)
	}
	j := c.jobs[0]
	if limit == 0 {
		limit = e.cfg.MaxContext - j.prompt
	}
	for k := range j.answer() {
		if k == 0 && j.thinking > 0 {
			continue // a completion of the prompt alone is not known to begin with a thought
		}
		ids, _ := json.Marshal(j.seq.tokens[:j.prompt+k])
		rest, err := e.Answer("/v1/completions", fmt.Appendf(nil, `{"model":%q,"prompt":%s,"max_tokens":%d,"ignore_eos":%t}`,
			cfg.Model, ids, limit-k, c.IgnoreEOS))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(j.answer()[k:], rest.TokenIDs); diff != "" || rest.FinishReason != j.finishReason() {
			t.Fatalf("after %d tokens, ends by %s for %s (-want +got):\n%s", k, rest.FinishReason, j.finishReason(), diff)
		}
	}
}

// TestAnAnswerToAnotherPromptIsNotGoneOnWith: a context that only looks like the beginning of an answer has its own.
func TestAnAnswerToAnotherPromptIsNotGoneOnWith(t *testing.T) {
	e, err := New(DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	context := e.tok.encode(nil, "Once tell me of the block")
	got, _, _ := e.words.answer(context, answerSpec{limit: 50})
	want, _, _ := e.words.whole(context, answerSpec{limit: 50})
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
