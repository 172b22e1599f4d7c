package simscale

import "math/bits"

// Membership, as counted at 18 agents: memberlist pings one member a second and is pinged as often, and agents exchange all they
// know of members with one other each pushPull seconds.
const (
	pingBytes      = 210 // there and back, with headers, label and encryption
	memberBytes    = 147 // of a member and the version of its digest, in an exchange
	pushPull       = 30.0
	exchangeParts  = 2 // an agent begins one in each interval, and answers one
	exchangePacket = 1390
)

// gossip returns the bytes and packets a second that membership takes of each agent, in each direction.
func gossip(agents int) (bytes, packets float64) {
	interval := pushPull
	if agents > 32 { // memberlist's pushPullScale
		interval *= float64(bits.Len(uint(agents-1)) - 5 + 1)
	}
	exchanged := exchangeParts * float64(agents*memberBytes) / interval
	return 2*pingBytes + exchanged, 4 + exchanged/exchangePacket
}
