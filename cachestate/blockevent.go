package cachestate

import "github.com/cespare/xxhash/v2"

// BlockEvent is one KV event of an engine, whatever its wire form was. Its slices belong to the decoder that made it.
type BlockEvent struct {
	Kind   BlockEventKind
	Tier   Tier
	Group  int // cache group; 0 where the engine does not say
	Hashes []uint64

	// The rest is of BlocksStored only.

	GroupKind   GroupKind
	Window      int    // width in tokens of a sliding window
	Parent      uint64 // hash of the block before the first of Hashes, when HasParent
	HasParent   bool
	Tokens      []uint32 // of the whole range; empty when an offload event names hashes only
	BlockTokens int      // 0 when an offload event names hashes only
	// Extras has an entry for each hash, of what besides tokens went into the block: see BlockExtra. Empty means 0 for
	// all.
	Extras []uint64
	// ShowsExtras says that this form of the event names salt and adapter where there are any, so that their absence
	// means that there are none.
	ShowsExtras bool
}

// BlockEventKind is what happened to blocks.
type BlockEventKind uint8

// The kinds of KV event.
const (
	BlocksStored BlockEventKind = iota
	BlocksRemoved
	BlocksCleared // all blocks of the rank are gone, in every tier and group
)

// GroupKind is what a hybrid model's cache group needs for a hit.
type GroupKind uint8

// The kinds of cache group.
const (
	// GroupFull needs every block from the start: full, MLA and sink attention.
	GroupFull GroupKind = iota
	// GroupSliding needs the blocks of the last window.
	GroupSliding
	// GroupMamba needs the state at the end of the hit.
	GroupMamba
	// GroupOther is a kind that is not known: what it needs for a hit is not either.
	GroupOther
)

// BlockExtra returns what stands for the parts of a block besides its tokens: the adapter's name in every block, the
// cache salt in the first block of a sequence, and what the engine calls its media. It is 0 when there are none. Owner
// and decoder must name them in this order, as engines do.
func BlockExtra(parts ...string) uint64 {
	var d xxhash.Digest
	d.Reset()
	none := true
	for _, p := range parts {
		if p == "" {
			continue
		}
		none = false
		_, _ = d.WriteString(p)
		_, _ = d.Write([]byte{0})
	}
	if none {
		return 0
	}
	return d.Sum64() | 1
}
