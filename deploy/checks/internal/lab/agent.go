package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/internal/node"
	"github.com/kvmesh/kvmesh/internal/simengine"
)

// Agent is one agent of a mesh and the engine beside it. Addresses are HOST:PORT.
type Agent struct {
	Name                              string
	HTTP, QUIC, Gossip, Debug, Engine string

	Process, EngineProcess *check.Process

	host int // of the network, or how manieth on loopback; from 1
}

// EngineID is how the mesh calls the engine beside a.
func (a *Agent) EngineID() string { return a.Name + "/" + engineName }

// Status returns the mesh as a sees it.
func (a *Agent) Status(ctx context.Context) (s node.Status, err error) {
	return s, getJSON(ctx, a.Debug, "/debug/mesh.json", &s)
}

// Debugged reads any page of a's debug server that is JSON.
func (a *Agent) Debugged(ctx context.Context, path string, into any) error {
	return getJSON(ctx, a.Debug, path, into)
}

// Metrics returns what a counts.
func (a *Agent) Metrics(ctx context.Context) (Metrics, error) {
	page, err := get(ctx, a.Debug, "/metrics")
	if err != nil {
		return nil, err
	}
	return readMetrics(page)
}

// EngineStats returns what the engine beside a has done.
func (a *Agent) EngineStats(ctx context.Context) (s simengine.Stats, err error) {
	return s, getJSON(ctx, a.Engine, "/sim/stats", &s)
}

// SetFaults has the engine beside a show these failures, and no others.
func (a *Agent) SetFaults(ctx context.Context, f simengine.Faults) error {
	body, err := json.Marshal(f)
	if err != nil {
		return err
	}
	_, err = do(ctx, http.MethodPost, a.Engine, "/sim/faults", body)
	return err
}

// Ready reports whether a load balancer would send requests to a.
func (a *Agent) Ready(ctx context.Context) bool {
	_, err := get(ctx, a.HTTP, "/kvmesh/readyz")
	return err == nil
}

const (
	// debugToken is asked for by debug servers that are not on loopback.
	debugToken = "token"

	askLimit = 5 * time.Second
	pageMax  = 64 << 20 // bytes
)

func getJSON(ctx context.Context, addr, path string, into any) error {
	page, err := get(ctx, addr, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(page, into); err != nil {
		return fmt.Errorf("read %s%s: %w", addr, path, err)
	}
	return nil
}

func get(ctx context.Context, addr, path string) ([]byte, error) {
	return do(ctx, http.MethodGet, addr, path, nil)
}

func do(ctx context.Context, method, addr, path string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+addr+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+debugToken)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(io.LimitReader(resp.Body, pageMax))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s%s: %s: %s", strings.ToLower(method), addr, path, resp.Status, check.Tail(string(page), 200))
	}
	return page, err
}
