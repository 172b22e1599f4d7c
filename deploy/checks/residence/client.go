package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/internal/openai"
)

const (
	chatRoute = "/v1/chat/completions"
	// maxAnswer bounds what is read of one answer.
	maxAnswer = 64 << 20
)

// The parts of an agent's and an engine's JSON pages that the checks read.
type (
	statusPage struct {
		Ready   bool           `json:"ready"`
		Engines []engineStatus `json:"engines"`
		Notes   []string       `json:"notes"`
	}
	engineStatus struct {
		Engine     string   `json:"engine"`
		State      string   `json:"state"`
		Models     []string `json:"models"`
		Generation uint64   `json:"generation"`
	}
	// estimate is what an agent believes of a prompt.
	estimate struct {
		Keys         int    `json:"keys"`
		ResidentKeys int    `json:"resident_keys"`
		Prompt       int    `json:"prompt_tokens"`
		Overlap      int    `json:"overlap_tokens"`
		Exact        bool   `json:"exact"`
		Source       string `json:"source"`

		Layout openai.Layout `json:"layout"` // by which it made the keys
	}
	// truth is what a simulated engine holds of it.
	truth struct {
		Prompt   int `json:"prompt_tokens"`
		Hit      int `json:"hit_tokens"`
		Resident int `json:"resident_tokens"`
	}
)

func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}
}

// post sends a body of JSON.
func (r *rig) post(ctx context.Context, url string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return r.answer(req)
}

func (r *rig) get(url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(r.ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return r.answer(req)
}

// answer sends a request and returns the answer's body, which must come with status 200.
func (r *rig) answer(req *http.Request) ([]byte, error) {
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", req.Method, req.URL, resp.Status, check.Tail(string(got), 300))
	}
	return got, err
}

func (r *rig) status(n *node) (s statusPage, err error) {
	b, err := r.get("http://" + n.debug + "/debug/mesh.json")
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	return s, err
}

// estimate asks an agent what it believes of a prompt.
func (r *rig) estimate(n *node, body []byte) (e estimate, err error) {
	b, err := r.post(r.ctx, "http://"+n.debug+"/debug/residency?engine="+engineName+"&route="+chatRoute, body)
	if err == nil {
		err = json.Unmarshal(b, &e)
	}
	return e, err
}

// truth asks a simulated engine what it holds of a prompt.
func (r *rig) truth(n *node, body []byte) (t truth, err error) {
	b, err := r.post(r.ctx, "http://"+n.engineAddr+"/sim/resident", body)
	if err == nil {
		err = json.Unmarshal(b, &t)
	}
	return t, err
}

// sim does something to a simulated engine.
func (r *rig) sim(n *node, path, body string) error {
	_, err := r.post(r.ctx, "http://"+n.engineAddr+path, []byte(body))
	return err
}

// metric returns the sum of an agent's samples of one name, and whether there are any.
func (r *rig) metric(n *node, name string) (sum float64, ok bool) {
	b, err := r.get("http://" + n.debug + "/metrics")
	if err != nil {
		return 0, false
	}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		rest, found := strings.CutPrefix(lines.Text(), name)
		if !found || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		if v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64); err == nil {
			sum, ok = sum+v, true
		}
	}
	return sum, ok
}

// answer is what a client reads of one chat completion.
type answer struct {
	content   string
	reasoning string
	prompt    int // tokens
	cached    int
	usage     bool
	finished  bool
	ttft      time.Duration // to the first content of a stream, else to the end
	raw       []byte
	engine    string // that answered, as the agent says; of streams
}

// chat sends one chat completion to an agent or an engine and reads its answer.
func (r *rig) chat(ctx context.Context, addr string, body []byte, stream bool) (answer, error) {
	begin := time.Now()
	if !stream {
		got, err := r.post(ctx, "http://"+addr+chatRoute, body)
		a := answer{raw: got, ttft: time.Since(begin)}
		if err == nil {
			err = a.take(got)
		}
		return a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+chatRoute, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := r.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		got, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16)) // the status says enough
		return answer{}, fmt.Errorf("post %s: %s: %s", chatRoute, resp.Status, check.Tail(string(got), 300))
	}
	a, err := readStream(resp.Body, begin)
	a.engine = resp.Header.Get("X-Kvmesh-Engine")
	return a, err
}

// readStream reads the events of a stream; an error event is an error.
func readStream(from io.Reader, begin time.Time) (answer, error) {
	var a answer
	lines := bufio.NewReaderSize(io.LimitReader(from, maxAnswer), 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		a.raw = append(a.raw, line...)
		if data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: ")); ok {
			before := len(a.content) + len(a.reasoning)
			if string(data) == "[DONE]" {
				a.finished = true
			} else if err := a.take(data); err != nil {
				return a, err
			}
			if before == 0 && len(a.content)+len(a.reasoning) > 0 {
				a.ttft = time.Since(begin)
			}
		}
		switch {
		case err == io.EOF && a.finished:
			return a, nil
		case err != nil:
			return a, fmt.Errorf("read stream: %w", err)
		}
	}
}

// take adds a completion or a chunk of one.
func (a *answer) take(data []byte) error {
	type text struct {
		Content          string `json:"content"`
		Reasoning        string `json:"reasoning"`
		ReasoningContent string `json:"reasoning_content"`
	}
	var v struct {
		Error   json.RawMessage `json:"error"`
		Choices []struct {
			Index   int  `json:"index"`
			Message text `json:"message"`
			Delta   text `json:"delta"`
		} `json:"choices"`
		Usage *struct {
			PromptTokens int `json:"prompt_tokens"`
			Details      struct {
				CachedTokens int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return fmt.Errorf("read chat completion: %w", err)
	}
	if len(v.Error) > 0 && string(v.Error) != "null" {
		return fmt.Errorf("error event: %s", v.Error)
	}
	for _, c := range v.Choices {
		if c.Index == 0 {
			a.content += c.Message.Content + c.Delta.Content
			a.reasoning += c.Message.Reasoning + c.Message.ReasoningContent + c.Delta.Reasoning + c.Delta.ReasoningContent
		}
	}
	if v.Usage != nil {
		a.usage, a.prompt, a.cached = true, v.Usage.PromptTokens, v.Usage.Details.CachedTokens
	}
	return nil
}
