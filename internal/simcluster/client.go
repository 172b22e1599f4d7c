package simcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"

	"github.com/kvmesh/kvmesh/forward"
)

// client is a process on a host of its own that talks to agents and engines.
type client struct {
	process   *process
	transport *http.Transport
}

func newClient(n *network) *client {
	p := n.process(netip.MustParseAddr("10.255.0.1"))
	return &client{p, &http.Transport{DialContext: p.dial, MaxIdleConnsPerHost: 1000, DisableCompression: true}}
}

func (c *client) close() {
	c.transport.CloseIdleConnections()
	c.process.kill()
}

// Answer is a complete answer, as its client read it.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Engine returns the ID of the engine that answered.
func (a *Answer) Engine() string { return a.Header.Get("X-Kvmesh-Engine") }

// Chat sends a chat request to agent i and reads the answer to its end. With an error comes what was read before it.
func (c *Cluster) Chat(ctx context.Context, i int, body string) (*Answer, error) {
	return c.post(ctx, c.addr(i, portHTTP), body)
}

// Ask sends a chat request straight to the engine beside agent i.
func (c *Cluster) Ask(ctx context.Context, i int, body string) (*Answer, error) {
	return c.post(ctx, c.addr(i, portEngine), body)
}

func (c *Cluster) post(ctx context.Context, at, body string) (*Answer, error) {
	resp, err := c.open(ctx, at, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	a := &Answer{Status: resp.StatusCode, Header: resp.Header}
	if a.Body, err = io.ReadAll(resp.Body); err != nil {
		return a, fmt.Errorf("read answer: %w", err)
	}
	return a, nil
}

// Open sends a chat request to agent i and returns when the header of the answer is there.
func (c *Cluster) Open(ctx context.Context, i int, body string) (*http.Response, error) {
	return c.open(ctx, c.addr(i, portHTTP), body)
}

func (c *Cluster) open(ctx context.Context, at, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+at+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return c.client.transport.RoundTrip(req)
}

// Get asks agent i's ingress for a path and returns status and body.
func (c *Cluster) Get(ctx context.Context, i int, path string) (int, string, error) {
	return c.get(ctx, c.addr(i, portHTTP), path)
}

// Debug asks agent i's debug server for a path and returns status and body.
func (c *Cluster) Debug(ctx context.Context, i int, path string) (int, string, error) {
	return c.get(ctx, c.addr(i, portDebug), path)
}

// DebugPost sends a body to a path of agent i's debug server, as kvmesh's commands do, and returns status and body.
func (c *Cluster) DebugPost(ctx context.Context, i int, path, body string) (int, string, error) {
	return c.do(ctx, http.MethodPost, "http://"+c.addr(i, portDebug)+path, strings.NewReader(body))
}

func (c *Cluster) get(ctx context.Context, at, path string) (int, string, error) {
	return c.do(ctx, http.MethodGet, "http://"+at+path, http.NoBody)
}

func (c *Cluster) do(ctx context.Context, method, url string, body io.Reader) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Authorization", "Bearer "+debugToken)
	resp, err := c.client.transport.RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// Decisions returns the last requests that agent i took in, newest first.
func (c *Cluster) Decisions(ctx context.Context, i int) ([]forward.Event, error) {
	status, body, err := c.Debug(ctx, i, "/debug/decisions.json")
	if err == nil && status != http.StatusOK {
		err = errors.New(body)
	}
	if err != nil {
		return nil, fmt.Errorf("get decisions of %s: %w", Name(i), err)
	}
	var events []forward.Event
	if err := json.Unmarshal([]byte(body), &events); err != nil {
		return nil, fmt.Errorf("read decisions of %s: %w", Name(i), err)
	}
	return events, nil
}

// ChatBody is the body of a streaming chat request with usage: a system message, when it is not empty, and a user's.
func ChatBody(system, user string) string {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	body := struct {
		Model    string          `json:"model"`
		Messages []message       `json:"messages"`
		Stream   bool            `json:"stream"`
		Options  map[string]bool `json:"stream_options"`
	}{Model: "sim-model", Stream: true, Options: map[string]bool{"include_usage": true}}
	if system != "" {
		body.Messages = append(body.Messages, message{"system", system})
	}
	body.Messages = append(body.Messages, message{"user", user})
	b, err := json.Marshal(body)
	if err != nil {
		panic(err) // strings can be marshaled
	}
	return string(b)
}
