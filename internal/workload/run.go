package workload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// Config says where and how a workload is played.
type Config struct {
	Targets  []string // base URLs, "http://host:port"; the path is added
	Pick     Picker   // chooses a request's target; nil takes them in turn
	Workload *Workload
	Model    string
	Header   http.Header // added to each request, as for an API key; may be nil
	// Client sends the requests; nil makes one that keeps a connection for each request in flight. A client with a
	// Timeout of its own cuts long answers.
	Client *http.Client
	// MaxInFlight bounds the requests in flight. A request due while all slots are taken waits, which makes an
	// open-loop workload a closed one: Sample.Late shows it. 0 means 1,024, more than 2 cores can stream.
	MaxInFlight int
	Timeout     time.Duration // for one request, to the end of its answer; 0 means 2 minutes
	// Duration ends the run: no request begins after it, those that run are read to their end. 0 plays the whole
	// workload.
	Duration time.Duration
	// Progress is told how many turns are settled, sent or skipped, of how many; never concurrently. May be nil.
	Progress func(done, total int)
}

const path = "/v1/chat/completions"

// EnsureDefaults fills in what is zero.
func (c *Config) EnsureDefaults() {
	if c.Pick == nil && len(c.Targets) > 0 {
		c.Pick = RoundRobin(len(c.Targets))
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = 1024
	}
	if c.Timeout == 0 {
		c.Timeout = 2 * time.Minute
	}
	if c.Progress == nil {
		c.Progress = func(int, int) {}
	}
}

// Validate reports every field out of range. It presumes EnsureDefaults.
func (c *Config) Validate() error {
	sessions := 0
	if c.Workload != nil {
		sessions = len(c.Workload.Sessions)
	}
	return errors.Join(
		atLeast("Targets", len(c.Targets), 1),
		atLeast("Workload.Sessions", sessions, 1),
		atLeast("MaxInFlight", c.MaxInFlight, 1),
		atLeast("Timeout", c.Timeout, 1),
		atLeast("Duration", c.Duration, 0),
	)
}

// Run plays a workload and returns what it measured. Sessions start at their times whatever the targets do; within a
// session a turn waits for the answer before it, whose text is part of its prompt, and for the user's think time. A
// failed turn ends its session, because what would have come next is not known: those turns are Skipped.
//
// A failed request is a count in the Result, not an error. When ctx ends, Run stops and returns what it has so far with
// ctx's error.
func Run(ctx context.Context, c Config) (Result, error) {
	c.EnsureDefaults()
	if err := c.Validate(); err != nil {
		return Result{}, fmt.Errorf("run workload: %w", err)
	}
	if c.Client == nil {
		transport := &http.Transport{MaxIdleConnsPerHost: c.MaxInFlight, IdleConnTimeout: time.Minute}
		defer transport.CloseIdleConnections()
		c.Client = &http.Client{Transport: transport}
	}
	r := &runner{Config: c, slots: make(chan struct{}, c.MaxInFlight), start: time.Now(), total: c.Workload.Requests()}
	r.play(ctx)
	result := Summarize(r.samples)
	result.Skipped = r.total - len(r.samples)
	result.Seconds = time.Since(r.start).Seconds()
	return result, context.Cause(ctx)
}

type runner struct {
	Config
	slots chan struct{} // a place in it is a request in flight
	start time.Time
	total int // turns of the workload

	mu      sync.Mutex
	done    int // turns settled
	samples []Sample
}

// play starts each session at its time and waits for all of them.
func (r *runner) play(ctx context.Context) {
	var sessions sync.WaitGroup
	defer sessions.Wait()
	for i := range r.Workload.Sessions {
		s := &r.Workload.Sessions[i]
		if !r.sleepUntil(ctx, s.Start) {
			r.skip(len(s.Turns))
			continue
		}
		sessions.Go(func() { r.session(ctx, s) })
	}
}

