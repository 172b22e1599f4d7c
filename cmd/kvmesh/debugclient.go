package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"strings"
	"time"
)

// debugClient asks the debug server of an agent; its fields are flags.
type debugClient struct {
	Addr      string `arg:"" help:"Address of the agent's debug server; 127.0.0.1:7083 by default." default:"127.0.0.1:7083"`
	TokenFile string `help:"File with the debug server's token, when it has one." placeholder:"FILE"`
}

// agentFlags say which agent to ask, for commands whose arguments are something else.
type agentFlags struct {
	Addr      string `help:"Address of the debug server of any agent." default:"127.0.0.1:7083"`
	TokenFile string `help:"File with the debug server's token, when it has one." placeholder:"FILE"`
}

func (f *agentFlags) client() *debugClient { return &debugClient{Addr: f.Addr, TokenFile: f.TokenFile} }

// get reads what the agent has at a path into value.
func (f *agentFlags) get(ctx context.Context, path string, value any) error {
	body, err := f.client().ask(ctx, http.MethodGet, path, answerTimeout)
	if err != nil {
		return err
	}
	return f.read(body, value)
}

// changeTimeout is longer than an agent takes to say that there is no quorum.
const changeTimeout = 10 * time.Second

// change has the agent change something, and reads its answer into value.
func (f *agentFlags) change(ctx context.Context, path string, query url.Values, content string, value any) error {
	query.Set("author", operator())
	body, err := f.client().send(ctx, http.MethodPost, path+"?"+query.Encode(), strings.NewReader(content), changeTimeout)
	if err != nil {
		return err
	}
	return f.read(body, value)
}

func (f *agentFlags) read(body []byte, value any) error {
	if err := json.Unmarshal(body, value); err != nil {
		return fmt.Errorf("%s is no debug server of an agent: %w", f.Addr, err)
	}
	return nil
}

// operator is who runs this command, as the agreed state remembers it.
func operator() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

// answerTimeout bounds the wait for what an agent has at hand.
const answerTimeout = 5 * time.Second

// maxAnswer bounds what is read of an agent: the status of 1,000 engines takes some MiB.
const maxAnswer = 64 << 20

// ask returns what the agent answers.
func (s *debugClient) ask(ctx context.Context, method, path string, timeout time.Duration) ([]byte, error) {
	return s.send(ctx, method, path, http.NoBody, timeout)
}

func (s *debugClient) send(ctx context.Context, method, path string, content io.Reader, timeout time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+strings.TrimPrefix(s.Addr, "http://")+path, content)
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
