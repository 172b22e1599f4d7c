package forward

import (
	"net/http"
	"slices"

	"github.com/kvmesh/kvmesh/internal/openai"
)

// inForce is a policy and what follows from it, as requests read it. It does not change: another policy is another value.
type inForce struct {
	*Policy
	limits  openai.Limits
	routes  map[openai.Route]bool // nil: all
	explain map[string]bool       // of explainHeaders
}

// explainHeaders are the fields of answers that say how a request was routed, without their common beginning.
var explainHeaders = []string{"engine", "overlap", "reason"}

func newInForce(p *Policy, explain bool) *inForce {
	f := &inForce{Policy: p, limits: openai.DefaultLimits(), explain: map[string]bool{}}
	f.limits.Refused = slices.DeleteFunc(f.limits.Refused, func(field string) bool { return slices.Contains(p.AllowedFields, field) })
	if p.AllowedRoutes != nil {
		f.routes = map[openai.Route]bool{}
	}
	for _, path := range p.AllowedRoutes {
		route, _ := routeNamed(path)
		f.routes[route] = true
	}
	headers := p.ResponseHeaders
	if headers == nil && explain {
		headers = explainHeaders
	}
	for _, h := range headers {
		f.explain[h] = true
	}
	return f
}

// SetPolicy puts p into force for requests to come; those that run keep what they were decided by. It never waits for them.
// Counters of classes that p names too go on, those of others are dropped. p must not change afterwards; one that is not
// valid is an error, and the policy before stays.
func (g *Ingress) SetPolicy(p *Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	g.policy.Store(newInForce(p, g.Explain))
	for _, name := range g.classes.keep(p) {
		g.metrics.forgetClass(name)
	}
	return nil
}

// Policy returns the policy in force. It is not to be changed.
func (g *Ingress) Policy() *Policy { return g.policy.Load().Policy }

// checkRoute refuses a route that the policy does not allow, as one that does not exist.
func (f *inForce) checkRoute(route openai.Route) *openai.Error {
	if f.routes == nil || f.routes[route] {
		return nil
	}
	return &openai.Error{
		Status: http.StatusNotFound, Type: "invalid_request_error", Reason: openai.ReasonRoute,
		Message: "the policy of this mesh does not allow this route",
	}
}
