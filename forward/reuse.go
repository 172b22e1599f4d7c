package forward

import (
	"slices"
	"sync"
)

// ClassStatus is how one class does, as the debug page shows it.
type ClassStatus struct {
	Name     string   `json:"name"`
	Strategy Strategy `json:"strategy"`
	Requests int      `json:"requests"`
	Reuse    float64  `json:"reuse"` // share of prompt tokens that engines report as cached, of late; negative while none reports
	NoReuse  bool     `json:"no_reuse"`
}

// The mean of a class's reuse forgets a hundredth with each request, so it is of some hundred; after so many requests with
// less than so much reuse the class is said to have none.
const (
	reuseKeep   = 0.99
	reuseSample = 100
	noReuse     = 0.01
)

// reuse is what the requests of one class found in caches.
type reuse struct {
	requests int
	reported int
	prompt   float64 // tokens, the older ones for less
	cached   float64
}

func (r *reuse) note(e *Event) {
	r.requests++
	if e.CachedTokens == nil || e.PromptTokens == 0 {
		return
	}
	r.reported++
	r.prompt = r.prompt*reuseKeep + float64(e.PromptTokens)
	r.cached = r.cached*reuseKeep + float64(*e.CachedTokens)
}

func (r *reuse) status(c *Class) ClassStatus {
	s := ClassStatus{Name: c.Name, Strategy: c.strategy(), Requests: r.requests, Reuse: -1}
	if r.reported > 0 {
		s.Reuse = r.cached / r.prompt
		s.NoReuse = s.Reuse < noReuse && r.reported >= reuseSample
	}
	return s
}

// classes counts by class. It is safe for concurrent use.
type classes struct {
	mu     sync.Mutex
	byName map[string]*reuse
}

// note counts a request that was decided.
func (c *classes) note(e *Event) {
	if e.Class == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byName[e.Class] == nil {
		c.byName[e.Class] = &reuse{}
	}
	c.byName[e.Class].note(e)
}

// keep drops what was counted of classes that p does not name, and returns their names.
func (c *classes) keep(p *Policy) (dropped []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.byName {
		if name != DefaultClass && !slices.ContainsFunc(p.Classes, func(c Class) bool { return c.Name == name }) {
			delete(c.byName, name)
			dropped = append(dropped, name)
		}
	}
	return dropped
}

// Classes returns how the classes do, in the order of the policy, the default one last.
func (g *Ingress) Classes() []ClassStatus {
	g.classes.mu.Lock()
	defer g.classes.mu.Unlock()
	out := []ClassStatus{}
	p := g.Policy()
	for i := range p.Classes {
		out = append(out, g.classes.statusLocked(&p.Classes[i]))
	}
	return append(out, g.classes.statusLocked(&Class{Name: DefaultClass}))
}

func (c *classes) statusLocked(class *Class) ClassStatus {
	if r := c.byName[class.Name]; r != nil {
		return r.status(class)
	}
	return new(reuse).status(class)
}
