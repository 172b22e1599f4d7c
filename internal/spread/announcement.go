package spread

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// MaxEngines bounds the engines of one agent.
const MaxEngines = 256

// announcePeriod is the number of digest periods between two announcements that tell nothing new. An announcement goes
// out at once when something changes and when a peer appears; the repetition repairs what a lost connection took along.
const announcePeriod = 10

// smallScale is by how much a scale may move without being told at once: it follows every answer, and would have an
// announcement made for many of them.
const smallScale = 2.0 / 16

// cannotWait reports whether peers should hear at once of how engines are now, and not with the announcement that is due anyway.
func cannotWait(told, now []engine.Engine) bool {
	return !slices.EqualFunc(told, now, func(t, e engine.Engine) bool {
		if math.Abs(t.OverlapScale()-e.OverlapScale()) <= smallScale {
			e.Scale = t.Scale
		}
		return bytes.Equal(engine.AppendEngine(nil, &t), engine.AppendEngine(nil, &e))
	})
}

// announce tells this agent's engines to every peer and to its own view, and returns what it told.
func (t *Teller) announce() []engine.Engine {
	message, engines := t.announcement()
	t.announceToSelf(engines)
	t.broadcast(message)
	return engines
}

// AnnounceToSelf tells this agent's engines to its own view, before Run tells everybody: requests may come earlier.
func (t *Teller) AnnounceToSelf() { t.announceToSelf(t.engines()) }

func (t *Teller) announceToSelf(engines []engine.Engine) {
	if t.View != nil {
		t.View.Announce(t.Self, engines, time.Now())
	}
}

func (t *Teller) engines() []engine.Engine {
	out := make([]engine.Engine, 0, len(t.Sources))
	for _, s := range t.Sources {
		out = append(out, s.Engine())
	}
	return out
}

// announcement is a number, this agent's instance, then its engines. Of two that come out of order the one with the higher
// number stands. The number is taken before the engines are read: when they change after that, a higher one follows.
func (t *Teller) announcement() (message []byte, engines []engine.Engine) {
	b := binary.AppendUvarint([]byte{messageEngines}, t.announced.Add(1))
	engines = t.engines()
	b = binary.LittleEndian.AppendUint64(b, t.Instance)
	b = binary.AppendUvarint(b, uint64(len(engines)))
	for i := range engines {
		b = engine.AppendEngine(b, &engines[i])
	}
	return b, engines
}

func (l *Listener) hearEngines(from string, b []byte) error {
	r := engine.NewReader(b)
	number, instance := r.Uvarint(), r.Uint64()
	count := r.Int(MaxEngines)
	if err := r.Err(); err != nil {
		return fmt.Errorf("parse announcement: %w", err)
	}
	rest := r.Rest()
	engines := make([]engine.Engine, 0, count)
	for range count {
		e, after, err := engine.ParseEngine(rest, from)
		if err != nil {
			return fmt.Errorf("parse announcement: %w", err)
		}
		engines, rest = append(engines, e), after
	}
	if l.isNews(from, instance, number) {
		l.View.Announce(from, engines, time.Now())
	}
	return nil
}

// isNews reports whether an announcement is newer than the last one of the same life: messages come in any order, and
// again.
func (l *Listener) isNews(from string, instance, number uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.lives[from]; ok && (known.instance != instance || number <= known.announced) {
		return false
	}
	l.lives[from] = life{instance, number}
	return true
}
