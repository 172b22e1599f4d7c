package simulate

import (
	"math/rand/v2"
	"time"
)

// The sessions workload is short conversations below shared system prompts, whose users come at random and answer after a
// pause: ROUTING.md D1, the set-up of another project's benchmark at 240 engines.
const (
	chatEngines      = 240 // for which the rates below are
	chatBlockTokens  = 16
	chatCacheBlocks  = 524_288 / chatBlockTokens
	chatSystems      = 32   // system prompts, Zipf distributed with exponent 1
	chatSystemTokens = 1024 // of each
	chatThinkLeast   = 2 * time.Second
	chatThink        = 10 * time.Second // mean of the exponential rest
)

// chatShape is one set of conversations.
type chatShape struct {
	rate   float64 // conversations a second at chatEngines
	least  int     // turns
	most   int
	first  lengths // tokens of the first message
	later  lengths
	answer lengths
}

var chatShapes = map[string]chatShape{
	"two": {
		rate: 611, least: 1, most: 2, first: lengths{900, 0.8, 32_000}, later: lengths{70, 0.8, 4000}, answer: lengths{110, 0.8, 2000},
	},
	"six": {
		rate: 205, least: 2, most: 6, first: lengths{2200, 0.8, 32_000}, later: lengths{70, 0.8, 4000}, answer: lengths{140, 0.8, 2000},
	},
}

// conversation is one that goes on. What it says is drawn from a seed of its own, so that policies meet the same ones.
type conversation struct {
	number  int
	rng     *rand.Rand
	system  int
	turn    int
	lengths []int // of its messages and answers, in turn
	first   block // of its own blocks
	ends    []int // of its messages so far
}

// chatter is one run of the sessions workload.
type chatter struct {
	w       *world
	shape   chatShape
	rng     *rand.Rand
	popular []float64 // cumulated
	begun   int
	blocks  block
	live    store[conversation]
}

func newChatter(w *world, s chatShape) *chatter {
	c := &chatter{w: w, shape: s, rng: newRand(w.cfg.Seed, streamTraffic), blocks: chatSystems * chatSystemTokens / chatBlockTokens}
	sum := 0.0
	for k := range chatSystems {
		sum += 1 / float64(k+1)
		c.popular = append(c.popular, sum)
	}
	return c
}

func (c *chatter) begin() { c.schedule() }

func (c *chatter) schedule() {
	rate := c.shape.rate * c.w.cfg.Load * float64(c.w.cfg.Engines) / chatEngines
	c.w.after(c.rng.ExpFloat64()/rate, event{kind: onArrival})
}

// arrive begins a conversation.
func (c *chatter) arrive() *request {
	if c.w.now >= c.w.cfg.Span {
		return nil
	}
	c.schedule()
	v := conversation{number: c.begun, rng: rand.New(rand.NewPCG(c.w.cfg.Seed, mix(uint64(c.begun))))}
	c.begun++
	turns := c.shape.least + v.rng.IntN(c.shape.most-c.shape.least+1)
	tokens := chatSystemTokens
	for i := range turns {
		message, answer := c.shape.later.draw(v.rng), c.shape.answer.draw(v.rng)
		if i == 0 {
			message = max(c.shape.first.draw(v.rng), chatBlockTokens)
		}
		v.lengths = append(v.lengths, message, answer)
		tokens += message + answer
	}
	for u := v.rng.Float64() * c.popular[len(c.popular)-1]; u >= c.popular[v.system]; {
		v.system++
	}
	v.ends = []int{chatSystemTokens}
	v.first = c.blocks
	c.blocks += block(tokens/chatBlockTokens) + 1
	return c.request(c.live.put(v))
}

// request makes the next turn of a conversation.
func (c *chatter) request(slot int32) *request {
	v := &c.live.all[slot]
	r := c.w.request(mix(uint64(v.number)<<8 | uint64(v.turn)))
	r.session, r.turn, r.user = int(slot), v.turn, mix(uint64(v.number))
	r.input, r.output = v.ends[len(v.ends)-1]+v.lengths[2*v.turn], v.lengths[2*v.turn+1]
	v.ends = append(v.ends, r.input)
	r.ends = append(r.ends, v.ends...)
	for i := range r.input / chatBlockTokens {
		r.chain = append(r.chain, v.block(i))
	}
	r.tail = v.block(r.input / chatBlockTokens)
	for i := r.input / chatBlockTokens; i < (r.input+r.output)/chatBlockTokens; i++ {
		r.answer = append(r.answer, v.block(i))
	}
	return r
}

// block names the i-th block of a conversation.
func (v *conversation) block(i int) block {
	const system = chatSystemTokens / chatBlockTokens
	if i < system {
		return block(v.system*system + i)
	}
	return v.first + block(i-system)
}

// ended goes on with the conversation after a pause.
func (c *chatter) ended(r *request) {
	v := &c.live.all[r.session]
	v.ends = append(v.ends, r.input+r.output)
	if v.turn++; 2*v.turn == len(v.lengths) {
		c.live.take(int32(r.session))
		return
	}
	pause := chatThinkLeast + time.Duration(v.rng.ExpFloat64()*float64(chatThink))
	if at := c.w.now + pause; at < c.w.cfg.Span {
		c.w.forRequest(at, c.request(int32(r.session)), event{kind: onFollowUp})
	}
}
