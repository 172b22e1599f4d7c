package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/node"
)

// meshStatus is what an agent says under /debug/mesh.json.
type meshStatus struct{ node.Status }

// notes reports whether a note says what words say.
func (s *meshStatus) notes(words ...string) bool {
	return slices.ContainsFunc(s.Notes, func(note string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(note, w) })
	})
}

// knows reports whether the agent can use so many engines and has the digest of each.
func (s *meshStatus) knows(engines int) bool {
	n := 0
	for _, e := range s.Engines {
		if (e.State == "fresh" || e.State == "own") && len(e.Digests) > 0 {
			n++
		}
	}
	return s.Ready && n >= engines
}

var debugClient = &http.Client{Timeout: 5 * time.Second}

// get reads a page of an agent's debug server.
func get(ctx context.Context, addr, token, path string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := debugClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s%s: %s", addr, path, resp.Status)
	}
	return page, err
}

func getJSON(ctx context.Context, addr, token, path string, into any) error {
	page, err := get(ctx, addr, token, path)
	if err != nil {
		return err
	}
	return json.Unmarshal(page, into)
}

func (x *host) debug() string { return x.addr() + ":7083" }

func (x *host) status(ctx context.Context) (s meshStatus, err error) {
	return s, getJSON(ctx, x.debug(), labToken, "/debug/mesh.json", &s)
}

// whole reports whether each of the hosts knows the engines of all.
func (l *hosts) whole(ctx context.Context, some []*host) bool {
	for _, x := range some {
		if s, err := x.status(ctx); err != nil || !s.knows(len(some)) {
			return false
		}
	}
	return true
}

// wire is what went in and out, in bytes of IP.
type wire struct{ in, out float64 }

// add adds what was counted between two looks.
func (w *wire) add(end, begin wire) {
	w.in += end.in - begin.in
	w.out += end.out - begin.out
}

// wireBytes returns what an agent says that its mesh received and sent.
func (x *host) wireBytes(ctx context.Context) (w wire, err error) {
	page, err := get(ctx, x.debug(), labToken, "/metrics")
	if err != nil {
		return w, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		return w, err
	}
	f := families["kvmesh_mesh_wire_bytes_total"]
	if f == nil {
		return w, errors.New("no wire bytes among the metrics")
	}
	for _, m := range f.GetMetric() {
		for _, label := range m.GetLabel() {
			switch label.GetValue() {
			case "in":
				w.in += m.GetCounter().GetValue()
			case "out":
				w.out += m.GetCounter().GetValue()
			}
		}
	}
	return w, nil
}

// verdicts is what was decided after a loss.
type verdicts struct {
	decisions int
	chosen    int    // of them, that chose or tried a lost engine
	weighed   int    // that had one among their candidates
	first     string // that chose one, in words
}

// decidedAfter looks at the decisions of some agents since a time.
func decidedAfter(ctx context.Context, deciders, lost []*host, since time.Time) (v verdicts, err error) {
	for _, x := range deciders {
		var events []forward.Event
		if err := getJSON(ctx, x.debug(), labToken, "/debug/decisions.json", &events); err != nil {
			return v, err
		}
		for i := range events {
			if e := &events[i]; !e.Time.Before(since) {
				v.add(x, e, lost, e.Time.Sub(since))
			}
		}
	}
	return v, nil
}

func (v *verdicts) add(decider *host, e *forward.Event, lost []*host, after time.Duration) {
	v.decisions++
	for _, x := range lost {
		chosen, weighed := names(e, x.engine0())
		if chosen {
			v.chosen++
		}
		if weighed != "" {
			v.weighed++
		}
		if chosen && v.first == "" {
			v.first = fmt.Sprintf("by %s, %.2f s later, of %s as %s, reason %s, attempts %v", decider.name(), after.Seconds(), x.name(), weighed, e.Reason, e.Attempts)
		}
	}
}

// names reports whether an engine was chosen or tried, and in which state it stood among the candidates, "" for not at all.
func names(e *forward.Event, engine string) (chosen bool, weighed string) {
	chosen = string(e.Engine) == engine || slices.ContainsFunc(e.Attempts, func(a forward.Attempt) bool { return string(a.Engine) == engine })
	if i := slices.IndexFunc(e.Candidates, func(c forward.CandidateInfo) bool { return string(c.Engine) == engine }); i >= 0 {
		weighed = e.Candidates[i].State
	}
	return chosen, weighed
}

// ask sends a prompt to an agent, reads the whole stream, and returns which engine began to answer.
func ask(ctx context.Context, client *http.Client, x *host, prompt string) (engine string, err error) {
	return askAt(ctx, client, x.addr()+":7080", prompt)
}

func askAt(ctx context.Context, client *http.Client, addr, prompt string) (engine string, err error) {
	body, err := json.Marshal(map[string]any{
		"model": "sim-model", "stream": true, "messages": []map[string]string{{"role": "user", "content": fmt.Sprint(rand.Uint64(), " ", prompt)}},
	})
	if err != nil {
		return "", err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v1/chat/completions", strings.NewReader(string(body)))
	if err != nil {
		return "", err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("answered %s", resp.Status)
	}
	return resp.Header.Get("X-Kvmesh-Engine"), readStream(resp)
}

// readStream returns an error unless the events end as they should.
func readStream(resp *http.Response) error {
	done := false
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case ok && data == "[DONE]":
			done = true
		case ok && strings.HasPrefix(data, `{"error"`):
			return fmt.Errorf("the stream broke: %.200s", data)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if !done {
		return errors.New("the stream has no end")
	}
	return nil
}

// traffic is clients that send a request after another, each to an agent at random.
type traffic struct {
	ending chan struct{}
	once   sync.Once
	wg     sync.WaitGroup

	mu     sync.Mutex
	result trafficResult
}

type trafficResult struct {
	requests int
	failed   []failedRequest
}

type failedRequest struct {
	engine string // that had begun to answer; "" for none
	err    error
}

// trafficClients is how many requests are under way.
const trafficClients = 24

func newTraffic(ctx context.Context, agents []*host) *traffic {
	t := &traffic{ending: make(chan struct{})}
	for range trafficClients {
		t.wg.Go(func() { t.play(ctx, agents) })
	}
	return t
}

func (t *traffic) play(ctx context.Context, agents []*host) {
	client := &http.Client{Timeout: 30 * time.Second}
	for {
		select {
		case <-t.ending:
			return
		default:
			t.add(ask(ctx, client, agents[rand.IntN(len(agents))], "say something"))
		}
	}
}

func (t *traffic) add(engine string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.result.requests++
	if err != nil {
		t.result.failed = append(t.result.failed, failedRequest{engine, err})
	}
}

// stop lets the requests that run end.
func (t *traffic) stop() trafficResult {
	t.once.Do(func() { close(t.ending) })
	t.wg.Wait()
	return t.result
}

// failedWithout returns the failures but for those of answers that had begun at lost agents.
func (r *trafficResult) failedWithout(lost []*host) []failedRequest {
	return slices.DeleteFunc(slices.Clone(r.failed), func(f failedRequest) bool {
		return slices.ContainsFunc(lost, func(x *host) bool { return f.engine == x.engine0() })
	})
}
