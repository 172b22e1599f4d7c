package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/deploy/checks/internal/lab"
)

// The parts of an agent's JSON pages and of an engine's that the checks read.
type (
	statusPage struct {
		Ready    bool           `json:"ready"`
		Counters counters       `json:"counters"`
		Engines  []engineStatus `json:"engines"`
	}
	counters struct {
		InFlight    int            `json:"in_flight"`
		Waiting     int            `json:"waiting"`
		PeerStreams int            `json:"peer_streams"`
		Booked      map[string]int `json:"booked"`
	}
	engineStatus struct {
		Engine        string   `json:"engine"`
		State         string   `json:"state"`
		Models        []string `json:"models"`
		Generation    uint64   `json:"generation"`
		Waiting       int      `json:"waiting"` // for their first token, with the owner or the engine
		LoadAge       float64  `json:"load_age_s"`
		DigestVersion uint64   `json:"digest_version"`
		DigestFill    float64  `json:"digest_fill"`
	}
	decision struct {
		Time       time.Time     `json:"time"`
		ID         string        `json:"id"`
		Outcome    string        `json:"outcome"`
		TTFT       time.Duration `json:"ttft_ns"`
		Total      time.Duration `json:"total_ns"`
		Attempts   []attempt     `json:"attempts"`
		Candidates []candidate   `json:"candidates"`
	}
	attempt struct {
		Engine string `json:"engine"`
		Result string `json:"result"`
	}
	candidate struct {
		Engine        string  `json:"engine"`
		State         string  `json:"state"`
		Probed        bool    `json:"probed"`
		OverlapTokens int     `json:"overlap_tokens"`
		Score         float64 `json:"score_s"`
	}
	engineStats struct {
		Running     int   `json:"running"`
		Waiting     int   `json:"waiting"`
		Sequences   int64 `json:"sequences"`
		Finished    int64 `json:"finished"`
		Aborted     int64 `json:"aborted"`
		FirstTokens int64 `json:"first_tokens"`
	}
)

// sum is all of c: 0 when nothing runs.
func (c counters) sum() int {
	n := c.InFlight + c.Waiting + c.PeerStreams
	for _, booked := range c.Booked {
		n += booked
	}
	return n
}

func (s *statusPage) engine(id string) (engineStatus, bool) {
	for _, e := range s.Engines {
		if e.Engine == id {
			return e, true
		}
	}
	return engineStatus{}, false
}

func meshStatus(ctx context.Context, a *agent) (statusPage, error) {
	return getJSON[statusPage](ctx, "http://"+a.Debug+"/debug/mesh.json")
}

func decisions(ctx context.Context, a *agent) ([]decision, error) {
	return getJSON[[]decision](ctx, "http://"+a.Debug+"/debug/decisions.json")
}

// decisionOn returns an agent's decision on a request that was answered: it is recorded just after the answer's end.
func decisionOn(ctx context.Context, a *agent, id string) (d decision, err error) {
	err = check.Await(ctx, time.Second, "the decision on "+id+" at agent "+a.Name, func() bool {
		all, err := decisions(ctx, a)
		i := slices.IndexFunc(all, func(d decision) bool { return d.ID == id })
		if err != nil || i < 0 {
			return false
		}
		d = all[i]
		return true
	})
	return d, err
}

func stats(ctx context.Context, a *agent) (engineStats, error) {
	return getJSON[engineStats](ctx, "http://"+a.Engine+"/sim/stats")
}

func getJSON[T any](ctx context.Context, url string) (v T, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return v, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return v, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return v, fmt.Errorf("get %s: %s", url, resp.Status)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<20)).Decode(&v); err != nil {
		return v, fmt.Errorf("read %s: %w", url, err)
	}
	return v, nil
}

// chat is one chat completion to ask for.
type chat struct {
	id        string // x-request-id; "" for none
	system    string
	user      string
	maxTokens int // 0 leaves the length to the engine
	stream    bool
}

func (c chat) body() []byte {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	body := struct {
		Model     string    `json:"model"`
		Messages  []message `json:"messages"`
		Stream    bool      `json:"stream,omitempty"`
		MaxTokens int       `json:"max_tokens,omitempty"`
	}{Model: lab.Model, Stream: c.stream, MaxTokens: c.maxTokens}
	if c.system != "" {
		body.Messages = append(body.Messages, message{"system", c.system})
	}
	body.Messages = append(body.Messages, message{"user", c.user})
	b, err := json.Marshal(body)
	if err != nil {
		panic(err) // strings and numbers
	}
	return b
}

// newClient returns a client of its own: what one check leaves open does not meet the next.
func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}
}

// send sends c to an agent. The caller closes the body.
func (c chat) send(ctx context.Context, client *http.Client, addr string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v1/chat/completions", bytes.NewReader(c.body()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if c.id != "" {
		req.Header.Set("X-Request-Id", c.id)
	}
	return client.Do(req)
}

// usage is how many prompt tokens an engine reports, and how many of them were cached.
type usage struct {
	PromptTokens int `json:"prompt_tokens"`
	Details      struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// ask sends c, which is no stream, and returns the header and the usage of the answer.
func (c chat) ask(ctx context.Context, client *http.Client, addr string) (http.Header, usage, error) {
	var answer struct {
		Usage usage `json:"usage"`
	}
	resp, err := c.send(ctx, client, addr)
	if err != nil {
		return nil, answer.Usage, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %s", addr, resp.Status, check.Tail(string(body), 300))
	}
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	return resp.Header, answer.Usage, err
}

// errStreamError says that a stream ended with an error event.
var errStreamError = errors.New("error event")
