package forward

import (
	"math/rand/v2"
	"net/http"
	"slices"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// past is what a request was decided by, so that another policy can be tried on it. It stays in memory: it has the client's
// header, but for what proves who the client is.
type past struct {
	traffic Traffic
	session string // that the body names
	class   *Class
	keys    bool // its prompt has keys
	q       Question
	ranked  []Candidate
}

// secretFields are those of a header that are not kept. A policy that matches one of them is tried as if it were not there.
var secretFields = []string{"Authorization", "X-Api-Key", "Cookie", "Proxy-Authorization"}

// maxPastHeader bounds the bytes of a header that is kept; of a longer one nothing is.
const maxPastHeader = 8 << 10

func (x *exchange) past() *past {
	if x.event.Class == "" || len(x.ranked) == 0 {
		return nil
	}
	p := &past{traffic: x.traffic, session: x.session, class: x.class, keys: len(x.prompt.Keys) > 0, q: x.q, ranked: x.ranked}
	p.traffic.keyHash, p.traffic.Header = keyHash(x.r.Header), http.Header{}
	if size, _ := headerSize(x.r.Header); size <= maxPastHeader {
		p.traffic.Header = x.r.Header.Clone()
		for _, field := range secretFields {
			p.traffic.Header.Del(field)
		}
	}
	return p
}

// Route is how a request is routed.
type Route struct {
	Class    string    `json:"class"`
	Strategy Strategy  `json:"strategy"`
	Engine   engine.ID `json:"engine,omitempty"` // the best of the candidates; "" when that cannot be said
}

// Redecide returns how the last decision about a request went, and how it would go under p: by what was known of the candidates
// that there were. Which engine a hash chooses, or a look at digests that were not looked at, cannot be said: then the second
// Route has none. Engines that are equally good count as the same. It is false for a request that was not decided.
func (e *Event) Redecide(p *Policy) (was, would Route, ok bool) {
	if e.past == nil {
		return was, would, false
	}
	old := e.past
	was = Route{Class: e.Class, Strategy: old.q.Strategy, Engine: old.ranked[0].ID}
	class := p.Of(&old.traffic)
	q := old.question(class)
	would = Route{Class: class.Name, Strategy: q.Strategy}
	switch {
	case q.Strategy == old.q.Strategy && q.Rule == old.q.Rule && q.Pin == old.q.Pin:
		would.Engine = was.Engine
	case q.Pin == 0 && old.q.Pin == 0 && (old.q.Locality || !q.Locality):
		would.Engine = old.best(&q)
	}
	return was, would, true
}

// unknownPin is that of a prompt's beginning where it was not looked for: the prompt's keys are not kept.
const unknownPin = ^Pin(0)

// question is what would have been asked under another class.
func (p *past) question(class *Class) Question {
	prompt := cachestate.Prompt{Bytes: int64(p.traffic.Bytes)}
	if p.keys {
		prompt.Keys, prompt.Offsets = []cachestate.Key{1}, []uint32{0}
	}
	q := class.Question(&prompt, class.Session(p.traffic.Header, p.session))
	q.Learned, q.Zone = p.q.Learned, p.q.Zone
	if class.Strategy == StrategyPrefix && q.Locality {
		q.Pin = unknownPin
		if p.class.Strategy == StrategyPrefix && p.class.PrefixTokens == class.PrefixTokens {
			q.Pin = p.q.Pin
		}
	}
	return q
}

// best returns the engine that q chooses of the candidates; the one that was chosen if it is as good.
func (p *past) best(q *Question) engine.ID {
	candidates := slices.Clone(p.ranked)
	if !q.Locality {
		for i := range candidates {
			candidates[i].Overlap = 0
		}
	}
	ranked := Rank(q, candidates, rand.New(rand.NewPCG(0, 0)))
	if slices.ContainsFunc(q.ties(ranked), func(c Candidate) bool { return c.ID == p.ranked[0].ID }) {
		return p.ranked[0].ID
	}
	return ranked[0].ID
}
