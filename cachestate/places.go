package cachestate

import "slices"

// place is where a block can lie: one tier of one rank, in one cache group.
type place struct {
	rank  int
	tier  Tier
	group int
}

// maxPlaces bounds the places of one engine; events of further ones are not counted.
const maxPlaces = 64

// maxRanks bounds the data-parallel ranks of one engine.
const maxRanks = 8

// level is a question about a block: does a rank hold it in a tier or in a faster one? Levels have a bit each.
type level struct {
	rank int
	tier Tier
	need []uint64 // places: one of each is needed, one set for each group of full attention
	rare []uint64 // the same for each sparse group, in the order of layout.sparse
}

// group is one cache group, as its events describe it.
type group struct {
	known  bool
	kind   GroupKind
	blocks int // blocks of the tree in one of its own
	window int // sliding: blocks of the tree that a hit needs
}

// layout is what is known of an engine's places. It changes only when an event names something for the first time.
type layout struct {
	places []place
	levels []level
	groups []group
	sparse []int            // groups of sliding windows and mamba
	tiers  [numTiers]uint32 // levels of each tier
	other  bool             // a group is of an unknown kind

	levelsOf []uint32 // by place: the level of its own tier
}

// place returns the bit of a place, and whether there is one.
func (l *layout) place(p place) (bit int, ok bool) {
	i := slices.Index(l.places, p)
	return i, i >= 0
}

// addPlace gives a place its bit. It returns false when there is no room.
func (l *layout) addPlace(p place) bool {
	if len(l.places) == maxPlaces || p.rank >= maxRanks || !p.tier.Valid() {
		return false
	}
	l.places = append(l.places, p)
	l.arrange()
	return true
}

// addGroup takes what an event says of its group and returns whether that is news.
func (l *layout) addGroup(n int, g group) bool {
	if n < len(l.groups) && l.groups[n] == g {
		return false
	}
	for len(l.groups) <= n {
		l.groups = append(l.groups, group{blocks: 1})
	}
	l.groups[n] = g
	l.arrange()
	return true
}

// arrange computes levels from places and groups.
func (l *layout) arrange() {
	l.levels, l.sparse, l.other, l.tiers = nil, nil, false, [numTiers]uint32{}
	for i, g := range l.groups {
		switch {
		case g.known && (g.kind == GroupSliding || g.kind == GroupMamba):
			l.sparse = append(l.sparse, i)
		case g.known && g.kind == GroupOther:
			l.other = true
		}
	}
	l.levelsOf = make([]uint32, len(l.places))
	for bit, p := range l.places {
		i := slices.IndexFunc(l.levels, func(v level) bool { return v.rank == p.rank && v.tier == p.tier })
		if i < 0 {
			i = len(l.levels)
			l.tiers[p.tier] |= 1 << i
			l.levels = append(l.levels, l.levelOf(p))
		}
		l.levelsOf[bit] = 1 << i
	}
}

// levelOf returns the level of a place's rank and tier.
func (l *layout) levelOf(p place) level {
	v := level{rank: p.rank, tier: p.tier}
	for i, g := range l.groups {
		if g.known && g.kind == GroupFull {
			v.need = append(v.need, l.placesOf(p.rank, p.tier, i))
		}
	}
	for _, i := range l.sparse {
		v.rare = append(v.rare, l.placesOf(p.rank, p.tier, i))
	}
	return v
}

// placesOf returns the places in which a block of a group counts for a level.
func (l *layout) placesOf(rank int, t Tier, group int) uint64 {
	var set uint64
	for bit, p := range l.places {
		if p.rank == rank && p.tier <= t && p.group == group {
			set |= 1 << bit
		}
	}
	return set
}

// of returns the places of a rank.
func (l *layout) of(rank int) uint64 {
	var set uint64
	for bit, p := range l.places {
		if p.rank == rank {
			set |= 1 << bit
		}
	}
	return set
}

// holds returns the levels that hold a block which lies in the given places, as far as full attention asks.
func (l *layout) holds(have uint64) uint32 {
	var set uint32
levels:
	for i := range l.levels {
		for _, need := range l.levels[i].need {
			if have&need == 0 {
				continue levels
			}
		}
		set |= 1 << i
	}
	return set
}
