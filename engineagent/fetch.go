package engineagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"syscall"
)

// statusError is an answer that is not the one asked for.
type statusError struct{ code int }

func (e *statusError) Error() string { return fmt.Sprintf("status %d", e.code) }

// get asks the engine for path and returns at most limit bytes of the answer. Redirects are not followed: an engine
// must not send its agent elsewhere. An answer other than 200 is a *statusError.
func (a *Agent) get(ctx context.Context, path string, limit int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.PollTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.cfg.URL.JoinPath(path).String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("make request for %s: %w", path, err)
	}
	if a.cfg.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+a.cfg.APIKey)
	}
	resp, err := a.cfg.Transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	switch {
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("get %s: %w", path, &statusError{resp.StatusCode})
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", path, err)
	case int64(len(body)) > limit:
		return nil, fmt.Errorf("read %s: longer than %d bytes", path, limit)
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
	case code >= http.StatusInternalServerError:
		return answerFailed
	}
	return answerGood
}

// missing reports whether an error says that the engine has no such route.
func missing(err error) bool {
	s, ok := errors.AsType[*statusError](err)
	return ok && (s.code == http.StatusNotFound || s.code == http.StatusMethodNotAllowed)
}
