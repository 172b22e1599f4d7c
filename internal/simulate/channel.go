package simulate

import (
	"math"
	"time"
)

// The bytes that messages take beside what they say, at IP level.
const (
	packetBytes    = 28 + 27 // IPv4, UDP; QUIC's short header and its tag
	ackBytes       = packetBytes + 6
	frameBytes     = 3  // of a datagram
	streamBytes    = 8  // opening and closing a stream
	signatureBytes = 96 // a digest's: sender, signature
	fullPacket     = 1200
)

// datagramBytes is what one datagram costs the agent that gets it. Every second one is answered by an acknowledgement, and
// those of its own come in.
func datagramBytes(payload int) float64 {
	return float64(packetBytes + frameBytes + payload + ackBytes/2)
}

// streamedBytes is the same for a message on a stream of its own.
func streamedBytes(payload int) float64 {
	packets := (payload + fullPacket - 1) / fullPacket
	return float64(payload + streamBytes + packets*packetBytes + (packets+1)/2*ackBytes)
}

// delay draws how long a message takes: base, and an exponential part of it on the average.
func (w *world) delay(base time.Duration) time.Duration {
	if w.cfg.Jitter == 0 {
		return base
	}
	return base + time.Duration(float64(base)*w.cfg.Jitter*w.rng.ExpFloat64())
}

// drawnDelay is delay by a hash of what the message is, for messages that nobody sees until they are looked for.
func (w *world) drawnDelay(base time.Duration, parts ...uint64) time.Duration {
	if w.cfg.Jitter == 0 {
		return base
	}
	return base + time.Duration(float64(base)*w.cfg.Jitter*-math.Log(1-uniform(w.cfg.Seed, parts...)))
}

// lost draws whether a message of a request is lost.
func (w *world) lost(share float64) bool { return share > 0 && w.rng.Float64() < share }
