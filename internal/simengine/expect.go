package simengine

import (
	"fmt"
	"net/http"
)

// Answer is all that a client gets to read of an answer.
type Answer struct {
	Text             string
	Thought          string // where a parser tells it from the text
	FinishReason     string
	PromptTokens     int
	CompletionTokens int
	TokenIDs         []Token // of the answer, its end mark included
}

// Answer returns the first choice of what the engine answers to a body for /v1/chat/completions or /v1/completions, without
// the time that it takes. Engines of the same template, AnswerTokens, RetokenizeRate and MaxContext answer alike.
func (e *Engine) Answer(path string, body []byte) (Answer, error) {
	var c *call
	var err error
	r := &http.Request{}
	switch path {
	case "/v1/chat/completions":
		c, err = e.chatCall(r, body)
	case "/v1/completions":
		c, err = e.completionCall(r, body)
	default:
		return Answer{}, fmt.Errorf("no answer is known of %s", path)
	}
	if err != nil {
		return Answer{}, err
	}
	j := c.jobs[0]
	text, thought := e.text(c, j)
	return Answer{text, thought, j.finishReason(), j.prompt, len(j.answer()), j.answer()}, nil
}
