package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// answer is what a client got of one request, up to its end or to where it broke.
type answer struct {
	status     int
	retryAfter string
	engine     string // x-kvmesh-engine; "" where the head never came
	retried    bool   // x-kvmesh-reason says so: another engine was tried before
	head       string // what all of its chunks begin with: id, model and time
	role       bool   // it was said who speaks
	text       string // thoughts included
	thought    string // of it
	finish     string // why it ended, in the engine's words
	usage      *usage // where it was asked for
	contents   int    // events with text
	first      time.Duration
	gaps       []time.Duration // between events with text
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

var (
	// errEvent says that a stream ended with an error event, as it must when it cannot go on.
	errEvent = errors.New("error event")
	// errNoEnd says that a stream ended without a word.
	errNoEnd = errors.New("the stream ended without [DONE]")
)

// statusError is an answer that is no success.
type statusError struct {
	status     int
	retryAfter string
	text       string
}

func (e *statusError) Error() string { return fmt.Sprintf("answered %d: %s", e.status, e.text) }

// chunk is one event of a stream, or a whole answer: chats and completions alike.
type chunk struct {
	ID      string          `json:"id"`
	Model   string          `json:"model"`
	Created int64           `json:"created"`
	Error   json.RawMessage `json:"error"`
	Usage   *usage          `json:"usage"`
	Choices []struct {
		Index        int     `json:"index"`
		FinishReason *string `json:"finish_reason"`
		Text         string  `json:"text"`
		Delta        message `json:"delta"`
		Message      message `json:"message"`
	} `json:"choices"`
}

type message struct {
	Role      string `json:"role"`
	Content   string `json:"content"`
	Reasoning string `json:"reasoning"`
}

// read reads an answer to its end, and returns an error unless all of it came, in order.
func (a *answer) read(resp *http.Response, begin time.Time) error {
	a.status, a.retryAfter, a.engine = resp.StatusCode, resp.Header.Get("Retry-After"), resp.Header.Get("X-Kvmesh-Engine")
	a.retried = resp.Header.Get("X-Kvmesh-Reason") == "retry"
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return &statusError{resp.StatusCode, a.retryAfter, string(bytes.TrimSpace(text))}
	}
	if resp.Header.Get("Content-Type") == "application/json" {
		return a.readWhole(resp.Body)
	}
	return a.readStream(resp.Body, begin)
}

func (a *answer) readWhole(body io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(body, maxEvent))
	if err != nil {
		return err
	}
	if _, err := a.take(text); err != nil {
		return err
	}
	if a.finish == "" {
		return errors.New("no finish_reason")
	}
	return nil
}

func (a *answer) readStream(body io.Reader, begin time.Time) error {
	last, done := begin, false
	for data, err := range events(body) {
		switch {
		case err != nil:
			return err
		case done:
			return fmt.Errorf("an event after [DONE]: %.200s", data)
		case string(data) == "[DONE]":
			done = true
			continue
		}
		content, err := a.take(data)
		if err != nil {
			return err
		}
		if !content {
			continue
		}
		now := time.Now()
		if a.contents++; a.contents == 1 {
			a.first = now.Sub(begin)
		} else {
			a.gaps = append(a.gaps, now.Sub(last))
		}
		last = now
	}
	switch {
	case !done:
		return errNoEnd
	case a.finish == "":
		return errors.New("[DONE] without a finish_reason")
	}
	return nil
}

// take reads one event, and reports whether it has text.
func (a *answer) take(data []byte) (content bool, err error) {
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return false, fmt.Errorf("%w: %.200s", err, data)
	}
	head := fmt.Sprintf("id %s, model %s, created %d", c.ID, c.Model, c.Created)
	switch {
	case len(c.Error) > 0 && string(c.Error) != "null":
		return false, fmt.Errorf("%w: %s", errEvent, c.Error)
	case a.head != "" && head != a.head:
		return false, fmt.Errorf("%q goes on as %q", a.head, head)
	}
	a.head = head
	if c.Usage != nil {
		a.usage = c.Usage
	}
	for _, x := range c.Choices {
		text := x.Delta.Reasoning + x.Message.Reasoning
		a.thought += text
		text += x.Text + x.Delta.Content + x.Message.Content
		switch {
		case text != "" && a.finish != "":
			return false, fmt.Errorf("text after the end: %.200s", data)
		case x.Delta.Role != "" && a.role:
			return false, fmt.Errorf("a second role: %.200s", data)
		}
		a.text += text
		a.role = a.role || x.Delta.Role != ""
		content = content || text != ""
		if x.FinishReason != nil {
			a.finish = *x.FinishReason
		}
	}
	return content, nil
}

// differs says where an answer is another than want; "" where text, end and usage are the same.
func (a *answer) differs(want *answer) string {
	switch {
	case a.text != want.text:
		n := 0
		for n < min(len(a.text), len(want.text)) && a.text[n] == want.text[n] {
			n++
		}
		return fmt.Sprintf("at byte %d of %d: %.40q instead of %.40q", n, len(want.text), a.text[n:], want.text[n:])
	case a.thought != want.thought:
		return fmt.Sprintf("its thought is %.40q instead of %.40q", a.thought, want.thought)
	case a.finish != want.finish:
		return fmt.Sprintf("it ends with %q instead of %q", a.finish, want.finish)
	case a.usage != nil && want.usage != nil && *a.usage != *want.usage:
		return fmt.Sprintf("its usage is %v instead of %v", *a.usage, *want.usage)
	}
	return ""
}
