package cachestate

import (
	"errors"
	"fmt"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// Version names one state of a digest. Version 0 of every generation is the empty digest, so that a delta from 0 needs
// nothing before it.
type Version struct {
	Generation engine.Generation
	Number     uint64
	Checksum   uint64 // sum of mixLocation over the set bits
}

// Delta takes a digest from one version to another. It is either two lists of bits or, when Words is not nil, the whole
// digest. A delta of lists names every bit that flipped at any version between From and To, so it is right for a
// replica at any version in [From, To). An empty delta has From == To and tells the version only. Deltas are shared
// between readers and never changed once made.
type Delta struct {
	Engine     engine.ID
	Tier       Tier
	Generation engine.Generation
	Geometry   Geometry
	From, To   uint64   // Invariant: From <= To; From == 0 when Words is not nil
	Checksum   uint64   // of the digest at To
	Keys       uint32   // how many keys the digest stands for, to be shown
	Set        []uint32 // bits that are set at To; ascending
	Clear      []uint32 // bits that are clear at To; ascending, none of them in Set
	Words      []uint64 // the whole digest at To, Geometry.Bits long; Set and Clear are nil

	// Keys that tell as much as Set and Clear, if covered, for a shorter wire form.
	came, went []keyBits
	covered    bool
}

// Full reports whether d is a whole digest.
func (d *Delta) Full() bool { return d.Words != nil }

// Version returns the version that d leads to.
func (d *Delta) Version() Version {
	return Version{Generation: d.Generation, Number: d.To, Checksum: d.Checksum}
}

// errBitTwice is returned for a delta that sets and clears one bit.
var errBitTwice = errors.New("a bit is both set and cleared")

// validate reports the first broken invariant of d.
func (d *Delta) validate() error {
	if err := d.Geometry.Validate(); err != nil {
		return err
	}
	switch {
	case !d.Tier.Valid():
		return fmt.Errorf("unknown %v", d.Tier)
	case d.From > d.To:
		return fmt.Errorf("from version %d to %d", d.From, d.To)
	case d.From == d.To && len(d.Set)+len(d.Clear) > 0:
		return fmt.Errorf("bits change but version %d stays", d.To)
	case d.Full() && (d.From != 0 || len(d.Words) != d.Geometry.words() || len(d.Set)+len(d.Clear) > 0):
		return errors.New("whole digest and lists do not fit together")
	case !ascending(d.Set, d.Geometry.Bits) || !ascending(d.Clear, d.Geometry.Bits):
		return errors.New("bits are not ascending below the size of the digest")
	case !disjoint(d.Set, d.Clear):
		return errBitTwice
	}
	return nil
}

func ascending(list []uint32, below uint32) bool {
	for i, at := range list {
		if at >= below || i > 0 && at <= list[i-1] {
			return false
		}
	}
	return true
}

// disjoint walks two ascending lists side by side.
func disjoint(a, b []uint32) bool {
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0] == b[0]:
			return false
		case a[0] < b[0]:
			a = a[1:]
		default:
			b = b[1:]
		}
	}
	return true
}
