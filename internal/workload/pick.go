package workload

import (
	"sync"
	"sync/atomic"
)

// Picker chooses the target of a request by its index in Config.Targets. It is called by many goroutines at once.
type Picker func(Request) int

// RoundRobin takes n targets in turn, as DNS round-robin does on average.
func RoundRobin(n int) Picker {
	var next atomic.Uint64
	return func(Request) int { return int((next.Add(1) - 1) % uint64(n)) }
}

// Random draws one of n targets for each request.
func Random(n int, seed uint64) Picker {
	var mu sync.Mutex
	rng := newRand(seed, 4)
	return func(Request) int {
		mu.Lock()
		defer mu.Unlock()
		return rng.IntN(n)
	}
}
