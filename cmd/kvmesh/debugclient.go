package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// debugClient asks the debug server of an agent; its fields are flags.
type debugClient struct {
	Addr      string `arg:"" help:"Address of the agent's debug server; 127.0.0.1:7083 by default." default:"127.0.0.1:7083"`
	TokenFile string `help:"File with the debug server's token, when it has one." placeholder:"FILE"`
}

// answerTimeout bounds the wait for what an agent has at hand.
const answerTimeout = 5 * time.Second

// maxAnswer bounds what is read of an agent: the status of 1,000 engines takes some MiB.
const maxAnswer = 64 << 20

// ask returns what the agent answers.
func (s *debugClient) ask(ctx context.Context, method, path string, timeout time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+strings.TrimPrefix(s.Addr, "http://")+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	if s.TokenFile != "" {
		token, err := secret(s.TokenFile)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("no agent answers at %s: %w", s.Addr, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %s", s.Addr, resp.Status, strings.TrimSpace(string(body)))
	}
	return body, err
}
