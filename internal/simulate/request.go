package simulate

import (
	"time"

	"github.com/kvmesh/kvmesh/engineagent/book"
)

// request is one request on its way. Requests are pooled: life says which use of one an event or a message is about.
type request struct {
	slot int32
	life uint32

	number  int           // in order of arrival, from 0
	due     time.Duration // when the client sends it
	ingress int           // where
	session int           // whose turn it is
	turn    int           // from 0
	user    uint64        // what a router that keeps sessions together would hash
	input   int           // tokens of the prompt
	output  int           // tokens of the answer, at least 1
	chain   []block       // the prompt's blocks
	tail    block         // what the end of the prompt lies in, when that is not in the chain
	answer  []block       // whole blocks that the answer adds to them
	ends    []int         // of the prompt's messages, in tokens; nil where the trace does not tell
	counted bool          // it is part of the result

	engine    int   // that serves it; -1 before one has accepted
	attempt   int32 // engines tried so far
	hits      int   // leading blocks of the chain that were resident when its prefill began
	copies    int   // blocks that others stored meanwhile
	left      int   // tokens of the prompt that are still to be computed, of the step engine
	made      int   // tokens of the answer
	began     bool  // the first token is out
	newTokens int   // estimated by the owner
	routed    int   // estimated by a router that keeps books of prefill
	entry     book.Entry
	took      time.Duration // of its prefill, as the owner saw it
	exchange  *exchange     // of kvmesh
}

// cached is how many of the prompt's tokens the engine did not have to compute. At least the last one always is.
func (r *request) cached(blockTokens int) int { return min(r.hits*blockTokens, r.input-1) }

// block returns the i-th block of the prompt; the last one may be part of a block, which is not in the chain then.
func (r *request) block(i int) block {
	if i < len(r.chain) {
		return r.chain[i]
	}
	return r.tail
}

// uncached lets a prompt that is longer than the whole cache be computed without it. Engines would refuse it.
func (r *request) uncached() { r.chain, r.answer, r.hits = r.chain[:0], r.answer[:0], 0 }

// pool hands out requests and takes them back.
type pool struct {
	all  []*request
	free []int32
}

func (p *pool) get() *request {
	if n := len(p.free); n > 0 {
		r := p.all[p.free[n-1]]
		p.free = p.free[:n-1]
		return r
	}
	r := &request{slot: int32(len(p.all)), engine: none}
	p.all = append(p.all, r)
	return r
}

// put takes r back. Its slices are used again.
func (p *pool) put(r *request) {
	*r = request{
		slot: r.slot, life: r.life + 1, engine: none,
		chain: r.chain[:0], answer: r.answer[:0], ends: r.ends[:0], exchange: r.exchange,
	}
	p.free = append(p.free, r.slot)
}
