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

// classState is what this ingress knows of the requests of one class.
type classState struct {
	reuse
	retries allowance
	hedges  allowance
	delays  [2]delays // of whole answers, and of streams
}

// classes keeps the state of each class. It is safe for concurrent use.
type classes struct {
	mu     sync.Mutex
	byName map[string]*classState
}

// with calls f with the state of a class, which it must not keep.
func (c *classes) with(name string, f func(*classState)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.byName[name]
	if s == nil {
		s = &classState{}
		c.byName[name] = s
	}
	f(s)
}

// note counts a request that was decided.
func (c *classes) note(e *Event) {
	if e.Class != "" {
		c.with(e.Class, func(s *classState) { s.note(e) })
	}
}

// keep drops the state of classes that p does not name, and returns their names.
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
	if s := c.byName[class.Name]; s != nil {
		return s.status(class)
	}
	return new(reuse).status(class)
}
