// Package spread carries what an agent knows of its engines to all other agents: announcements and digests over one
// long-lived stream a peer and direction (a feed), loads in datagrams. It knows neither the mesh nor the engine agents:
// whole agents, the scale model and tests hand it their own Carrier and Sources.
//
// A Teller tells, a Listener hears; an agent has one of each. Both are safe for concurrent use. Their locks are held over
// no call to a Carrier; Teller.publishing is held over calls to Sources and taken before Teller.mu.
package spread

import (
	"context"
	"io"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// Source is one engine beside this agent. Its methods are safe for concurrent use.
type Source interface {
	// Engine returns the engine's description.
	Engine() engine.Engine
	// Load returns the engine's load now.
	Load() engine.Load
	// Publish ends a digest period: it returns what changed since the last one, a delta for each geometry and tier, empty
	// where nothing did.
	Publish() []cachestate.Delta
	// Digests returns the whole digests as last published, one for each geometry and tier.
	Digests() []cachestate.Delta
	// DeltasSince returns one delta from a version of a digest to the last published one; false when too much happened
	// since.
	DeltasSince(g cachestate.Geometry, t cachestate.Tier, version uint64) (cachestate.Delta, bool)
}

// Carrier reaches the connected peers. Its methods are safe for concurrent use.
type Carrier interface {
	// Agents returns the number of agents that can be reached now, this one included.
	Agents() int
	// OpenFeed opens the stream on which this agent tells a peer about its engines.
	OpenFeed(ctx context.Context, peer string) (Stream, error)
	// OpenPull opens a stream on which this agent asks a peer for a digest.
	OpenPull(ctx context.Context, peer string) (Stream, error)
	// SendDatagram sends a datagram that may be lost. It keeps b.
	SendDatagram(peer string, b []byte) error
}

// Stream is a stream to or from a peer.
type Stream interface {
	io.ReadWriteCloser
	// CloseWrite ends this side's half.
	CloseWrite() error
	// Cancel ends both halves at once and tells the peer a code.
	Cancel(code uint64)
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
}
