package node

import (
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/engineagent"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/spread"
	"github.com/kvmesh/kvmesh/mesh"
	"github.com/kvmesh/kvmesh/mesh/agreed"
)

// Config is what a Node is made of. Start from DefaultConfig.
type Config struct {
	Mesh    mesh.Config    // MeshID, Name, addresses, identity, seeds; the handlers are the node's
	Forward forward.Config // limits; the rest is the node's
	Engines []EngineConfig // beside this agent; none for an ingress-only agent

	HTTP       string      // address of the ingress
	TLS        *tls.Config // of the ingress; nil for HTTP in clear
	Debug      string      // address of the debug server; "" for none
	DebugToken string      // what clients of the debug server must send as a bearer token; "" on loopback only

	// Data is a folder that this agent's part in the agreed state and its own cordons outlive restarts in; "" for none.
	Data string
	// BootstrapExpect is how many agents with the same number found the group that decides on the agreed state; 0 for an
	// agent that joins what others found. See agreed.Config.
	BootstrapExpect int
	// PolicyText is the text of Forward.Policy; "" for the built-in one.
	PolicyText string

	MemoryLimit int64 // bytes of the process; new requests are refused well before; 0 for none
	// DrainTimeout is how long a stopping agent waits for what runs, with the grace. A supervisor that kills before it is over
	// cuts streams without a word: systemd's TimeoutStopSec and Kubernetes' terminationGracePeriodSeconds must be some seconds more.
	DrainTimeout time.Duration
	// DrainGrace is how long it still takes connections of clients, so that load balancers which look at readyz find out
	// before they meet a closed port. Shorter than their period of looking, clients see errors; longer, stops take longer.
	DrainGrace  time.Duration
	Logger      *slog.Logger
	Listen      func(network, addr string) (net.Listener, error) // nil: net.Listen
	Transport   http.RoundTripper                                // to engines, for requests; nil: a pool of TCP connections
	PollEngines http.RoundTripper                                // to engines, for polls; nil: as Transport

	// Source returns what peers are told of an engine beside this agent, in place of the engine agent that it is given; nil
	// changes nothing.
	Source func(engineAgent spread.Source) spread.Source
}

// EngineConfig is one engine beside the agent.
type EngineConfig struct {
	Name           string      // unique at the agent
	URL            *url.URL    // of the engine's HTTP server
	Kind           engine.Kind // "" to find out
	APIKey         string      // the engine's own key
	CapacityTokens int64       // KV cache size in tokens; 0 to ask the engine
	MaxRunning     int         // requests the engine runs at once; 0 to ask the engine
	NoQueue        bool        // hand requests to the engine as they are accepted
	PrefillStep    int         // tokens of one step of the engine's prefill; 0 to ask the engine
	Rank           *int        // data-parallel rank of the server that is this engine; nil for the whole server

	Events engineagent.Events // where its KV events come from; the zero value asks the engine
}

// maxExpect is the size of the group.
const maxExpect = agreed.MaxVoters

// maxDrain bounds how long an agent may take to stop: no stream takes a day.
const maxDrain = 24 * time.Hour

// maxRanks bounds the number of a data-parallel rank; no server has a thousand.
const maxRanks = 1024

// DefaultConfig returns the configuration of an agent on a network of its own, without engines and seeds.
func DefaultConfig() Config {
	return Config{
		Mesh:         mesh.DefaultConfig(),
		Forward:      forward.DefaultConfig(),
		HTTP:         ":7080",
		Debug:        "127.0.0.1:7083",
		DrainTimeout: 25 * time.Second, // all is over before Kubernetes kills, 30 s after its SIGTERM by default
		DrainGrace:   5 * time.Second,  // two looks of one that looks each 2 s; Kubernetes is quicker
	}
}

// Validate reports every violation, each with the name of its field at the start of a line.
func (c *Config) Validate() error {
	errs := []error{c.Mesh.Validate(), c.Forward.Validate()}
	check := func(ok bool, field, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(field+" "+format, args...))
		}
	}
	check(isAddress(c.HTTP), "HTTP", "(%q) must be host:port", c.HTTP)
	check(c.Debug == "" || isAddress(c.Debug), "Debug", "(%q) must be host:port", c.Debug)
	check(c.Debug == "" || c.DebugToken != "" || mesh.LoopbackOnly(c.Debug), "Debug", "(%s) is not on loopback: it needs a token", c.Debug)
	check(c.MemoryLimit >= 0, "MemoryLimit", "(%d) must not be negative", c.MemoryLimit)
	check(c.DrainTimeout >= 0 && c.DrainTimeout <= maxDrain, "DrainTimeout", "(%v) must be 0 to %v", c.DrainTimeout, maxDrain)
	check(c.DrainGrace >= 0 && c.DrainGrace <= maxDrain, "DrainGrace", "(%v) must be 0 to %v", c.DrainGrace, maxDrain)
	check(c.BootstrapExpect >= 0 && c.BootstrapExpect <= maxExpect, "BootstrapExpect", "(%d) must be 0 to %d", c.BootstrapExpect, maxExpect)
	check(c.BootstrapExpect == 0 || c.Data != "", "BootstrapExpect", "(%d) needs a data folder: Data is missing", c.BootstrapExpect)
	check(len(c.Engines) <= spread.MaxEngines, "Engines", "(%d) must be at most %d", len(c.Engines), spread.MaxEngines)
	names := map[string]bool{}
	for _, e := range c.Engines {
		field := fmt.Sprintf("Engine %q:", e.Name)
		check(e.Name != "" && len(e.Name) <= 64 && !strings.Contains(e.Name, "/"), field, "its name must have 1 to 64 bytes and no slash")
		check(!names[e.Name], field, "is there twice")
		check(e.URL != nil && (e.URL.Scheme == "http" || e.URL.Scheme == "https") && e.URL.Host != "", field, "its URL (%v) must be http://HOST:PORT", e.URL)
		check(e.URL == nil || !strings.HasSuffix(strings.TrimSuffix(e.URL.Path, "/"), "/v1"), field, "its URL (%v) must not end in /v1: the agent adds the routes", e.URL)
		check(e.CapacityTokens >= 0 && e.MaxRunning >= 0 && e.PrefillStep >= 0, field,
			"capacity, running requests and prefill step must not be negative")
		check(e.Rank == nil || *e.Rank >= 0 && *e.Rank < maxRanks, field, "its rank must be 0 to %d", maxRanks-1)
		check(e.Rank == nil || e.Kind == "" || e.Kind == engine.KindVLLM || e.Kind == engine.KindSGLang, field,
			"a rank of kind %s cannot be addressed", e.Kind)
		names[e.Name] = true
	}
	return errors.Join(errs...)
}

func isAddress(s string) bool {
	_, _, err := net.SplitHostPort(s)
	return err == nil
}

// tokenMatches compares without telling by its time how much of the token was right.
func tokenMatches(have, want string) bool {
	return sha256.Sum256([]byte(have)) == sha256.Sum256([]byte(want))
}
