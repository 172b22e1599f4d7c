package cachestate

import (
	"iter"
	"math"
)

// Key is a prompt key: the hash of a canonical prompt from its start to one boundary. Keys are uniform 64-bit numbers
// and can be compared only within one Scheme.
type Key uint64

// Scheme is a key scheme: what makes keys comparable. Agents with different schemes know nothing of each other's
// caches.
type Scheme struct {
	Version uint8  // of the walk, the hash and the boundary schedule together
	Seed    uint64 // of the hash; a secret seed keeps outsiders from computing keys
}

// SchemeVersion is the version that this code computes.
const SchemeVersion = 1

// DefaultScheme returns the scheme in use unless a mesh agrees on another seed.
func DefaultScheme() Scheme { return Scheme{Version: SchemeVersion, Seed: 0x6b766d657368} }

// The tags of a canonical walk. Every other tag, 0x10 to 0x7f, names a kind of field, and tag|CloseField ends that
// field.
const (
	EndRoot    byte = 0x01 // the end of the root: what must be equal for anything to be shared
	EndMessage byte = 0x02 // the end of a message
	CloseField byte = 0x80
	// RoleField holds who wrote the message that begins with it: "assistant" for a model, "tool" for a tool.
	RoleField byte = 0x30
)

// MaxKeys is how many keys a prompt has at most. The byte boundaries take 752 of them at 4 MiB; the rest is for the
// ends of messages. More would make hops and overlap walks longer for prompts that no engine of today serves.
const MaxKeys = 1024

// Prompt computes the keys of a canonical prompt into p, whose slices it reuses. The walk yields (tag, piece) pairs: a
// field is any number of pieces with one tag, then (tag|CloseField, nil); an empty field is the close alone. How a
// field is cut into pieces changes nothing. Pieces are not kept, and the walk is run once, to its end. It allocates
// nothing when p was used before.
func (s Scheme) Prompt(walk iter.Seq2[byte, []byte], p *Prompt) {
	h := p.hasherFor()
	h.reset(s.Seed)
	walk(h.yield)
	p.Bytes = h.count
	p.Sure = min(p.Sure, len(p.Keys))
}

// boundaries is the schedule of keys inside content: up to a number of bytes after the root, one at every multiple of
// step. Steps grow because a long shared prefix is worth more than the tokens lost between two boundaries; 512 bytes
// are about 128 tokens, half a percent of overlap is lost at each step.
var boundaries = [...]struct{ until, step int64 }{
	{16 << 10, 512},
	{64 << 10, 1 << 10},
	{512 << 10, 2 << 10},
	{4 << 20, 8 << 10},
}

// noBoundary is a position that content never reaches.
const noBoundary = math.MaxInt64

// nextBoundary returns the first boundary after count content bytes.
func nextBoundary(count int64) int64 {
	for _, b := range boundaries {
		if count < b.until {
			return (count/b.step + 1) * b.step
		}
	}
	return noBoundary
}
