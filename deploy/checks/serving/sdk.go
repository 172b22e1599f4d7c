package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// sdkResult is what an SDK got for one case.
type sdkResult struct {
	Case   string `json:"case"`
	Engine string `json:"engine"`
	Body   string `json:"body"`
	Text   string `json:"text"`
}

// sdkClient runs all cases of one SDK against a base URL.
type sdkClient struct {
	name string
	run  func(ctx context.Context, base string) ([]sdkResult, error)
}

// checkSDK has the official clients stream through an agent whose own engine is down, and compares with what the engine
// that served them sends when it is asked directly.
func checkSDK(ctx context.Context, h *harness) error {
	clients, err := h.sdkClients(ctx)
	if err != nil {
		return err
	}
	m, err := startMesh(ctx, h, []string{"a", "b"}, "--speed", "4")
	if err != nil {
		return err
	}
	defer m.Close()
	ingress, owner := m.Agents[0], m.Agents[1]
	ingress.EngineProcess.Kill()
	if err := m.awaitState(ingress, ingress.EngineID(), "down"); err != nil {
		return err
	}
	for _, c := range clients {
		if err := h.compareSDK(ctx, c, ingress, owner); err != nil {
			h.Figures.Broken("sdk_"+c.name, err)
		}
	}
	return nil
}

// awaitState waits until an agent shows an engine in a state.
func (m *testMesh) awaitState(a *agent, id, state string) error {
	return check.Await(m.ctx, 10*time.Second, id+" to be "+state, func() bool {
		s, err := meshStatus(m.ctx, a)
		if err != nil {
			return false
		}
		e, ok := s.engine(id)
		return ok && e.State == state
	})
}

func (h *harness) compareSDK(ctx context.Context, c sdkClient, ingress, owner *agent) error {
	direct := "http://" + owner.Engine + "/v1"
	if _, err := c.run(ctx, direct); err != nil { // warms the cache, so that cached tokens agree from here on
		return err
	}
	want, err := c.run(ctx, direct)
	if err != nil {
		return err
	}
	got, err := c.run(ctx, "http://"+ingress.HTTP+"/v1")
	if err != nil {
		return err
	}
	h.sdkFigures(c.name, owner.EngineID(), want, got)
	return nil
}

func (h *harness) sdkFigures(name, engine string, want, got []sdkResult) {
	bytes, differing, texts, elsewhere := 0, 0, 0, 0
	var where []string
	for i, w := range want {
		g := got[i]
		bytes += len(w.Body)
		if n := differingBytes(normalise(w.Body), normalise(g.Body)); n > 0 {
			differing += n
			where = append(where, w.Case)
		}
		if w.Text != g.Text || w.Text == "" {
			texts++
		}
		if g.Engine != engine {
			elsewhere++
		}
	}
	h.Figures.Zero("sdk_"+name+"_differing_bytes", float64(differing), "of %d bytes in %d answers, ids and times aside%s", bytes, len(want), list(where))
	h.Figures.Zero("sdk_"+name+"_differing_texts", float64(texts), "of %d answers as the client put them together", len(want))
	h.Figures.Zero("sdk_"+name+"_not_through_mesh", float64(elsewhere), "of %d answers do not name %s", len(want), engine)
}

// volatile are the values that differ between two answers to one request.
var volatile = regexp.MustCompile(`("id":"[a-z]+-)[^"]*"|("created":)\d+`)

// normalise replaces ids and times by constants.
func normalise(body string) string { return volatile.ReplaceAllString(body, "$1$2*") }

// differingBytes counts the positions where a and b differ, and what one has more than the other.
func differingBytes(a, b string) int {
	n := max(len(a), len(b)) - min(len(a), len(b))
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}

// sdkClients makes the clients ready: openai-go always, the npm client where node is there.
func (h *harness) sdkClients(ctx context.Context) ([]sdkClient, error) {
	cases := filepath.Join(h.Root, "deploy", "checks", "sdk", "cases.json")
	binary, err := h.BuildGoSDK(ctx)
	if err != nil {
		return nil, err
	}
	clients := []sdkClient{{"openai_go", tool(h.Dir, binary, func(base string) []string {
		return []string{"-base", base, "-cases", cases}
	})}}
	for _, name := range []string{"node", "npm"} {
		if _, err := exec.LookPath(name); err != nil {
			h.Say("sdk: %s is not installed: the npm client is not checked", name)
			return clients, h.needNode(err)
		}
	}
	dir, err := h.InstallNodeSDK(ctx)
	if err != nil {
		h.Figures.Broken("sdk_openai_npm", err)
		return clients, nil
	}
	return append(clients, sdkClient{"openai_npm", tool(dir, "node", func(base string) []string {
		return []string{"sdk.mjs", base, cases}
	})}), nil
}

// needNode lets a short run do without node; a full run proves less without it and says so by failing.
func (h *harness) needNode(err error) error {
	if h.Short {
		return nil
	}
	return fmt.Errorf("a full run needs node and npm: %w", err)
}

// tool returns what runs a program with arguments made from the base URL and reads its lines.
func tool(dir, name string, args func(base string) []string) func(context.Context, string) ([]sdkResult, error) {
	return func(ctx context.Context, base string) ([]sdkResult, error) {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		out, err := check.Command{Dir: dir, Args: append([]string{name}, args(base)...)}.Run(ctx)
		if err != nil {
			return nil, err
		}
		return readSDK(out)
	}
}

func readSDK(out string) ([]sdkResult, error) {
	var results []sdkResult
	for line := range strings.Lines(out) {
		var r sdkResult
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return nil, fmt.Errorf("read the client's line: %w: %s", err, check.Tail(line, 200))
		}
		results = append(results, r)
	}
	if len(results) == 0 {
		return nil, fmt.Errorf("the client ran no case")
	}
	return results, nil
}
