package forward

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
