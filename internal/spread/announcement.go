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

// maxNames bounds the names of models, aliases too, of all engines of an agent. Each has a place in the view, which is locked
// while an announcement is taken in: some 40 ms for as many.
const maxNames = 1 << 14

// announcePeriod is the number of digest periods between two announcements that need not go at once: changes of scale wait
// for it, and whoever lost what it was told has it again.
const announcePeriod = 10

// smallScale is by how much a scale may move without being told at once: it follows every answer, and would have an
// announcement made for many of them.
const smallScale = 2.0 / 16

// announcement is all engines beside this agent, as they were at one moment.
type announcement struct {
	number  uint64 // of two the one with the higher number stands
	urgent  uint64 // number of the last one that could not wait
	engines []engine.Engine
	frame   []byte
}

// cannotWait reports whether peers should hear at once of how engines are now, and not with the announcement that is due anyway.
func cannotWait(told, now []engine.Engine) bool {
	return !slices.EqualFunc(told, now, func(t, e engine.Engine) bool {
		if math.Abs(t.OverlapScale()-e.OverlapScale()) <= smallScale {
			e.Scale = t.Scale
		}
		return bytes.Equal(engine.AppendEngine(nil, &t), engine.AppendEngine(nil, &e))
	})
}

// told returns the engines as they were announced last.
func (t *Teller) told() []engine.Engine { return t.now().announcement.engines }

// announce tells of this agent's engines at once, announceAgain with the next edition.
func (t *Teller) announce()      { t.renew(true) }
func (t *Teller) announceAgain() { t.renew(false) }

func (t *Teller) renew(urgent bool) {
	engines := t.engines()
	if t.View != nil {
		t.View.Announce(t.Self, engines, time.Now())
	}
	t.tellNews(func(n *news) {
		a := announcement{number: n.announcement.number + 1, urgent: n.announcement.urgent, engines: engines}
		if urgent {
			a.urgent = a.number
		}
		a.frame = appendFrame(nil, frameEngines, appendEngines(nil, a.number, engines))
		n.announcement = a
	})
}

// AnnounceToSelf tells of this agent's engines to its own view, before Run tells everybody: requests may come earlier.
func (t *Teller) AnnounceToSelf() { t.View.Announce(t.Self, t.engines(), time.Now()) }

func appendEngines(b []byte, number uint64, engines []engine.Engine) []byte {
	b = binary.AppendUvarint(b, number)
	b = binary.AppendUvarint(b, uint64(len(engines)))
	for i := range engines {
		b = engine.AppendEngine(b, &engines[i])
	}
	return b
}

func parseEngines(b []byte, owner string) (number uint64, engines []engine.Engine, err error) {
	r := engine.NewReader(b)
	number = r.Uvarint()
	count := r.Int(MaxEngines)
	if err := r.Err(); err != nil {
		return 0, nil, fmt.Errorf("parse announcement: %w", err)
	}
	rest := r.Rest()
	engines = make([]engine.Engine, 0, count)
	names := 0
	for range count {
		e, after, err := engine.ParseEngine(rest, owner)
		if err != nil {
			return 0, nil, fmt.Errorf("parse announcement: %w", err)
		}
		engines, rest = append(engines, e), after
		if names += namesOf(&e); names > maxNames {
			return 0, nil, fmt.Errorf("parse announcement: its engines answer to more than %d names of models", maxNames)
		}
	}
	return number, engines, nil
}

// namesOf returns how many names of models an engine answers to.
func namesOf(e *engine.Engine) int {
	n := len(e.Models)
	for i := range e.Models {
		n += len(e.Models[i].Aliases)
	}
	return n
}
