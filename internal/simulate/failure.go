package simulate

import "time"

// Failure is one time in which an engine and its agent are dead.
type Failure struct {
	Engine   int
	From, To time.Duration
}

// failures schedules the deaths of the run.
func (w *world) failures() {
	for _, f := range w.cfg.failures() {
		w.at(f.From, event{kind: onFail, a: int32(f.Engine)})
		w.at(f.To, event{kind: onReturn, a: int32(f.Engine)})
	}
}

// fail kills an engine with its agent. Requests without a token yet are tried elsewhere; clients of the others see an error.
func (w *world) fail(i int) {
	n := w.nodes[i]
	if !n.up {
		return
	}
	for _, r := range n.die() {
		if r.began {
			w.policy.done(r, n)
			w.drop(r)
		} else {
			w.policy.lost(r)
		}
	}
}

// revive begins an engine's next life.
func (w *world) revive(i int) {
	if n := w.nodes[i]; !n.up {
		n.born()
		w.policy.born(n)
	}
}
