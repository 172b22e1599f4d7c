package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/deploy/checks/internal/lab"
	"github.com/kvmesh/kvmesh/forward"
)

// question is a request and the answer that it must get.
type question struct {
	request
	stream bool
	want   *answer
}

// questions returns n requests of some kinds with shared beginnings, and what an engine outside of any mesh answers.
func questions(ctx context.Context, h *check.Harness, n int, engineFlags []string) ([]question, error) {
	addr, err := h.Ports.Addr(ctx)
	if err != nil {
		return nil, err
	}
	args := append([]string{"simengine", "--listen", addr, "--model", lab.Model}, engineFlags...)
	engine, err := h.Start(ctx, h.Dir, "engine-reference", append(args, "--speed", "200")...)
	if err != nil {
		return nil, err
	}
	defer engine.Kill()
	client := newClient()
	defer client.CloseIdleConnections()
	all, errs := make([]question, n), make([]error, n)
	var wg sync.WaitGroup
	slots := make(chan struct{}, askedAtOnce)
	for i := range all {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			all[i] = newQuestion(i)
			errs[i] = all[i].learn(ctx, client, addr)
		})
	}
	wg.Wait()
	return all, errors.Join(errs...)
}

// learn asks an engine, which may not be there yet.
func (q *question) learn(ctx context.Context, client *http.Client, addr string) error {
	var asked error
	err := check.Await(ctx, askLimit, "the engine that is the reference", func() bool {
		q.want, asked = q.send(ctx, client, addr)
		return asked == nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", err, asked)
	}
	return nil
}

const (
	askLimit    = 10 * time.Second
	askedAtOnce = 50
	systems     = 12
	// A long one has 66 kB: its requests wait for the accept with their bodies.
	longSystem, systemRules, longRules = 11, 50, 3700
	// mostTokens cuts some of the answers short and lets the others end.
	mostTokens = 90
)

func newQuestion(i int) question {
	rules := systemRules
	if i%systems == longSystem {
		rules = longRules
	}
	system := strings.Repeat(fmt.Sprintf("Rule %d: be kind. ", i%systems), rules)
	user := fmt.Sprintf("Question %d: what then?", i)
	switch i % 10 {
	case 0, 1, 2:
		return question{request: completion(system+user, mostTokens), stream: true}
	case 3, 4:
		return question{request: newRequest(chatPath, fields{
			"max_tokens": mostTokens, "messages": []map[string]string{{"role": "system", "content": system}, {"role": "user", "content": user}},
		})}
	}
	return question{request: chat(system, user, mostTokens), stream: true}
}

// load is clients that ask one question after the other, each in turn at one of some agents.
type load struct {
	ctx       context.Context
	agents    []*lab.Agent
	questions []question
	think     time.Duration // mean time from an answer to the next question
	client    *http.Client
	ending    chan struct{}
	wg        sync.WaitGroup

	mu     sync.Mutex
	next   int
	ttft   []time.Duration
	gap    time.Duration // the longest between two events
	asked  int
	left   int // clients that did not wait for their answer
	failed []failure
}

// failure is an answer that was not as it must be.
type failure struct {
	id           string
	begin, end   time.Time
	ingress      string // agent
	engine       string // that began to answer; "" for none
	stream       bool
	path         string
	contents     int
	err          error
	explanations string // what the ingress did
}

func (f *failure) String() string {
	return fmt.Sprintf("%s of %s by %s on %q after %.2f s, %d contents, stream %v: %v; %s",
		f.id, f.path, f.ingress, f.engine, f.end.Sub(f.begin).Seconds(), f.contents, f.stream, f.err, f.explanations)
}

const (
	// clientPatience is how long a client waits for an answer: longer than anything that a mesh may need to notice a fault.
	clientPatience = 3 * time.Minute
	// One client in so many leaves within two seconds.
	leavers = 25
)

func startLoad(ctx context.Context, clients int, think time.Duration, agents []*lab.Agent, all []question) *load {
	l := &load{ctx: ctx, agents: agents, questions: all, think: think, client: newClient(), ending: make(chan struct{})}
	for range clients {
		l.wg.Go(l.play)
	}
	return l
}

// stop lets the answers that are under way come to their ends.
func (l *load) stop() {
	close(l.ending)
	l.wg.Wait()
	l.client.CloseIdleConnections()
}

func (l *load) play() {
	for {
		select {
		case <-l.ending:
			return
		case <-l.ctx.Done():
			return
		case <-time.After(time.Duration(rand.ExpFloat64() * float64(l.think))):
			l.ask()
		}
	}
}

func (l *load) ask() {
	l.mu.Lock()
	l.next++
	n := l.next
	l.mu.Unlock()
	by, q := l.agents[n%len(l.agents)], &l.questions[rand.IntN(len(l.questions))]
	id := fmt.Sprintf("q%d", n)
	r := q.request
	r.header = r.header.Clone()
	r.header.Set("X-Request-Id", id)
	patience := clientPatience
	leaves := rand.IntN(leavers) == 0
	if leaves {
		patience = rand.N(2 * time.Second)
	}
	ctx, cancel := context.WithTimeout(l.ctx, patience)
	defer cancel()
	begin := time.Now()
	got, err := r.send(ctx, l.client, by.HTTP)
	end := time.Now()
	if l.ctx.Err() != nil {
		return
	}
	if leaves && ctx.Err() != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.left++
		return
	}
	if err == nil {
		if why := got.differs(q.want); why != "" {
			err = fmt.Errorf("%w: %s", errWrong, why)
		}
	}
	l.note(got, err)
	if err != nil {
		f := failure{id: id, begin: begin, end: end, ingress: by.Name, engine: got.engine, stream: q.stream, path: r.path, contents: got.contents, err: err}
		f.explanations = explain(l.ctx, by, id)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.failed = append(l.failed, f)
	}
}

// errWrong says that an answer is another than the engine's own.
var errWrong = errors.New("the answer is wrong")

func (l *load) note(got *answer, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	if err == nil && got.contents > 0 {
		l.ttft = append(l.ttft, got.first)
		l.gap = max(l.gap, slices.Max(append(got.gaps, 0)))
	}
}

// explain returns what an agent did with a request, in words.
func explain(ctx context.Context, a *lab.Agent, id string) string {
	var all []forward.Event
	words := "its agent knows nothing of it"
	_ = check.Await(ctx, time.Second, "", func() bool {
		if err := a.Debugged(ctx, "/debug/decisions.json", &all); err != nil {
			words = err.Error()
			return false
		}
		i := slices.IndexFunc(all, func(e forward.Event) bool { return e.ID == id })
		if i < 0 {
			return false
		}
		words = fmt.Sprintf("outcome %s, attempts %v", all[i].Outcome, all[i].Attempts)
		return true
	})
	return words
}

// quantile returns a quantile of times, in milliseconds.
func quantile(times []time.Duration, q float64) float64 {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return float64(times[int(q*float64(len(times)-1))]) / float64(time.Millisecond)
}
