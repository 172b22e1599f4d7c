package main

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// retried is what one request gave that the client may have sent several times. retry.py and retry.mjs print the same.
type retried struct {
	Statuses []int  `json:"statuses"` // of all answers
	Text     string `json:"text"`
	Error    string `json:"error"`
}

// retry sends one chat completion with the client as it comes, which decides how often and when to try again.
func retry(base string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var r retried
	count := func(req *http.Request, next option.MiddlewareNext) (*http.Response, error) {
		resp, err := next(req)
		if err == nil {
			r.Statuses = append(r.Statuses, resp.StatusCode)
		}
		return resp, err
	}
	client := openai.NewClient(option.WithBaseURL(base), option.WithAPIKey("none"), option.WithMiddleware(count))
	answer, err := client.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{
		Model: "sim-model", MaxTokens: openai.Int(5),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Are you free?")},
	})
	if err != nil {
		r.Error = err.Error()
	} else {
		r.Text = answer.Choices[0].Message.Content
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}
