package spread

import (
	"encoding/binary"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// maxStateEntry is more than one digest takes in the version vector.
const maxStateEntry = 600

// State returns the version vector of the digests that this agent has, at most limit bytes. It is the last resort for a
// peer that misses what an owner sends. The fastest tier stands first, in case there is not room for all. It tells only of the
// geometry that overlaps are looked up in, and does not name it: who looks them up in another one pulls once for nothing.
func (l *Listener) State(limit int) []byte {
	var b []byte
	for t := cachestate.TierGPU; t.Valid(); t++ {
		index := l.Index.Tier(t)
		if index == nil {
			continue
		}
		for id, v := range index.Versions() {
			if len(b) > limit-maxStateEntry {
				return b
			}
			b = append(b, versionVector(id, t, v)...)
		}
	}
	return b
}

// versionVector returns the entry of one digest.
func versionVector(id engine.ID, t cachestate.Tier, v cachestate.Version) []byte {
	b := append(engine.AppendString(nil, string(id)), byte(t))
	b = binary.AppendUvarint(b, uint64(v.Generation))
	return binary.AppendUvarint(b, v.Number)
}

// MergeState takes a peer's version vector: digests that somebody has newer are pulled from their owners.
func (l *Listener) MergeState(b []byte) {
	r := engine.NewReader(b)
	for len(r.Rest()) > 0 {
		id := DigestID{Engine: engine.ID(r.String(512)), Tier: cachestate.Tier(r.Byte()), Geometry: l.Index.Geometry()}
		gen, number := engine.Generation(r.Uvarint()), r.Uvarint()
		if r.Err() != nil {
			l.badMessages.Inc()
			return
		}
		if l.behind(id, gen, number) {
			l.pull(id)
		}
	}
}

// behind reports whether a version of a digest is newer than what is here, and of the life that its owner has announced.
func (l *Listener) behind(id DigestID, gen engine.Generation, number uint64) bool {
	if now, known := l.View.Generation(id.Engine); !known || now != gen || !id.Tier.Valid() || id.Engine.Agent() == l.Self {
		return false
	}
	if l.foreign(id.Engine.Agent()) {
		return false
	}
	have, _ := l.Have(id)
	return have.Generation != gen || have.Number < number
}