// session plays the turns of s until one fails or the run is over.
func (r *runner) session(ctx context.Context, s *Session) {
	var answers []string
	due := s.Start
	for i := range s.Turns {
		if i > 0 {
			due = time.Since(r.start) + s.Turns[i].Think
		}
		if !r.sleepUntil(ctx, due) {
			r.skip(len(s.Turns) - i)
			return
		}
		text, ok := r.turn(ctx, s, i, answers, due)
		if !ok {
			r.skip(len(s.Turns) - i - 1)
			return
		}
		answers = append(answers, text)
	}
}

// turn sends turn i of s and returns the answer, and false when it failed.
func (r *runner) turn(ctx context.Context, s *Session, i int, answers []string, due time.Duration) (string, bool) {
	req, err := r.Workload.request(s, i, answers, r.Model)
	if err != nil {
		r.settle(Sample{Session: s.ID, Class: s.Class, Turn: i, Error: ErrorStream})
		return "", false
	}
	req.At = due
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		r.skip(1)
		return "", false
	}
	sample, text := r.exchange(ctx, req)
	r.settle(sample)
	return text, sample.Error == ""
}

// sleepUntil waits until the given time of the run and reports whether requests may still begin.
func (r *runner) sleepUntil(ctx context.Context, at time.Duration) bool {
	if r.Duration > 0 && at > r.Duration || ctx.Err() != nil {
		return false
	}
	timer := time.NewTimer(at - time.Since(r.start))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (r *runner) skip(turns int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done += turns
	r.Progress(r.done, r.total)
}

func (r *runner) settle(s Sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples = append(r.samples, s)
	r.done++
	r.Progress(r.done, r.total)
}

// exchange sends one request and reads its answer to the end.
func (r *runner) exchange(ctx context.Context, req Request) (Sample, string) {
	timed, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	begin := time.Now()
	s := Sample{
		Session: req.Session, Class: req.Class, Turn: req.Turn, Target: r.Pick(req),
		Sent: begin.Sub(r.start),
	}
	s.Late = max(s.Sent-req.At, 0)
	a, err := r.send(timed, r.Targets[s.Target], req.Body, func() { s.TTFT = time.Since(begin) })
	s.Total = time.Since(begin)
	if err != nil {
		s.Error = kindOf(ctx, timed, err)
		return s, ""
	}
	if !a.began {
		s.Error = ErrorEmpty
		return s, ""
	}
	if a.usage != nil {
		s.Usage = true
		s.PromptTokens, s.CachedTokens, s.OutputTokens = a.usage.PromptTokens, a.usage.cached(), a.usage.CompletionTokens
	}
	return s, a.text.String()
}

func (r *runner) send(ctx context.Context, target string, body []byte, first func()) (*answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	if r.Header != nil {
		req.Header = r.Header.Clone()
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	resp, err := r.Client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("send request: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		drain(resp.Body)
		return nil, statusError(resp.StatusCode)
	}
	a, err := readStream(resp.Body, first)
	if err == nil {
		drain(resp.Body)
	}
	return a, err
}

// drain reads what little is left of a body, so that its connection can be used again.
func drain(body io.Reader) { _, _ = io.CopyN(io.Discard, body, 64<<10) }

type statusError int

func (e statusError) Error() string { return fmt.Sprintf("status %d", int(e)) }

// kindOf puts an error of send into one of the kinds of error. run is the context of the run, timed that of the
// request: what net/http returns when they end is their cause, which may be anything.
func kindOf(run, timed context.Context, err error) ErrorKind {
	status, answered := errors.AsType[statusError](err)
	network, isNet := errors.AsType[*net.OpError](err)
	switch {
	case answered && status >= 400 && status < 500:
		return ErrorStatus4x
	case answered:
		return ErrorStatus5x
	case errors.Is(err, errEvent):
		return ErrorEvent
	case run.Err() != nil:
		return ErrorCanceled
	case timed.Err() != nil:
		return ErrorTimeout
	case isNet && network.Op == "dial":
		return ErrorDial
	}
	return ErrorStream
}
