package kvevents

import (
	"context"
	"time"
)

// The pauses between attempts to connect double from the first on. A pause is at most a twentieth of the time that the
// trouble has lasted, within the two bounds: who is back after 10 s is found within half a second, who stays away is not
// bothered.
const (
	firstPause  = 100 * time.Millisecond
	shortPause  = 500 * time.Millisecond
	lastPause   = 5 * time.Second
	pausesShare = 20
)

// backoff paces the attempts of one source.
type backoff struct {
	f         *Follower
	since     time.Time // when the trouble began
	pause     time.Duration
	complaint string // last logged
}

func (f *Follower) newBackoff() *backoff { return &backoff{f: f} }

// wait pauses after an attempt that began and ended with err. A connection that lasted ends the trouble before it.
func (b *backoff) wait(ctx context.Context, began time.Time, err error) {
	now := time.Now()
	if b.since.IsZero() || now.Sub(began) > lastPause {
		b.since, b.pause, b.complaint = now, 0, ""
	}
	if err != nil && ctx.Err() == nil && err.Error() != b.complaint {
		b.complaint = err.Error()
		b.f.o.Logger.Warn("KV events interrupted", "endpoint", b.f.source.Endpoint, "err", err)
	}
	b.pause = nextPause(b.pause, now.Sub(b.since))
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(float64(b.pause) * (0.75 + 0.25*b.f.o.Jitter()))):
	}
}

// nextPause returns the pause after one, when the trouble has lasted for a time.
func nextPause(pause, trouble time.Duration) time.Duration {
	longest := min(max(trouble/pausesShare, shortPause), lastPause)
	return min(max(2*pause, firstPause), longest)
}
