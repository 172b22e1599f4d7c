package cachestate

import "strconv"

// Outcome is what became of a delta.
type Outcome uint8

// The outcomes. Those that need a full digest leave the index at the version it has.
const (
	Applied   Outcome = iota
	Duplicate         // the index is at that version or beyond
	Stale             // of an earlier life of the engine's cache
	Behind            // versions before it are missing: pull the whole digest
	Corrupt           // the checksum disagrees: pull the whole digest
	Foreign           // another geometry or tier, or broken: nothing can be done with it
	Crowded           // the index has no slot left
)

// NeedFull reports whether the whole digest must be pulled from its owner.
func (o Outcome) NeedFull() bool { return o == Behind || o == Corrupt }

// String returns the outcome as logs and metrics show it.
func (o Outcome) String() string {
	names := [...]string{"applied", "duplicate", "stale", "behind", "corrupt", "foreign", "crowded"}
	if int(o) < len(names) {
		return names[o]
	}
	return "outcome" + strconv.Itoa(int(o))
}
