package main

import (
	"math/rand/v2"
	"net/http"
	"sort"
	"strings"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// place is where a variant parts from a request: in the text of one of its messages.
type place struct {
	message int
	at      int // bytes
}

// randomPlace draws a place, evenly over the text.
func randomPlace(r *request, rng *rand.Rand) place {
	total := 0
	for _, m := range r.Messages {
		total += len(m.Content) + 1
	}
	at := rng.IntN(total)
	for i, m := range r.Messages {
		if at <= len(m.Content) {
			return place{i, at}
		}
		at -= len(m.Content) + 1
	}
	return place{}
}

// variant returns a request that is r's up to a place, where it parts from it: the rest of the message is another text,
// and nothing follows it but a
// short question where that was the system text.
func (p place) variant(r *request, rest string) request {
	v, m := *r, r.Messages[p.message]
	v.Messages = append([]message{}, r.Messages[:p.message+1]...)
	v.Messages[p.message] = message{
		Role: m.Role, ToolCallID: m.ToolCallID, Reasoning: m.Reasoning,
		Content: strings.ToValidUTF8(m.Content[:p.at], "") + " ~ " + rest,
	}
	if m.Role == "system" { // nobody sends one alone
		v.Messages = append(v.Messages, message{Role: "user", Content: "And now?"})
	}
	return v
}

// boundary moves a place back to the last boundary of a prompt key before it, in the same message: what is believed of a
// variant that parts there rests on that key alone, and not on how far apart keys are. The layout is the agent's.
func (p place) boundary(layout openai.Layout, r *request, rest string) place {
	keys := keysOf(layout, r)
	shared := func(at int) int {
		v := place{p.message, at}.variant(r, rest)
		n := 0
		for other := keysOf(layout, &v); n < min(len(keys), len(other)) && keys[n] == other[n]; n++ {
		}
		return n
	}
	want := shared(p.at)
	return place{p.message, sort.Search(p.at, func(at int) bool { return shared(at) >= want })}
}

// keysOf returns the prompt keys of a request to a model with a layout.
func keysOf(layout openai.Layout, r *request) []cachestate.Key {
	route, bad := openai.RouteFor(http.MethodPost, chatRoute)
	if bad != nil {
		panic(bad) // a route that there is
	}
	req, err := openai.Parse(route, r.body())
	if err != nil {
		panic(err) // a request that this program made
	}
	var p cachestate.Prompt
	cachestate.DefaultScheme().Prompt(req.Walk(r.Model, layout), &p)
	return p.Keys
}
