package simscale

import "math/bits"

// Membership: memberlist pings one member a second and is pinged as often, and agents exchange all they know of members
// with one other each pushPull.
const (
	pingBytes      = 150 // there and back, on the average, with headers, label and encryption
	memberBytes    = 178 // of a member, in an exchange
	versionBytes   = 25  // of a digest in the version vector beside it
	pushPull       = 30.0
	exchangePacket = 1140 // of an exchange in one packet
	exchangeParts  = 2    // an agent begins one in each interval, and answers one
)

// gossip returns the bytes and packets a second that membership takes of each agent, in each direction.
func gossip(agents int) (bytes, packets float64) {
	interval := pushPull
	if agents > 32 { // memberlist's pushPullScale
		interval *= float64(bits.Len(uint(agents-1)) - 5 + 1)
	}
	exchanged := exchangeParts * float64(agents*(memberBytes+versionBytes)) / interval
	return 2*pingBytes + exchanged, 4 + exchanged/exchangePacket
}
