package simulate

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvmesh/kvmesh/internal/workload"
)

// The coding-agent workload is a closed loop: so many sessions per engine go on all the time, and a session sends its next
// request when the answer to the last one is complete and its recorded pause is over. ROUTING.md part C.
const (
	codingSessions = 20               // per engine
	codingThink    = 60 * time.Second // longer pauses are cut: the user went away
	codingContext  = 250_000          // tokens; a session ends before a longer prompt
	codingBlocks   = 6000             // an engine's cache
	codingStagger  = 60 * time.Second // time within which the first sessions begin
)

// codingSession is a recorded session in blocks of the simulated engine's size.
type codingSession struct {
	shared int // leading blocks that sessions of one kind have in common
	kind   uint64
	blocks int // its own, numbered from 0
	turns  []codingTurn
}

type codingTurn struct {
	input, output int
	think         time.Duration // before it
	chain         []uint32      // its whole blocks, as numbered in the session
}

// codingSessionsOf prepares recorded sessions.
func codingSessionsOf(recorded []workload.CodingSession) ([]codingSession, error) {
	var all []codingSession
	for i := range recorded {
		r := &recorded[i]
		if traceBlockTokens%r.BlockTokens != 0 {
			return nil, fmt.Errorf("session %d has blocks of %d tokens, which do not make %d", i, r.BlockTokens, traceBlockTokens)
		}
		s := codingSession{
			shared: r.SharedTokens / traceBlockTokens,
			kind:   mix(uint64(r.Kind.ToolTokens)<<32 | uint64(r.Kind.SystemTokens)),
		}
		g := grouping{per: traceBlockTokens / r.BlockTokens, numbers: map[[2]uint64]uint32{}}
		for _, t := range r.Turns {
			if t.InputTokens > codingContext {
				break
			}
			chain := g.chain(t.Blocks)
			chain = chain[:min(len(chain), t.InputTokens/traceBlockTokens)]
			s.turns = append(s.turns, codingTurn{t.InputTokens, max(t.OutputTokens, 1), min(t.Think, codingThink), chain})
		}
		if s.blocks = len(g.numbers); len(s.turns) > 0 {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no recorded session has a request")
	}
	return all, nil
}

// grouping makes blocks of the simulated engine's size of smaller ones. A block is named by the last id in it and by the
// block before it.
type grouping struct {
	per     int
	numbers map[[2]uint64]uint32
}

func (g *grouping) chain(runs []workload.BlockRun) []uint32 {
	var out []uint32
	before, n := uint64(0), 0
	for _, run := range runs {
		for i := range uint64(run.Count) {
			if n++; n%g.per != 0 {
				continue
			}
			name := [2]uint64{before, run.First + i}
			number, known := g.numbers[name]
			if !known {
				number = uint32(len(g.numbers))
				g.numbers[name] = number
			}
			out = append(out, number)
			before = uint64(number) + 1
		}
	}
	return out
}

// coder is one run of the coding workload.
type coder struct {
	w      *world
	all    []codingSession
	order  []int            // in which sessions are taken; then again, with blocks of their own
	taken  int              // sessions begun
	blocks uint32           // blocks named
	shared map[uint64]block // blocks of tools and system prompts, by kind and place
	live   []codingRun
	slots  int // sessions that go on at once
	starts []time.Duration
}

type codingRun struct {
	session int
	copy    int
	turn    int
	first   block // of its own blocks
}

func newCoder(w *world, all []codingSession) *coder {
	rng := newRand(w.cfg.Seed, streamTraffic)
	c := &coder{w: w, all: all, order: rng.Perm(len(all)), shared: map[uint64]block{}}
	c.slots = max(int(codingSessions*float64(w.cfg.Engines)*w.cfg.Load), 1)
	c.live = make([]codingRun, c.slots)
	for range c.slots {
		c.starts = append(c.starts, time.Duration(rng.Int64N(int64(codingStagger))))
	}
	return c
}

func (c *coder) begin() {
	for i := range c.live {
		c.fresh(i)
		c.send(i, c.starts[i])
	}
}

// fresh begins another session in a slot.
func (c *coder) fresh(slot int) {
	s := c.order[c.taken%len(c.order)]
	c.live[slot] = codingRun{session: s, copy: c.taken, first: c.blocks}
	c.blocks += uint32(c.all[s].blocks)
	c.taken++
}

// send schedules the slot's next request.
func (c *coder) send(slot int, at time.Duration) {
	run := &c.live[slot]
	s := &c.all[run.session]
	t := &s.turns[run.turn]
	r := c.w.request(mix(uint64(slot)<<32 | uint64(run.turn)))
	r.session, r.turn, r.user = slot, run.turn, mix(uint64(run.copy))
	r.input, r.output = t.input, t.output
	for i, b := range t.chain {
		if i < s.shared {
			r.chain = append(r.chain, c.sharedBlock(s.kind, i))
		} else {
			r.chain = append(r.chain, run.first+b)
		}
	}
	r.tail = block(mix(uint64(slot)<<32|uint64(run.turn)) | 1<<31)
	c.w.forRequest(at, r, event{kind: onFollowUp})
}

// sharedBlock names a block of tools and system prompt, the same for all sessions of a kind.
func (c *coder) sharedBlock(kind uint64, i int) block {
	key := mix(kind ^ uint64(i)<<1)
	have, known := c.shared[key]
	if !known {
		have = c.blocks
		c.blocks++
		c.shared[key] = have
	}
	return have
}

func (c *coder) arrive() *request { return nil }

// ended sends the next request of the session after its pause, or begins another session.
func (c *coder) ended(r *request) {
	slot := r.session
	run := &c.live[slot]
	if run.turn++; run.turn == len(c.all[run.session].turns) {
		c.fresh(slot)
	}
	think := c.all[c.live[slot].session].turns[c.live[slot].turn].think
	if at := c.w.now + think; at < c.w.cfg.Span {
		c.send(slot, at)
	}
}
