package simengine

import (
	"errors"
	"net/http"
	"slices"
)

// errGone ends a handler whose client has gone or whose connection a fault has reset.
var errGone = errors.New("connection is gone")

// run generates a call and answers it in the given format.
func (e *Engine) run(w http.ResponseWriter, r *http.Request, c *call, f format) error {
	c.life.requests.Add(1)
	if !c.Stream {
		c.life.sched.submit(c.jobs)
		defer c.life.sched.abort(c.jobs) // does nothing to jobs that have ended
		return e.answerWhole(w, r, c, f)
	}
	s := &sse{w: w, flush: http.NewResponseController(w)}
	if e.cfg.Kind != KindOther {
		s.begin() // before the first token, and before the request is even queued
	}
	if faults := e.currentFaults(); faults.HangAfterHeaders {
		e.countFault()
		s.begin()
		return c.life.wait(w, r, nil)
	}
	c.life.sched.submit(c.jobs)
	defer c.life.sched.abort(c.jobs)
	return e.answerStream(s, r, c, f)
}

func (e *Engine) answerWhole(w http.ResponseWriter, r *http.Request, c *call, f format) error {
	for slices.ContainsFunc(c.jobs, (*job).incomplete) {
		if err := c.life.wait(w, r, c.notify); err != nil {
			return err
		}
	}
	if faults := e.currentFaults(); faults.DieAfterTokens > 0 {
		e.countFault()
		reset(w)
		return errGone
	}
	writeJSON(w, http.StatusOK, f.whole())
	return nil
}

// answerStream writes an event for every token as it comes to exist. llama.cpp sends headers with the first of them only.
func (e *Engine) answerStream(s *sse, r *http.Request, c *call, f format) error {
	if e.cfg.Kind == KindOther {
		if err := c.life.wait(s.w, r, c.notify); err != nil {
			return err
		}
		s.begin()
		wake(c.notify) // that token is still to be written
	}
	f.open(s)
	sent := make([]int, len(c.jobs))
	for left := len(c.jobs); left > 0; {
		if err := c.life.wait(s.w, r, c.notify); err != nil {
			return err
		}
		for n, j := range c.jobs {
			for ; sent[n] < int(j.produced.Load()); sent[n]++ {
				if e.dies(s, sent) {
					return errGone
				}
				f.token(s, n, sent[n])
				if sent[n]+1 == len(j.answer()) {
					left--
				}
			}
		}
		if s.err != nil {
			return errGone
		}
	}
	f.close(s)
	return nil
}

// dies resets the connection when the fault says that a stream ends here.
func (e *Engine) dies(s *sse, sent []int) bool {
	faults := e.currentFaults()
	if faults.DieAfterTokens == 0 {
		return false
	}
	total := 0
	for _, n := range sent {
		total += n
	}
	if total < faults.DieAfterTokens {
		return false
	}
	e.countFault()
	reset(s.w)
	return true
}

// sse writes server-sent events and flushes each. The first error sticks; later writes do nothing.
type sse struct {
	w     http.ResponseWriter
	flush *http.ResponseController
	buf   []byte
	begun bool
	err   error
}

// begin sends the headers, once.
func (s *sse) begin() {
	if s.begun {
		return
	}
	s.begun = true
	s.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	s.w.WriteHeader(http.StatusOK)
	s.err = s.flush.Flush()
}

// data writes an unnamed event.
func (s *sse) data(v any) { s.event("", v) }

// event writes an event with a name, as the Responses and Messages APIs do.
func (s *sse) event(name string, v any) {
	s.buf = s.buf[:0]
	if name != "" {
		s.buf = append(append(append(s.buf, "event: "...), name...), '\n')
	}
	s.buf = marshal(append(s.buf, "data: "...), v)
	s.write(append(s.buf, "\n\n"...))
}

// plain writes an event made of prepared bytes around a text.
func (s *sse) plain(around [2][]byte, text string) {
	s.buf = marshal(append(s.buf[:0], around[0]...), text)
	s.write(append(s.buf, around[1]...))
}

// done writes the mark that ends OpenAI's streams.
func (s *sse) done() { s.write([]byte("data: [DONE]\n\n")) }

func (s *sse) write(b []byte) {
	if s.err != nil {
		return
	}
	if _, s.err = s.w.Write(b); s.err == nil {
		s.err = s.flush.Flush()
	}
}
