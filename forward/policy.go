package forward

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// Policy says how which kind of traffic is routed. The first class that matches a request is its class; one that none
// matches is of the built-in class "default", whose strategy is auto. The zero Policy has only that one.
type Policy struct {
	Classes []Class `yaml:"classes"`

	// ResponseHeaders are those of engine, overlap and reason that answers name in x-kvmesh fields; empty for none, nil for
	// what Config.Explain says.
	ResponseHeaders []string `yaml:"response_headers"`
	// AllowedRoutes are the paths that clients may ask, such as /v1/chat/completions or /v1/responses/{id}; nil for all.
	AllowedRoutes []string `yaml:"allowed_routes"`
	// AllowedFields are fields of a body that clients may send although they are refused without a policy: those of
	// openai.RefusedFields. Each makes engines trust what clients say.
	AllowedFields []string `yaml:"allowed_fields"`
}

// Strategy is how an engine is chosen.
type Strategy string

// The strategies.
const (
	StrategyAuto    Strategy = "auto"    // by score: queue, new work, overlap, requests in flight
	StrategySession Strategy = "session" // by a hash of the session, within a bound on load; auto without a session
	StrategyPrefix  Strategy = "prefix"  // by a hash of the prompt's beginning, likewise; auto without keys
	StrategyLoad    Strategy = "load"    // by score without overlap
)

// Class is one kind of traffic.
type Class struct {
	Name     string   `yaml:"name"` // in metrics and on the debug page
	Match    Match    `yaml:"match"`
	Strategy Strategy `yaml:"strategy"` // "" for auto

	// SessionHeader is the header field that names a session, X-Session-Id by default. Without it the session is what the
	// body names: session_id, prompt_cache_key, user.
	SessionHeader string `yaml:"session_header"`
	// PrefixTokens is the length of the beginning that prefix hashes, at 4 bytes a token; needed by prefix. Prompts that are
	// alike up to there go to one engine: too short gathers what has nothing in common, too long scatters what has.
	PrefixTokens int `yaml:"prefix_tokens"`
	// LocalityWeight is the worth of a second of prefill that overlap saves, 1 by default: see Rule.
	LocalityWeight float64 `yaml:"locality_weight"`
	// MinPromptTokens is the size of a prompt below which overlap is not looked at, 200 by default.
	MinPromptTokens int `yaml:"min_prompt_tokens"`
	// WaitWeight, OverlapCandidates, RandomCandidates and Probes are WaitWeight, ByOverlap, ByChance and Probes of Rule; 0 for
	// those of DefaultRule.
	WaitWeight        float64 `yaml:"wait_weight"`
	OverlapCandidates int     `yaml:"overlap_candidates"`
	RandomCandidates  int     `yaml:"random_candidates"`
	Probes            int     `yaml:"probes"`

	// Priority decides who is served first when every engine is full: the highest, save one turn in sixteen.
	Priority int `yaml:"priority"`
	// QueueLimit and QueueBytes bound what of the class waits at one agent then, in requests and in bytes of bodies, and
	// QueueTimeout for how long; 0 for what the agent's own bounds allow.
	QueueLimit   int           `yaml:"queue_limit"`
	QueueBytes   int64         `yaml:"queue_bytes"`
	QueueTimeout time.Duration `yaml:"queue_timeout"`

	// RetryBudget bounds the requests that are sent to one more engine after one that had them failed, as a share of all
	// requests of the class, 0.2 by default. A lower one gives up sooner; a higher one adds to the load when engines fail of it.
	RetryBudget float64 `yaml:"retry_budget"`
	// Hedge asks a second engine when the first has no content later than 19 of 20 requests of the class, and keeps the one
	// that answers first. It buys a shorter tail with up to 10 % more work.
	Hedge bool `yaml:"hedge"`
	// Continue has another engine go on with a stream that breaks, from its tokens, where the request allows it.
	Continue bool `yaml:"continue"`
}

// Match is what a class's requests have in common: all that is set here must be true.
type Match struct {
	Header    map[string]string `yaml:"header"`         // fields and their values; "*" for any value
	Model     string            `yaml:"model"`          // as the client writes it, or its canonical name
	Path      string            `yaml:"path"`           // of the route, as /v1/chat/completions
	MinTokens int               `yaml:"min_tokens"`     // of the prompt, at 4 bytes a token
	MaxTokens int               `yaml:"max_tokens"`     // likewise; 0 for any number
	APIKey    string            `yaml:"api_key_sha256"` // of the client's API key, in hex
}

