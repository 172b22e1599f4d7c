package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/lab"
)

// request is one request to ask for, a chat or a completion.
type request struct {
	path   string
	body   []byte
	header http.Header
}

const (
	chatPath       = "/v1/chat/completions"
	completionPath = "/v1/completions"
)

// fields are the fields of a request beside its model.
type fields map[string]any

func newRequest(path string, f fields) request {
	f["model"] = lab.Model
	body, err := json.Marshal(f)
	if err != nil {
		panic(err) // strings and numbers
	}
	return request{path: path, body: body, header: http.Header{"Content-Type": {"application/json"}}}
}

// chat asks for a streamed chat with usage; system may be empty.
func chat(system, user string, maxTokens int) request {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	var messages []message
	if system != "" {
		messages = append(messages, message{"system", system})
	}
	return newRequest(chatPath, fields{
		"messages": append(messages, message{"user", user}), "max_tokens": maxTokens,
		"stream": true, "stream_options": map[string]bool{"include_usage": true},
	})
}

// completion asks for a streamed completion with usage.
func completion(prompt string, maxTokens int) request {
	return newRequest(completionPath, fields{
		"prompt": prompt, "max_tokens": maxTokens, "stream": true, "stream_options": map[string]bool{"include_usage": true},
	})
}

// newClient returns a client of its own: what one check leaves open does not meet the next.
func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}}
}

// send sends r to an address, of an agent or an engine, and reads the answer. What came of it is returned with an error too.
func (r *request) send(ctx context.Context, client *http.Client, addr string) (*answer, error) {
	a := &answer{}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+r.path, bytes.NewReader(r.body))
	if err != nil {
		return a, err
	}
	req.Header = r.header.Clone()
	begin := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	return a, a.read(resp, begin)
}
