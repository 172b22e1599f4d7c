package forward

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/kvmesh/kvmesh/internal/openai"
)

// PolicyFault is one violation of a policy.
type PolicyFault struct {
	Class int    // number of the class that it is in, from 1; 0 for the policy as a whole
	Name  string // of that class
	Field string // its name in YAML, as "match.path"
	Text  string // what is wrong with it
}

// Error returns the fault in one line.
func (f PolicyFault) Error() string {
	field := f.Field[strings.LastIndexByte(f.Field, '.')+1:]
	if f.Class == 0 {
		return fmt.Sprintf("policy: %s %s", field, f.Text)
	}
	return fmt.Sprintf("policy class %d (%q): %s %s", f.Class, f.Name, field, f.Text)
}

// Validate reports every violation, each with the class that it is in.
func (p *Policy) Validate() error {
	var errs []error
	for _, f := range p.Faults() {
		errs = append(errs, f)
	}
	return errors.Join(errs...)
}

// Faults returns every violation.
func (p *Policy) Faults() []PolicyFault {
	all := p.faults()
	names := map[string]bool{DefaultClass: true}
	for i := range p.Classes {
		c := &p.Classes[i]
		faults := append(c.faults(), c.Match.faults()...)
		faults.check(!names[c.Name], "name", "is taken")
		names[c.Name] = true
		for _, f := range faults {
			f.Class, f.Name = i+1, c.Name
			all = append(all, f)
		}
	}
	return all
}

func (p *Policy) faults() faults {
	var f faults
	f.check(len(p.Classes) <= maxClasses, "classes", "(%d) must be at most %d", len(p.Classes), maxClasses)
	for _, h := range p.ResponseHeaders {
		f.check(slices.Contains(explainHeaders, h), "response_headers", "%q is none of %s", h, strings.Join(explainHeaders, ", "))
	}
	for _, path := range p.AllowedRoutes {
		_, ok := routeNamed(path)
		f.check(ok, "allowed_routes", "%q is no route that kvmesh carries", path)
	}
	for _, field := range p.AllowedFields {
		f.check(slices.Contains(openai.RefusedFields(), field), "allowed_fields", "%q is refused by no rule; the fields are %s",
			field, strings.Join(openai.RefusedFields(), ", "))
	}
	return f
}

// routeNamed returns the route with a path as policies write it, and whether there is one.
func routeNamed(path string) (openai.Route, bool) {
	route, _ := openai.RouteFor(http.MethodPost, strings.Replace(path, "{id}", "id", 1))
	return route, route != 0
}

func (c *Class) faults() faults {
	var f faults
	f.check(c.Name != "" && len(c.Name) <= maxClassName, "name", "must have 1 to %d bytes", maxClassName)
	f.check(slices.Contains([]Strategy{"", StrategyAuto, StrategySession, StrategyPrefix, StrategyLoad}, c.Strategy),
		"strategy", "%q is none of auto, session, prefix, load", c.Strategy)
	f.check(c.PrefixTokens >= 0, "prefix_tokens", "(%d) must not be negative", c.PrefixTokens)
	f.check(c.PrefixTokens != 0 || c.Strategy != StrategyPrefix, "strategy", "prefix needs prefix_tokens")
	f.check(c.PrefixTokens == 0 || c.Strategy == StrategyPrefix, "prefix_tokens", "is for strategy prefix only")
	f.check(c.SessionHeader == "" || c.Strategy == StrategySession, "session_header", "is for strategy session only")
	f.check(c.LocalityWeight >= 0 && c.LocalityWeight <= maxLocalityWeight, "locality_weight",
		"(%v) must be above 0 and at most %d; strategy load ignores overlap", c.LocalityWeight, maxLocalityWeight)
	f.check(c.MinPromptTokens >= 0, "min_prompt_tokens", "(%d) must not be negative", c.MinPromptTokens)
	f.check(c.WaitWeight == 0 || c.WaitWeight >= 1 && c.WaitWeight <= maxWaitWeight, "wait_weight", "(%v) must be 1 to %d", c.WaitWeight, maxWaitWeight)
	f.check(c.RetryBudget >= 0 && c.RetryBudget <= 1, "retry_budget", "(%v) must be above 0 and at most 1", c.RetryBudget)
	for _, n := range []struct {
		field string
		value int
	}{{"overlap_candidates", c.OverlapCandidates}, {"random_candidates", c.RandomCandidates}, {"probes", c.Probes}} {
		f.check(n.value >= 0 && n.value <= maxCandidates, n.field, "(%d) must be 1 to %d", n.value, maxCandidates)
	}
	return append(f, c.queueFaults()...)
}

func (c *Class) queueFaults() faults {
	var f faults
	f.check(c.Priority >= -maxPriority && c.Priority <= maxPriority, "priority", "(%d) must be %d to %d", c.Priority, -maxPriority, maxPriority)
	f.check(c.QueueLimit >= 0, "queue_limit", "(%d) must not be negative", c.QueueLimit)
	f.check(c.QueueBytes >= 0, "queue_bytes", "(%d) must not be negative", c.QueueBytes)
	f.check(c.QueueTimeout >= 0 && c.QueueTimeout <= maxQueueTimeout, "queue_timeout", "(%v) must be at most %v", c.QueueTimeout, maxQueueTimeout)
	return f
}

func (m *Match) faults() faults {
	var f faults
	f.check(m.MinTokens >= 0 && m.MaxTokens >= 0, "match.min_tokens", "and max_tokens must not be negative")
	f.check(m.MaxTokens == 0 || m.MinTokens <= m.MaxTokens, "match.min_tokens", "(%d) is above max_tokens (%d)", m.MinTokens, m.MaxTokens)
	f.check(m.Path == "" || strings.HasPrefix(m.Path, "/"), "match.path", "(%q) must begin with a slash", m.Path)
	sum, err := hex.DecodeString(m.APIKey)
	f.check(m.APIKey == "" || err == nil && len(sum) == sha256.Size, "match.api_key_sha256", "must be %d hex digits", 2*sha256.Size)
	return f
}

type faults []PolicyFault

func (f *faults) check(ok bool, field, format string, args ...any) {
	if !ok {
		*f = append(*f, PolicyFault{Field: field, Text: fmt.Sprintf(format, args...)})
	}
}
