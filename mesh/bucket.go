package mesh

import (
	"sync"
	"time"
)

// initialsPerSecond is how many new connections are taken in a second, and at once, before a dialer must show that it
// receives at its address: the agents of a large mesh that all find this one anew stay below it for the most part, and
// forged addresses do not get it to allocate more.
const initialsPerSecond = 100

// bucket is a token bucket of initialsPerSecond.
type bucket struct {
	mu   sync.Mutex
	full time.Time // when it will be full again
}

// take takes a token if there is one.
func (b *bucket) take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.full.Before(now) {
		b.full = now
	}
	if b.full.Sub(now) > time.Second-time.Second/initialsPerSecond {
		return false
	}
	b.full = b.full.Add(time.Second / initialsPerSecond)
	return true
}
