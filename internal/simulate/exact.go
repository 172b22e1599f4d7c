package simulate

// oracle is the yardstick: one decider that knows exactly and freshly what every engine holds and has queued, and takes the
// lowest of queued + 3 × new tokens. 3 is about 1/(1-utilisation) at 0.65, what a token of new work costs those behind it;
// ROUTING.md C5. It decides before the hop of the request before has landed, so requests of one instant all go to one engine.
type oracle struct {
	blind
	w *world
}

const oracleWork = 3

func newOracle(w *world) picker { return &oracle{w: w} }

func (o *oracle) pick(r *request) int {
	held := o.w.holders.overlap(r.chain)
	return o.w.least(func(e int) float64 {
		fresh := r.input - min(int(held[e])*o.w.blockTokens, r.input-1)
		return float64(o.w.nodes[e].queued + oracleWork*fresh)
	})
}
