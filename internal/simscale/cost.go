package simscale

import "math/bits"

// What messages take at IP level, measured between two agents over loopback: IPv4, UDP, QUIC's short header and its tag, the
// frame's own header.
const (
	streamOverhead   = 58 // a packet with a piece of a stream
	datagramOverhead = 53 // a packet with a datagram
	ackBytes         = 61 // a packet with nothing but an acknowledgement
	packetPayload    = 1140
	closeBytes       = 8 // what opening and closing a stream adds
)

// packetsPerAck is how many packets in a row are acknowledged by one; one that comes alone is too.
const packetsPerAck = 2

// Membership: memberlist pings one member a second and is pinged as often, and agents exchange all they know of members
// with one other each pushPull.
const (
	pingBytes     = 150 // there and back, on the average, with headers, label and encryption
	memberBytes   = 178 // of a member, in an exchange
	versionBytes  = 25  // of a digest in the version vector beside it
	pushPull      = 30.0
	exchangeParts = 2 // an agent begins one in each interval, and answers one
)

// cost is what a message takes.
type cost struct {
	bytes, packets int // there
	ackBytes, acks int // back
}

func streamed(payload int) cost {
	packets := max((payload+packetPayload-1)/packetPayload, 1)
	acks := (packets + packetsPerAck - 1) / packetsPerAck
	return cost{bytes: payload + packets*streamOverhead, packets: packets, ackBytes: acks * ackBytes, acks: acks}
}

func datagram(payload int) cost {
	return cost{bytes: payload + datagramOverhead, packets: 1, ackBytes: ackBytes, acks: 1}
}

// gossip returns the bytes and packets a second that membership takes of each agent, in each direction.
func gossip(agents int) (bytes, packets float64) {
	interval := pushPull
	if agents > 32 { // memberlist's pushPullScale
		interval *= float64(bits.Len(uint(agents-1)) - 5 + 1)
	}
	exchanged := exchangeParts * float64(agents*(memberBytes+versionBytes)) / interval
	return 2*pingBytes + exchanged, 4 + exchanged/packetPayload
}
