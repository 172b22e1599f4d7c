package simulate

import (
	"math"
	"time"
)

// The engine that serves prefill first come first served, one prompt at a time, while it decodes. It stands for a 32B model
// on two H100 with a long context; ROUTING.md part C is its source.
const (
	fifoFixed       = 0.015   // seconds of every prefill
	fifoRate        = 16000.0 // tokens/s of prefill in a short context
	fifoContext     = 65536.0 // tokens of context that double a token's prefill
	fifoByDecode    = 0.004   // what one decoding request adds to a prefill, as a share
	fifoStep        = 0.020   // seconds of a decode step
	fifoStepRunning = 0.0001  // what one decoding request adds to it
	fifoStall       = 1.5     // factor on a decode step while a prefill runs
	fifoRunning     = 128     // most requests that decode at once
)

// fifoSeconds is the time of one prefill: n new tokens at the end of a prompt of size tokens.
func fifoSeconds(n, size, decoding int) float64 {
	fresh, context := float64(n), float64(size)
	return fifoFixed + fresh/fifoRate*(1+(context-fresh/2)/fifoContext)*(1+fifoByDecode*float64(decoding))
}

// fifo is one engine of that kind. Decoding is processor sharing: all decoding requests get tokens at one pace, so each
// ends when the count of tokens per request, a clock of its own, reaches a known number.
type fifo struct {
	host  *node
	cache *cache
	speed float64 // divides all times

	queue    []*request
	head     *request // in prefill
	decoding []decoder
	tokens   float64 // per request since the start: the decoders' clock
	at       time.Duration
	version  int32 // of the event that ends the next decoder
	prefill  int32 // of the event that ends the prefill
}

type decoder struct {
	end float64 // on the decoders' clock
	r   *request
}

func (f *fifo) submit(r *request) {
	f.queue = append(f.queue, r)
	f.pump()
}

// pump begins the next prefill when the last one is done, and there is room.
func (f *fifo) pump() {
	if f.head != nil || len(f.queue) == 0 || len(f.decoding) >= fifoRunning {
		return
	}
	r := f.queue[0]
	hits := f.cache.match(r.chain)
	if !f.cache.start(r.chain, hits, len(r.chain)-hits) {
		if len(f.decoding) > 0 {
			return // one that ends makes room
		}
		r.uncached()
		hits = 0
	}
	f.queue = f.queue[1:]
	f.pace()
	f.head, r.hits = r, hits
	seconds := fifoSeconds(r.input-r.cached(f.host.w.blockTokens), r.input, len(f.decoding)) / f.speed
	f.prefill++
	f.host.w.after(seconds, event{kind: onPrefilled, a: int32(f.host.index), c: f.prefill})
	f.host.started(r)
	f.schedule()
}

// prefilled ends the prefill under way.
func (f *fifo) prefilled(version int32) {
	if version != f.prefill || f.head == nil {
		return
	}
	r := f.head
	f.pace()
	f.head = nil
	f.cache.store(r.chain[r.hits:])
	if r.output > 1 {
		f.push(decoder{end: f.tokens + float64(r.output-1), r: r})
	}
	f.host.first(r)
	if r.output <= 1 {
		f.finish(r)
	}
	f.pump()
	f.schedule()
}

// decoded ends the decoder that is due.
func (f *fifo) decoded(version int32) {
	if version != f.version {
		return
	}
	f.pace()
	f.tokens = max(f.tokens, f.decoding[0].end)
	f.finish(f.pop())
	f.pump()
	f.schedule()
}

func (f *fifo) finish(r *request) {
	f.cache.release(r.chain)
	f.host.done(r)
}

// pace brings the decoders' clock to now. It must be called before what sets the pace changes.
func (f *fifo) pace() {
	now := f.host.w.now
	f.tokens += (now - f.at).Seconds() / f.step()
	f.at = now
}

// step is the time of one decode step, in seconds.
func (f *fifo) step() float64 {
	s := fifoStep + fifoStepRunning*float64(len(f.decoding))
	if f.head != nil {
		s *= fifoStall
	}
	return s / f.speed
}

// schedule makes an event of the next end of a decoder, and voids the one before.
func (f *fifo) schedule() {
	f.version++
	if len(f.decoding) > 0 {
		wait := (f.decoding[0].end - f.tokens) * f.step()
		f.host.w.after(math.Max(wait, 0), event{kind: onDecoded, a: int32(f.host.index), c: f.version})
	}
}

// abort forgets everything, as a process that is killed does, and returns what it was doing.
func (f *fifo) abort() []*request {
	lost := f.queue
	if f.head != nil {
		lost = append(lost, f.head)
	}
	for _, d := range f.decoding {
		lost = append(lost, d.r)
	}
	f.queue, f.head, f.decoding = nil, nil, nil
	f.prefill++
	f.version++
	return lost
}

func (f *fifo) waiting() int  { return len(f.queue) }
func (f *fifo) working() bool { return f.head != nil }

// push and pop keep the decoders in a binary heap by their ends.
func (f *fifo) push(d decoder) {
	f.decoding = append(f.decoding, d)
	for i := len(f.decoding) - 1; i > 0; {
		up := (i - 1) / 2
		if f.decoding[up].end <= f.decoding[i].end {
			break
		}
		f.decoding[up], f.decoding[i] = f.decoding[i], f.decoding[up]
		i = up
	}
}

func (f *fifo) pop() *request {
	h := f.decoding
	r, n := h[0].r, len(h)-1
	h[0] = h[n]
	f.decoding = h[:n]
	for i := 0; ; {
		least := i
		for _, j := range []int{2*i + 1, 2*i + 2} {
			if j < n && h[j].end < h[least].end {
				least = j
			}
		}
		if least == i {
			return r
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}
