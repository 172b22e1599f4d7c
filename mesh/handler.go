package mesh

import "context"

// PeerHandler is told who can be reached. Its methods run one at a time, in the order in which things happened; they
// must not block and must not call Close. PeerUp returns before the first stream or datagram of that
// connection is delivered.
type PeerHandler interface {
	// PeerUp says that a connection to the peer stands. It comes again, after a PeerDown, for a new instance.
	PeerUp(Peer)
	// PeerDown says that the peer cannot be reached now, and why in words.
	PeerDown(name, reason string)
}

// StreamHandler serves streams that peers open.
type StreamHandler interface {
	// ServeStream owns s until it returns; what it has not closed is closed then. Each stream has its own goroutine.
	// ctx ends with the connection, and its cause says why. A kind that it does not know it should Cancel.
	ServeStream(ctx context.Context, peer string, kind Kind, s *Stream)
}

// DatagramHandler gets what peers send without a stream. It may come out of order.
type DatagramHandler interface {
	// Datagram gets a SendDatagram of the peer. Calls for one peer come one at a time, for several at once; it must not
	// block. It may keep b.
	Datagram(peer string, b []byte)
}

// StateHandler gives and takes the opaque state that memberlist's push/pull carries: with one random peer each period,
// and with every seed at a join. Its methods may be called at any time from several goroutines.
type StateHandler interface {
	// LocalState returns at most MaxState bytes; more is not sent and counted.
	LocalState() []byte
	// MergeState takes what some peer returned from LocalState. It may keep b.
	MergeState(b []byte)
}
