package spread

// Cost is what a message takes on the wire at IP level, with the headers of IPv4, UDP and QUIC, when it comes alone: of two
// that are less than 25 ms apart one acknowledgement does for both.
type Cost struct {
	Bytes, Packets       int // from its sender
	AckBytes, AckPackets int // back to it
}

// What messages take beside what they say, as counted between two agents on loopback. A busy machine sends one packet in
// seven again, because acknowledgements come 25 ms late and are waited for little longer.
const (
	streamPacket   = 57   // IP, UDP, QUIC's short header, a frame of a stream, the tag
	datagramPacket = 53   // the same with a frame of a datagram
	packetPayload  = 1390 // on paths of 1,500 bytes
	ackPacket      = 61   // that says nothing else; all packets of a message share one
)

// FeedCost is that of so many bytes written at once into a feed, or into the stream of a pull.
func FeedCost(size int) Cost {
	packets := max((size+packetPayload-1)/packetPayload, 1)
	return Cost{Bytes: size + packets*streamPacket, Packets: packets, AckBytes: ackPacket, AckPackets: 1}
}

// DatagramCost is that of a datagram.
func DatagramCost(size int) Cost {
	return Cost{Bytes: size + datagramPacket, Packets: 1, AckBytes: ackPacket, AckPackets: 1}
}
