package node

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/mesh"
)

// Config is what a Node is made of. Start from DefaultConfig.
type Config struct {
	Mesh    mesh.Config    // MeshID, Name, addresses, identity, seeds; the handlers are the node's
	Forward forward.Config // limits; the rest is the node's
	Engines []EngineConfig // beside this agent; none for an ingress-only agent

	HTTP       string // address of the ingress
	Debug      string // address of the debug server; "" for none
	DebugToken string // what clients of the debug server must send as a bearer token; "" on loopback only

	DrainTimeout time.Duration // how long streams may take to finish at a stop
	Logger       *slog.Logger
	Listen       func(network, addr string) (net.Listener, error) // nil: net.Listen
	Transport    http.RoundTripper                                // to engines, for requests; nil: a pool of TCP connections
	PollEngines  http.RoundTripper                                // to engines, for polls; nil: as Transport
}

// EngineConfig is one engine beside the agent.
type EngineConfig struct {
	Name           string      // unique at the agent
	URL            *url.URL    // of the engine's HTTP server
	Kind           engine.Kind // "" to find out
	APIKey         string      // the engine's own key
	CapacityTokens int64       // KV cache size in tokens; 0 to ask the engine
	MaxRunning     int         // requests the engine runs at once; 0 to ask the engine
}

// DefaultConfig returns the configuration of an agent on a network of its own, without engines and seeds.
func DefaultConfig() Config {
	return Config{
		Mesh:         mesh.DefaultConfig(),
		Forward:      forward.DefaultConfig(),
		HTTP:         ":7080",
		Debug:        "127.0.0.1:7083",
		DrainTimeout: 30 * time.Second, // most answers are complete by then; a supervisor's kill comes at about that time
	}
}

// Validate reports every violation, each with the name of its field at the start of a line.
func (c *Config) Validate() error {
	errs := []error{c.Mesh.Validate(), c.Forward.Validate()}
	if _, _, err := net.SplitHostPort(c.HTTP); err != nil {
		errs = append(errs, fmt.Errorf("HTTP (%q) must be host:port", c.HTTP))
	}
	if c.Debug != "" {
		if _, _, err := net.SplitHostPort(c.Debug); err != nil {
			errs = append(errs, fmt.Errorf("Debug (%q) must be host:port", c.Debug))
		} else if c.DebugToken == "" && !mesh.LoopbackOnly(c.Debug) {
			errs = append(errs, fmt.Errorf("Debug (%s) is not on loopback: it needs a DebugToken", c.Debug))
		}
	}
	if c.DrainTimeout < 0 {
		errs = append(errs, fmt.Errorf("DrainTimeout (%v) must not be negative", c.DrainTimeout))
	}
	names := map[string]bool{}
	for i, e := range c.Engines {
		if e.Name == "" || len(e.Name) > 64 {
			errs = append(errs, fmt.Errorf("Engines[%d].Name (%q) must have 1 to 64 bytes", i, e.Name))
		}
		if names[e.Name] {
			errs = append(errs, fmt.Errorf("Engines[%d].Name (%q) is there twice", i, e.Name))
		}
		names[e.Name] = true
		if e.URL == nil || (e.URL.Scheme != "http" && e.URL.Scheme != "https") || e.URL.Host == "" {
			errs = append(errs, fmt.Errorf("Engines[%d].URL (%v) must be http://HOST:PORT", i, e.URL))
		}
		if e.CapacityTokens < 0 || e.MaxRunning < 0 {
			errs = append(errs, fmt.Errorf("Engines[%d]: CapacityTokens and MaxRunning must not be negative", i))
		}
	}
	return errors.Join(errs...)
}

// tokenMatches compares without telling by its time how much of the token was right.
func tokenMatches(have, want string) bool {
	return sha256.Sum256([]byte(have)) == sha256.Sum256([]byte(want))
}
