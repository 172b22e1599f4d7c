package simulate

import (
	"math/rand/v2"
	"time"
)

// Machine is a kind of modelled engine.
type Machine string

// The kinds.
const (
	MachineFIFO Machine = "fifo" // prefill one at a time beside decode, long contexts
	MachineStep Machine = "step" // steps of prefill and decode together, short contexts
)

// traffic is what a workload is like. It is shared by the policies of a run and never changed.
type traffic struct {
	Machine     Machine
	blockTokens int
	cacheBlocks int           // of an engine, by default
	span        time.Duration // of a run, by default
	warmUp      time.Duration // of it, by default: requests that arrive before do not count
	covered     bool          // a key is resident with the block that covers its boundary; else with the last whole block before
	open        func(w *world) source
	recorded    *replay // nil for generated and closed-loop traffic
}

// source makes the requests of one run.
type source interface {
	// begin schedules the first arrivals.
	begin()
	// arrive is called at each onArrival event. It schedules the next one and returns the request that is due, or nil.
	arrive() *request
	// ended is called when a request has ended, however it did.
	ended(r *request)
}

// The streams of random numbers drawn from one seed: what clients do must not depend on what the policy draws.
const (
	streamTraffic = iota + 1
	streamPolicy
	streamChannel
	streamPhase
	streamMixture
)

func newRand(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }

// mix is the splitmix64 finisher: a hash of a number.
func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// uniform draws from 0 up to 1 by a hash of numbers, so that the draw does not depend on what was drawn before.
func uniform(seed uint64, parts ...uint64) float64 {
	h := mix(seed)
	for _, p := range parts {
		h = mix(h ^ p)
	}
	return float64(h>>11) / (1 << 53)
}
