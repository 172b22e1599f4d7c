package engineagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/engineagent/kvevents"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// Config says which engine to follow and how. Only ID and URL are needed; New gives the other fields their defaults.
type Config struct {
	ID     engine.ID
	URL    *url.URL    // of the engine's root: http://127.0.0.1:8000
	Kind   engine.Kind // "" asks the engine
	APIKey string      // sent as a bearer token; never logged

	// Rank is the data-parallel rank that is this engine, as the server's metrics name it: "0". Its requests must be
	// addressed to it. "" is the whole server: ranks that cannot be addressed are one engine.
	Rank string

	// Zone is where the engine stands, announced as it is: ingresses of the same zone prefer it to its equals.
	Zone string

	// CapacityTokens is the size of the KV cache; 0 asks the engine, and assumes DefaultCapacityTokens when it does not
	// say. Too large predicts overlap that was evicted, until evidence corrects it; too small forgets what is there.
	CapacityTokens int64
	// MaxRunning is how many requests may be in flight before the engine is full; 0 asks the engine, and assumes
	// DefaultMaxRunning when it does not say. Too large lets requests queue in the engine, too small leaves it idle.
	MaxRunning int

	// NoQueue hands requests to the engine as they are accepted. By default the owner keeps those that the engine could not
	// begin yet, and hands over the shortest first.
	NoQueue bool
	// PrefillStep is how many tokens the engine computes in one step of prefill; 0 asks the engine, and assumes
	// book.DefaultWindow when it does not say. Too large hands requests over before their turn, too small leaves the engine
	// idle between two.
	PrefillStep int

	Geometry cachestate.Geometry // of the digests until SetGeometries: the mesh's

	// Events says where the engine's KV events come from; the zero value asks the engine.
	Events Events
	// DialEvents reaches the sockets of KV events; nil means zmtp.Dial. Tests put an in-memory network here.
	DialEvents func(ctx context.Context, network, address string) (net.Conn, error)

	// Transport carries the polls. The default one uses no proxy: the engine is next door.
	Transport http.RoundTripper
	// PollPeriod is the time between two readings of a healthy engine. Bookings are counted at once, so a reading adds
	// only KV usage and foreign traffic: faster costs the engine's event loop more than it tells.
	PollPeriod time.Duration
	// PollTimeout bounds each question. Shorter takes a busy engine for a silent one, longer notices a hanging one late.
	PollTimeout time.Duration

	Now        func() time.Time
	Jitter     func() float64 // in [0, 1): spreads the polls of agents that were started together
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil registers nothing
}

// Events says where an engine's KV events come from. Named here, they need not be on the engine's host.
type Events struct {
	Off      bool   // no events are followed: what the engine holds is guessed by the mirror
	Endpoint string // of the first rank's publisher: tcp://HOST:PORT; "" asks the engine
	Replay   string // of the first rank's replay socket; "" when there is none
	Topic    string // prefix of the topics to follow
	Ranks    int    // data-parallel ranks, each at the next port; 0 means 1
	Bind     bool   // listen at Endpoint: the engine connects to us
}

// The values that stand for an engine that does not say. 256 requests is what vLLM's scheduler runs by default; 262,144
// tokens is what a 32B model leaves room for on two 80 GB cards.
const (
	DefaultMaxRunning     = 256
	DefaultCapacityTokens = 1 << 18
)

// retryPeriod is the time between two polls of an engine that is down. A refused connection costs neither side
// anything, and each period is time in which a restarted engine stands idle.
const retryPeriod = 200 * time.Millisecond

// describePeriod is the time between two looks at what changes seldom: models, adapters, routes that were missing.
const describePeriod = 30 * time.Second

// withDefaults returns c with its zero fields filled.
func (c Config) withDefaults() Config {
	if c.Geometry == (cachestate.Geometry{}) {
		c.Geometry = cachestate.DefaultGeometry()
	}
	if c.Transport == nil {
		c.Transport = defaultTransport()
	}
	if c.PollPeriod == 0 {
		c.PollPeriod = time.Second
	}
	if c.PollTimeout == 0 {
		c.PollTimeout = 2 * time.Second
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Jitter == nil {
		c.Jitter = rand.Float64
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// defaultTransport keeps one connection for the polls, and unpacks nothing, so that the bound on a body bounds what is
// read from the network.
func defaultTransport() http.RoundTripper {
	return &http.Transport{
		DialContext:            (&net.Dialer{Timeout: time.Second}).DialContext,
		MaxIdleConnsPerHost:    1,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true,
	}
}

// Validate reports every field that New would refuse.
func (c *Config) Validate() error {
	var errs []error
	if c.ID.Agent() == "" || c.ID.Name() == "" {
		errs = append(errs, fmt.Errorf("ID (%q) must be AGENT/NAME", c.ID))
	}
	if c.URL == nil || c.URL.Host == "" || (c.URL.Scheme != "http" && c.URL.Scheme != "https") {
		errs = append(errs, errors.New("URL must be http:// or https:// with a host"))
	}
	switch c.Kind {
	case "", engine.KindVLLM, engine.KindSGLang, engine.KindTRTLLM, engine.KindOther:
	default:
		errs = append(errs, fmt.Errorf("field Kind (%q) must be vllm, sglang, trtllm or other", c.Kind))
	}
	if err := engine.CheckZone(c.Zone); err != nil {
		errs = append(errs, fmt.Errorf("field Zone (%q): %w", c.Zone, err))
	}
	if c.CapacityTokens < 0 || c.CapacityTokens > maxCapacityTokens {
		errs = append(errs, fmt.Errorf("CapacityTokens (%d) must be from 0 to 2^50", c.CapacityTokens))
	}
	if c.MaxRunning < 0 || c.MaxRunning > maxMaxRunning {
		errs = append(errs, fmt.Errorf("MaxRunning (%d) must be from 0 to %d", c.MaxRunning, maxMaxRunning))
	}
	if c.PrefillStep < 0 || c.PrefillStep > maxPrefillStep {
		errs = append(errs, fmt.Errorf("PrefillStep (%d) must be from 0 to %d", c.PrefillStep, maxPrefillStep))
	}
	if c.PollPeriod < 0 || c.PollTimeout < 0 {
		errs = append(errs, errors.New("PollPeriod and PollTimeout must not be negative"))
	}
	if c.Events.Endpoint != "" {
		if _, err := kvevents.Expand(c.Events.Endpoint, c.Events.Replay, max(c.Events.Ranks, 1)); err != nil {
			errs = append(errs, err)
		}
	}
	if c.Geometry != (cachestate.Geometry{}) {
		if err := c.Geometry.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("validate Geometry: %w", err))
		}
	}
	return errors.Join(errs...)
}
