package node

import (
	"fmt"
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/policy"
	"github.com/kvmesh/kvmesh/mesh/agreed"
)

// The sources of the policy in force, the first before the next.
const (
	SourceAgreed  = "agreed"
	SourceFile    = "file"
	SourceBuiltIn = "built-in"
)

// PolicyStatus is the policy by which this agent routes.
type PolicyStatus struct {
	Source  string    `json:"source"`          // agreed, file or built-in
	Index   uint64    `json:"index,omitempty"` // of an agreed one
	Author  string    `json:"author,omitempty"`
	Time    time.Time `json:"time,omitzero"`
	Classes int       `json:"classes"`
	Trouble string    `json:"trouble,omitempty"` // why it is not the latest agreed one
}

// policyInForce is a policy and its text.
type policyInForce struct {
	PolicyStatus
	text string
	seen uint64 // index of the latest agreed one that was looked at
}

// fromConfig is the policy before one is agreed on.
func fromConfig(c *Config) policyInForce {
	p := policyInForce{PolicyStatus: PolicyStatus{Source: SourceBuiltIn, Classes: len(c.Forward.Policy.Classes)}, text: c.PolicyText}
	if c.PolicyText != "" {
		p.Source = SourceFile
	}
	return p
}

// applyPolicy puts the agreed policy into force. One that this version cannot read does not change what is: the newest of the
// history that it can read, or the one of before.
func (a *agreement) applyPolicy(s *agreed.State) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.Policy.Index == a.policy.seen {
		return
	}
	var trouble string
	next := fromConfig(&a.n.config)
	parsed := &a.n.config.Forward.Policy
	if s.Policy.Text != "" {
		p, old, err := newestReadable(s)
		if err != nil {
			trouble = fmt.Sprintf("the agreed policy of index %d cannot be read by this version: %v", s.Policy.Index, err)
			a.n.log.Warn("agreed policy not in force", "index", s.Policy.Index, "err", err)
		}
		if p == nil { // what was in force stays
			a.policy.seen, a.policy.Trouble = s.Policy.Index, trouble
			return
		}
		parsed = p
		next = policyInForce{text: old.Text, PolicyStatus: PolicyStatus{
			Source: SourceAgreed, Index: old.Index, Author: old.Author, Time: old.Time, Classes: len(p.Classes),
		}}
	}
	next.seen, next.Trouble = s.Policy.Index, trouble
	if err := a.n.ingress.SetPolicy(parsed); err != nil { // it was checked when it was read
		a.n.log.Error("policy not in force", "err", err)
		return
	}
	a.policy = next
	a.n.log.Info("policy in force", "source", next.Source, "index", next.Index, "author", next.Author, "classes", next.Classes)
}

// newestReadable returns the newest agreed policy that this version can read, nil for none, and why it is not the newest.
func newestReadable(s *agreed.State) (p *forward.Policy, of agreed.Policy, why error) {
	if p, why = policy.Parse([]byte(s.Policy.Text)); why == nil {
		return p, s.Policy, nil
	}
	for _, old := range slices.Backward(s.History) {
		if p, err := policy.Parse([]byte(old.Text)); err == nil {
			return p, old, why
		}
	}
	return nil, agreed.Policy{}, why
}

func (a *agreement) policyInForce() policyInForce {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.policy
}