// Traffic is what is known of a request when its class is looked for.
type Traffic struct {
	Header    http.Header
	Model     string // as the client wrote it
	Canonical string // its canonical name
	Path      string // without its query
	Bytes     float64
	keyHash   string // of the client's API key; "" to be found in Header
}

// The bounds of a policy, so that its classes can be labels of metrics.
const (
	maxClasses        = 64
	maxClassName      = 64
	maxLocalityWeight = 10
	maxWaitWeight     = 10
	maxPriority       = 100
	maxQueueTimeout   = time.Hour
	maxCandidates     = 32 // of either kind, and probes: more cost time and packets, and are no better
)

// DefaultClass is the name of the class of requests that no class of the policy matches.
const DefaultClass = "default"

// Of returns the class of a request.
func (p *Policy) Of(t *Traffic) *Class {
	for i := range p.Classes {
		if c := &p.Classes[i]; c.Match.matches(t) {
			return c
		}
	}
	return &Class{Name: DefaultClass}
}

func (m *Match) matches(t *Traffic) bool {
	tokens := t.Bytes / engine.DefaultBytesPerToken
	switch {
	case m.Model != "" && m.Model != t.Model && m.Model != t.Canonical,
		m.Path != "" && m.Path != t.Path,
		tokens < float64(m.MinTokens),
		m.MaxTokens > 0 && tokens > float64(m.MaxTokens),
		m.APIKey != "" && !strings.EqualFold(m.APIKey, cmp.Or(t.keyHash, keyHash(t.Header))):
		return false
	}
	for name, value := range m.Header {
		if values := t.Header.Values(name); len(values) == 0 || value != "*" && !slices.Contains(values, value) {
			return false
		}
	}
	return true
}

// keyHash returns the SHA-256 of the client's API key in hex; "" when it sent none.
func keyHash(h http.Header) string {
	key, ok := strings.CutPrefix(h.Get("Authorization"), "Bearer ")
	if !ok {
		key = h.Get("X-Api-Key")
	}
	if key == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// Session returns the session that a request belongs to, "" when it names none. InBody is what its body names.
func (c *Class) Session(h http.Header, inBody string) string {
	field := c.SessionHeader
	if field == "" {
		field = "X-Session-Id"
	}
	if s := h.Get(field); s != "" {
		return s
	}
	return inBody
}

func (c *Class) strategy() Strategy {
	if c.Strategy == "" {
		return StrategyAuto
	}
	return c.Strategy
}

// Rule returns the rule of the class.
func (c *Class) Rule() Rule {
	r := DefaultRule()
	if c.LocalityWeight > 0 {
		r.LocalityWeight = c.LocalityWeight
	}
	if c.MinPromptTokens > 0 {
		r.MinPromptTokens = c.MinPromptTokens
	}
	r.WaitWeight = cmp.Or(c.WaitWeight, r.WaitWeight)
	r.ByOverlap = cmp.Or(c.OverlapCandidates, r.ByOverlap)
	r.ByChance = cmp.Or(c.RandomCandidates, r.ByChance)
	r.Probes = cmp.Or(c.Probes, r.Probes)
	return r
}

// Question returns what is asked of a decision about a prompt of the class. What the engines have learned is not in it yet.
func (c *Class) Question(p *cachestate.Prompt, session string) Question {
	q := Question{Rule: c.Rule(), Strategy: c.strategy(), Bytes: float64(p.Bytes)}
	large := q.Bytes >= float64(q.Rule.MinPromptTokens)*engine.DefaultBytesPerToken
	q.Locality = len(p.Keys) > 0 && large && c.Strategy != StrategyLoad
	switch {
	case c.Strategy == StrategySession && session != "":
		q.Pin = pinOf(session)
	case c.Strategy == StrategyPrefix && q.Locality:
		q.Pin = prefixPin(p, c.PrefixTokens)
	}
	return q
}

// prefixPin is the last key of the first so many tokens. Prompts that are alike up to there have all keys up to there in
// common. The key at the very start says only which model is asked: that is no pin.
func prefixPin(p *cachestate.Prompt, tokens int) Pin {
	end := float64(tokens) * engine.DefaultBytesPerToken
	pin := Pin(0)
	for i, at := range p.Offsets {
		if float64(at) > end {
			break
		}
		if at > 0 {
			pin = Pin(p.Keys[i])
		}
	}
	return pin
}
