package main

import (
	"context"
	"crypto/tls"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/mesh"
)

const (
	liarsEngine   = "own"
	victimsEngine = "engine0"
)

// lies are digests that no owner can have.
type lies struct {
	full, foreign *cachestate.Digest
}

func newLies() lies {
	g := cachestate.DefaultGeometry()
	l := lies{
		full:    cachestate.NewDigest(engine.MakeID(liarName, liarsEngine), cachestate.TierGPU, 1, g),
		foreign: cachestate.NewDigest(engine.MakeID(victimName, victimsEngine), cachestate.TierGPU, 1, g),
	}
	for l.full.Fill() < 1 {
		l.full.Add(cachestate.Key(rand.Uint64()))
	}
	l.foreign.Add(cachestate.Key(rand.Uint64()))
	l.full.Publish(time.Now())
	l.foreign.Publish(time.Now())
	return l
}

// Publish implements spread.Source: a digest of ones, and one of an engine of the victim's.
func (l *liar) Publish() []cachestate.Delta { return l.Digests() }

// Digests implements spread.Source.
func (l *liar) Digests() []cachestate.Delta {
	gen := l.Engine().Generation
	full, foreign := l.lies.full.Full(), l.lies.foreign.Full()
	full.Generation, foreign.Generation = gen, gen
	return []cachestate.Delta{full, foreign}
}

// DeltasSince implements spread.Source.
func (l *liar) DeltasSince(cachestate.Geometry, cachestate.Tier, uint64) (cachestate.Delta, bool) {
	return cachestate.Delta{}, false
}

// greetAs connects with the certificate of id and says to be name. It returns an error when the other side does not answer
// with a hello of its own. The wire form is that of mesh/DESIGN.md.
func greetAs(ctx context.Context, addr string, id mesh.Identity, name string) error {
	qc, err := quic.DialAddr(ctx, addr, &tls.Config{
		Certificates: []tls.Certificate{id.Certificate}, NextProtos: []string{"kvmesh/1"}, MinVersion: tls.VersionTLS13,
		InsecureSkipVerify: true, // whoever is there is lied to
	}, nil)
	if err != nil {
		return err
	}
	defer func() { _ = qc.CloseWithError(1, "") }()
	s, err := qc.OpenStreamSync(ctx)
	if err != nil {
		return err
	}
	self, err := netip.MustParseAddrPort("127.0.0.1:7081").MarshalBinary()
	if err != nil {
		return err
	}
	about := append([]byte{1, 1}, make([]byte, 8)...) // protocols, instance
	about = append(about, 1, byte(len(self)))         // started, QUIC address
	about = append(append(about, self...), 0)         // no meta
	body := append([]byte{byte(len(about))}, about...)
	body = append(append(body, byte(len(name))), name...)
	body = append(body, 1) // the first dial
	if _, err := s.Write(append([]byte{byte(mesh.KindControl), byte(len(body))}, body...)); err != nil {
		return err
	}
	_, err = s.Read(make([]byte, 1))
	return err
}
