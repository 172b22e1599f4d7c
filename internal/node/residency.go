package node

import (
	"cmp"
	"errors"
	"io"
	"net/http"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/engineagent"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// chatRoute is the route of a request whose asker names none.
const chatRoute = "/v1/chat/completions"

// residency answers POST /debug/residency?engine=NAME&route=/v1/chat/completions with what this agent believes that an
// engine beside it holds of the prompt in the body. Nothing is sent to the engine, and nothing of the prompt is kept.
func (n *Node) residency(w http.ResponseWriter, r *http.Request) {
	e, err := n.estimate(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	jsonOf(func() any { return e }).ServeHTTP(w, r)
}

// estimate is what is believed of a prompt, and how its keys were made.
type estimate struct {
	engineagent.Estimate
	Layout openai.Layout `json:"layout"` // of the model: where its template puts what
}

func (n *Node) estimate(r *http.Request) (e estimate, err error) {
	a := n.byName[r.URL.Query().Get("engine")]
	if a == nil {
		return e, errors.New("engine is not the name of one beside this agent: add ?engine=NAME")
	}
	route, bad := openai.RouteFor(http.MethodPost, cmp.Or(r.URL.Query().Get("route"), chatRoute))
	if bad != nil {
		return e, bad
	}
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, int64(n.config.Forward.MaxBody)))
	if err != nil {
		return e, err
	}
	req, err := openai.Parse(route, body)
	if err != nil {
		return e, err
	}
	description := a.Engine()
	if _, ok := description.Serves(req.Model); !ok {
		return e, errors.New("the engine serves no model of that name")
	}
	model, ok := n.view.Canonical(req.Model)
	if !ok {
		return e, errors.New("the model is not announced yet: try again in a second")
	}
	e.Layout = openai.Layout(n.view.Layout(model))
	var p cachestate.Prompt
	n.ingress.Key(req, model, &p)
	e.Estimate = a.Estimate(&p)
	return e, nil
}
