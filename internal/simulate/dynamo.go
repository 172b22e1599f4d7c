package simulate

// dynamo is the cost of NVIDIA Dynamo's KV router (docs.nvidia.com/dynamo, "KV Router"): blocks of prefill that the engine
// would have to do, its active ones included, times an overlap weight of 1, plus blocks that its requests would hold. The
// lowest wins, temperature 0. One router, with an exact index from KV events and its own books of what is active.
type dynamo struct {
	w      *world
	tokens []int           // of prefill, active on each engine
	active []map[block]int // blocks of the requests in flight, with their number
}

const dynamoOverlapWeight = 1

func newDynamo(w *world) picker {
	p := &dynamo{w: w, tokens: make([]int, w.cfg.Engines)}
	for range w.cfg.Engines {
		p.active = append(p.active, map[block]int{})
	}
	return p
}

func (p *dynamo) pick(r *request) int {
	held := p.w.holders.overlap(r.chain)
	return p.w.least(func(e int) float64 {
		fresh := r.input - min(int(held[e])*p.w.blockTokens, r.input-1)
		prefill := float64(p.tokens[e]+fresh) / float64(p.w.blockTokens)
		return dynamoOverlapWeight*prefill + float64(len(p.active[e])+p.adds(r.chain, e))
	})
}

// adds is how many blocks of the chain no request in flight on the engine has.
func (p *dynamo) adds(chain []block, e int) int {
	for i, b := range chain {
		if p.active[e][b] == 0 {
			return len(chain) - i // a chain shares its beginning
		}
	}
	return 0
}

func (p *dynamo) sent(r *request, e int) {
	held := p.w.holders.overlap(r.chain)
	r.routed = r.input - min(int(held[e])*p.w.blockTokens, r.input-1)
	p.tokens[e] += r.routed
	for _, b := range r.chain {
		p.active[e][b]++
	}
}

func (p *dynamo) first(r *request, e int) {
	p.tokens[e] -= r.routed
	r.routed = 0
}

func (p *dynamo) done(r *request, e int) {
	p.first(r, e)
	for _, b := range r.chain {
		if p.active[e][b]--; p.active[e][b] == 0 {
			delete(p.active[e], b)
		}
	}
}
