package node

import (
	"maps"
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/mesh/agreed"
)

// GeometryStatus is the digest geometry that the mesh agreed on, and how far its change is.
type GeometryStatus struct {
	Current string       `json:"current"`
	Next    string       `json:"next,omitempty"`
	Phase   agreed.Phase `json:"phase,omitempty"`
	Since   time.Time    `json:"since"`
	Read    string       `json:"read"` // by this agent's decisions
}

// SchemeStatus is how the mesh agreed to key a model's prompts. Seeds are secret.
type SchemeStatus struct {
	Model    string    `json:"model"`
	Window   bool      `json:"window"` // both schemes are computed
	Since    time.Time `json:"since"`
	Covered  float64   `json:"covered"`  // see forward.Ingress.Covered: of this agent's requests
	Requests int       `json:"requests"` // that this is of
}

func (n *Node) geometryStatus(c agreed.GeometryChange) GeometryStatus {
	s := GeometryStatus{Phase: c.Phase, Since: c.Since, Read: n.index.Geometry().String()}
	current, next, err := geometriesOf(c)
	if err != nil {
		s.Current = err.Error()
		return s
	}
	if s.Current = current.String(); !isNone(next) {
		s.Next = next.String()
	}
	return s
}

func (n *Node) schemeStatus(schemes map[string]agreed.SchemeChange) []SchemeStatus {
	out := []SchemeStatus{}
	for _, model := range slices.Sorted(maps.Keys(schemes)) {
		s := SchemeStatus{Model: model, Window: schemes[model].Next != nil, Since: schemes[model].Since}
		s.Covered, s.Requests = n.ingress.Covered(model)
		out = append(out, s)
	}
	return out
}
