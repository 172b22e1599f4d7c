package spread

import (
	"fmt"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// DigestID names one digest of the mesh.
type DigestID struct {
	Engine engine.ID
	Tier   cachestate.Tier
}

// maxMessage bounds a message: a digest of the largest geometry fits.
const maxMessage = 4 << 20

// publishDigests sends what changed since the last time; empty deltas carry version and checksum, so that a peer that
// missed one finds out within a period.
func (t *Teller) publishDigests() {
	var deltas []cachestate.Delta
	for _, s := range t.Sources {
		published := s.Publish()
		t.keepOwn(s, published)
		deltas = append(deltas, published...)
	}
	for _, b := range digestMessages(deltas) {
		t.broadcast(b)
	}
}

// keepOwn takes what an engine beside this agent published into the agent's own index. That may have dropped what it had,
// as it does when another generation is announced.
func (t *Teller) keepOwn(s Source, published []cachestate.Delta) {
	if t.Index == nil {
		return
	}
	for i := range published {
		if !t.Index.Apply(&published[i]).NeedFull() {
			continue
		}
		for _, whole := range s.Digests() {
			if whole.Tier == published[i].Tier {
				t.Index.Apply(&whole)
			}
		}
	}
}

// wholeDigests are the messages that a new peer gets.
func (t *Teller) wholeDigests() [][]byte {
	var whole []cachestate.Delta
	for _, s := range t.Sources {
		whole = append(whole, s.Digests()...)
	}
	return digestMessages(whole)
}

// digestMessages puts deltas into as few messages as can be: nearly always one, but whole digests of hundreds of engines in
// several tiers are more than that. None for no deltas.
func digestMessages(deltas []cachestate.Delta) [][]byte {
	var out [][]byte
	var part []byte
	for i := range deltas {
		b := cachestate.AppendDelta(nil, &deltas[i])
		if part != nil && len(part)+len(b) > maxMessage {
			out, part = append(out, part), nil
		}
		if part == nil {
			part = []byte{messageDigests}
		}
		part = append(part, b...)
	}
	if part != nil {
		out = append(out, part)
	}
	return out
}

// hearDigests takes in digests of engines that their owner has announced, of the life that it announced. Others would take
// places in the index that nobody frees, or bring back what an earlier life held; they are sent again after the
// announcement.
func (l *Listener) hearDigests(from string, b []byte) error {
	for len(b) > 0 {
		d, rest, err := cachestate.ParseDelta(b, from, l.Index.Geometry())
		if err != nil {
			return fmt.Errorf("parse digest: %w", err)
		}
		b = rest
		if gen, ok := l.View.Generation(d.Engine); !ok || gen != d.Generation {
			continue
		}
		id := DigestID{d.Engine, d.Tier}
		if outcome := l.Index.Apply(&d); outcome.NeedFull() {
			l.pull(id)
		}
		l.digestHeard(id)
	}
	return nil
}

func (l *Listener) digestHeard(id DigestID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.digestAt[id] = time.Now()
}

// DigestAges returns the time since each digest's last message.
func (l *Listener) DigestAges(now time.Time) map[DigestID]time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[DigestID]time.Duration, len(l.digestAt))
	for id, at := range l.digestAt {
		out[id] = now.Sub(at)
	}
	return out
}

// Have returns the version of a digest that is here.
func (l *Listener) Have(id DigestID) (cachestate.Version, bool) {
	index := l.Index.Tier(id.Tier)
	if index == nil {
		return cachestate.Version{}, false
	}
	return index.Have(id.Engine)
}
