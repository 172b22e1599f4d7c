package cachestate

import "strconv"

// Tier is where an engine keeps a block. Each tier that an engine has ever used has a digest of its own. It is cumulative:
// it holds every key whose blocks all lie in that tier or in a faster one, so that it is closed under prefixes.
type Tier uint8

// The tiers, from the fastest to the slowest.
const (
	TierGPU Tier = iota
	TierCPU
	TierDisk
	numTiers
)

// Held is a number of leading keys for each tier.
type Held [numTiers]int32

// Weight is the share of a token's prefill that is saved when its block lies in the tier: loading a block from host
// memory or disk takes time too.
func (t Tier) Weight() float64 {
	switch t {
	case TierGPU:
		return 1
	case TierCPU:
		return 0.75
	case TierDisk:
		return 0.25
	default:
		return 0
	}
}

// Valid reports whether t is one of the tiers.
func (t Tier) Valid() bool { return t < numTiers }

// String returns the tier's name as logs and metrics show it.
func (t Tier) String() string {
	switch t {
	case TierGPU:
		return "gpu"
	case TierCPU:
		return "cpu"
	case TierDisk:
		return "disk"
	default:
		return "tier" + strconv.Itoa(int(t))
	}
}
