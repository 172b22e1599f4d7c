package mesh

import "fmt"

// Kind is the first byte of a stream: who serves it.
type Kind uint8

// The kinds of streams. Gossip and control are served by this package; all others, also those without a name here,
// go to Config.Streams.
const (
	KindRequest    Kind = 1 // a request from its ingress to its owner
	KindGossip     Kind = 2 // a stream of memberlist: push/pull, ping
	KindProbe      Kind = 3 // asking an owner for its load
	KindDigestPull Kind = 4 // fetching a whole digest
	KindRaft       Kind = 5 // raft between voters, and those who watch them
	KindControl    Kind = 6 // hello and ping
	KindFeed       Kind = 7 // what an agent tells a peer about its engines, for as long as the connection lasts
)

// String returns the kind's name.
func (k Kind) String() string {
	if s := k.channel(); s != "other" {
		return s
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// channel returns the kind's label in metrics: a peer can name any kind, but not make a series of it.
func (k Kind) channel() string {
	switch k {
	case KindRequest:
		return "request"
	case KindGossip:
		return "gossip"
	case KindProbe:
		return "probe"
	case KindDigestPull:
		return "digest_pull"
	case KindRaft:
		return "raft"
	case KindControl:
		return "control"
	case KindFeed:
		return "feed"
	}
	return "other"
}

// urgency is the kind's QUIC priority, 0 first: what decides goes before what carries, and bulk that can wait goes last.
func (k Kind) urgency() int8 {
	switch k {
	case KindControl, KindRaft:
		return 0
	case KindProbe:
		return 1
	case KindGossip, KindFeed:
		return 5
	case KindDigestPull:
		return 6
	default: // requests, and kinds without a name here
		return 3
	}
}
