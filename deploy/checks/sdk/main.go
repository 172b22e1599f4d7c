// Command sdk sends the same chat completions with the openai-go client and prints what came back: one line of JSON a
// case with the raw body and the text that the client put together. The check runs it once against an engine and once
// against an agent and compares. sdk.mjs does the same with the npm client. It is a module of its own, so that the
// client stays out of kvmesh's dependencies.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

func main() {
	base := flag.String("base", "", "base URL, http://HOST:PORT/v1")
	cases := flag.String("cases", "cases.json", "file with the requests")
	again := flag.Bool("retry", false, "send one request instead, again when the answer says so")
	flag.Parse()
	do := func() error { return run(*base, *cases) }
	if *again {
		do = func() error { return retry(*base) }
	}
	if err := do(); err != nil {
		fmt.Fprintln(os.Stderr, "sdk:", err)
		os.Exit(1)
	}
}

// testCase is one request. Body is what both clients send, with or without "stream".
type testCase struct {
	Name string          `json:"name"`
	Body json.RawMessage `json:"body"`
}

// result is what one request gave.
type result struct {
	Case   string `json:"case"`
	Engine string `json:"engine"` // x-kvmesh-engine; empty from an engine itself
	Body   string `json:"body"`
	Text   string `json:"text"`
}

func run(base, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var cases []testCase
	if err := json.Unmarshal(text, &cases); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	for _, c := range cases {
		r, err := ask(base, c)
		if err != nil {
			return fmt.Errorf("case %s: %w", c.Name, err)
		}
		if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// ask sends one request through the client and records the body underneath it.
func ask(base string, c testCase) (result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r := result{Case: c.Name}
	var raw bytes.Buffer
	client := openai.NewClient(option.WithBaseURL(base), option.WithAPIKey("none"), option.WithMaxRetries(0),
		option.WithMiddleware(record(&raw, &r.Engine)))
	var params openai.ChatCompletionNewParams
	if err := json.Unmarshal(c.Body, &params); err != nil {
		return r, err
	}
	var stream struct{ Stream bool }
	err := json.Unmarshal(c.Body, &stream)
	switch {
	case err != nil:
	case stream.Stream:
		r.Text, err = streamed(ctx, client, params)
	default:
		r.Text, err = whole(ctx, client, params)
	}
	r.Body = raw.String()
	return r, err
}

func whole(ctx context.Context, client openai.Client, params openai.ChatCompletionNewParams) (string, error) {
	answer, err := client.Chat.Completions.New(ctx, params)
	if err != nil {
		return "", err
	}
	return textOf(answer.Choices, answer.Usage), nil
}

func streamed(ctx context.Context, client openai.Client, params openai.ChatCompletionNewParams) (string, error) {
	s := client.Chat.Completions.NewStreaming(ctx, params)
	defer s.Close()
	var all openai.ChatCompletionAccumulator
	for s.Next() {
		if !all.AddChunk(s.Current()) {
			return "", fmt.Errorf("a chunk does not belong to the answer before it")
		}
	}
	return textOf(all.Choices, all.Usage), s.Err()
}

func textOf(choices []openai.ChatCompletionChoice, usage openai.CompletionUsage) string {
	var b bytes.Buffer
	for _, c := range choices {
		fmt.Fprintf(&b, "%d %s: %s\n", c.Index, c.FinishReason, c.Message.Content)
	}
	fmt.Fprintf(&b, "prompt %d cached %d completion %d\n", usage.PromptTokens, usage.PromptTokensDetails.CachedTokens,
		usage.CompletionTokens)
	return b.String()
}

// record copies the body as the client reads it.
func record(raw *bytes.Buffer, engine *string) option.Middleware {
	return func(req *http.Request, next option.MiddlewareNext) (*http.Response, error) {
		resp, err := next(req)
		if err != nil {
			return nil, err
		}
		*engine = resp.Header.Get("X-Kvmesh-Engine")
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(resp.Body, raw), resp.Body}
		return resp, nil
	}
}
