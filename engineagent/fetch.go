package engineagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// statusError is an answer that is not the one asked for.
type statusError struct{ code int }

func (e *statusError) Error() string { return fmt.Sprintf("status %d", e.code) }

// question is what the engine is asked, and how much of an answer is taken.
type question struct {
	method, path string
	body         []byte // JSON; nil for none
	limit        int64  // bytes of the answer
	timeout      time.Duration
}

// get asks the engine for path and returns at most limit bytes of the answer.
func (a *Agent) get(ctx context.Context, path string, limit int64) ([]byte, error) {
	return a.fetch(ctx, question{method: http.MethodGet, path: path, limit: limit, timeout: a.cfg.PollTimeout})
}

// post sends body, which is JSON, and returns at most limit bytes of the answer.
func (a *Agent) post(ctx context.Context, path string, body []byte, limit int64) ([]byte, error) {
	return a.fetch(ctx, question{http.MethodPost, path, body, limit, a.cfg.PollTimeout})
}

// fetch asks the engine. Redirects are not followed: an engine must not send its agent elsewhere. An answer other than
// 200 is a *statusError.
func (a *Agent) fetch(ctx context.Context, q question) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, q.method, a.cfg.URL.JoinPath(q.path).String(), bytes.NewReader(q.body))
	if err != nil {
		return nil, fmt.Errorf("make request for %s: %w", q.path, err)
	}
	if q.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if a.cfg.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+a.cfg.APIKey)
	}
	resp, err := a.cfg.Transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", strings.ToLower(q.method), q.path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, q.limit+1))
	switch {
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s %s: %w", strings.ToLower(q.method), q.path, &statusError{resp.StatusCode})
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", q.path, err)
	case int64(len(body)) > q.limit:
		return nil, fmt.Errorf("read %s: longer than %d bytes", q.path, q.limit)
	}
	return body, nil
}

// answerOf says what the outcome of a health check means. An answer of any kind but a server error comes from a living
// engine: not every server has the route, and a wrong key is not a dead engine.
func answerOf(err error) answer {
	if err == nil {
		return answerGood
	}
	if s, ok := errors.AsType[*statusError](err); ok {
		return answerOfStatus(s.code)
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return answerRefused
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF):
		return answerGone
	}
	return answerFailed
}

func answerOfStatus(code int) answer {
	switch {
	case code == http.StatusServiceUnavailable:
		return answerGone
	case code == http.StatusNotImplemented: // llama.cpp, for a route that was not turned on
		return answerGood
	case code >= http.StatusInternalServerError:
		return answerFailed
	}
	return answerGood
}

// missing reports whether an error says that the engine has no such route, or that it was not turned on.
func missing(err error) bool {
	s, ok := errors.AsType[*statusError](err)
	return ok && (s.code == http.StatusNotFound || s.code == http.StatusMethodNotAllowed ||
		s.code == http.StatusNotImplemented)
}

// refused reports whether an error is the engine's answer that it will not do what it was asked.
func refused(err error) bool {
	s, ok := errors.AsType[*statusError](err)
	return ok && (s.code < http.StatusInternalServerError || s.code == http.StatusNotImplemented)
}
