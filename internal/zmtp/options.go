package zmtp

import "time"

// The socket types that a Conn can be.
const (
	SUB    = "SUB"
	DEALER = "DEALER"
)

// peers are the types that each of ours may talk to.
var peers = map[string][]string{
	SUB:    {"PUB", "XPUB"},
	DEALER: {"ROUTER", "DEALER", "REP"},
}

// Options describe our side of a connection. Zero fields take the default that is named.
type Options struct {
	Socket string // SUB or DEALER
	// Topics are the prefixes that a SUB wants; an empty one is everything, none is nothing.
	Topics []string
	// MaxFrame bounds the bytes of a frame: MaxMessage.
	MaxFrame int
	// MaxMessage bounds the bytes of a message, all frames together: 64 MiB.
	MaxMessage int
	// MaxFrames bounds the frames of a message: 16.
	MaxFrames int
	// Handshake is how long the peer may take to greet, to take what is written, and to go on with a message that it
	// began: 5 s. Shorter ends connections to a busy host, longer keeps a stuck one.
	Handshake time.Duration
	// Silence is how long a peer may say nothing before it is asked for a sign of life, and then again before the
	// connection ends: 10 s. Peers of ZMTP 3.0 know no such question; for them TCP's keepalive must do.
	Silence time.Duration
}

func (o Options) withDefaults() Options {
	if o.MaxMessage == 0 {
		o.MaxMessage = 64 << 20
	}
	if o.MaxFrame == 0 {
		o.MaxFrame = o.MaxMessage
	}
	if o.MaxFrames == 0 {
		o.MaxFrames = 16
	}
	if o.Handshake == 0 {
		o.Handshake = 5 * time.Second
	}
	if o.Silence == 0 {
		o.Silence = 10 * time.Second
	}
	return o
}
