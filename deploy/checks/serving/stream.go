package main

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// stream is one chat stream as its client sees it. It is safe for concurrent use.
type stream struct {
	chat
	agent *agent // the ingress

	mu sync.Mutex
	streamState
}

// streamState is what the client of a stream knows at one moment.
type streamState struct {
	engine   string // x-kvmesh-engine; known from the first content on
	contents int
	first    time.Time // of the first content
	done     bool      // [DONE] came
	err      error     // what ended it otherwise
	ended    time.Time
}

// complete reports whether the whole answer came.
func (s *streamState) complete() bool { return s.done && s.err == nil && s.contents > 0 }

func (s *stream) state() streamState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streamState
}

// errNoDone says that the body of a stream ended in order, but without its last event.
var errNoDone = errors.New("stream ended without [DONE]")

// play reads the stream to its end. OnContent is called with the number of content events so far, from 0 once the
// header is there.
func (s *stream) play(ctx context.Context, client *http.Client, onContent func(n int)) {
	err := s.read(ctx, client, onContent)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && !s.done {
		err = errNoDone
	}
	s.err, s.ended = err, time.Now()
}

func (s *stream) read(ctx context.Context, client *http.Client, onContent func(n int)) error {
	resp, err := s.send(ctx, client, s.agent.HTTP)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	s.mu.Lock()
	s.engine = resp.Header.Get("X-Kvmesh-Engine")
	s.mu.Unlock()
	if resp.StatusCode != http.StatusOK {
		return errors.New("the agent answers " + resp.Status)
	}
	onContent(0)
	for data, err := range events(resp.Body) {
		if err != nil {
			return err
		}
		if err := s.take(readChunk(data), onContent); err != nil {
			return err
		}
	}
	return nil
}

func (s *stream) take(c chunk, onContent func(n int)) error {
	s.mu.Lock()
	s.done = s.done || c.done
	if c.content {
		if s.contents++; s.contents == 1 {
			s.first = time.Now()
		}
	}
	n := s.contents
	s.mu.Unlock()
	if c.content {
		onContent(n)
	}
	return c.err
}
