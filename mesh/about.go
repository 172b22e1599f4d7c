package mesh

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"
)

// maxAbout bounds the wire form of an about: its fixed fields, two addresses' worth of slack, and MaxMeta. It must
// stay below the 512 bytes that memberlist allows as node metadata.
const maxAbout = 256

// about is what an agent says of itself, in its hello and in its node metadata.
type about struct {
	speaks   protocols
	instance uint64         // random for each life of the process
	started  int64          // unix seconds
	quic     netip.AddrPort // where its QUIC socket is reached
	meta     []byte         // Config.Meta
}

// encodeAbout returns the wire form: newest and oldest protocol (1 B each), instance (8 B little endian), started
// (uvarint), the QUIC address and meta (each length-prefixed). It only grows at its end, and what is not known there is
// ignored.
func encodeAbout(a about) []byte {
	b := []byte{a.speaks.newest, a.speaks.oldest}
	b = binary.LittleEndian.AppendUint64(b, a.instance)
	b = binary.AppendUvarint(b, uint64(max(a.started, 0)))
	b = appendAddr(b, a.quic)
	return appendBytes(b, a.meta)
}

func (r *reader) about() about {
	a := about{speaks: protocols{newest: r.byte(), oldest: r.byte()}, instance: r.uint64()}
	started := r.uvarint()
	a.quic = r.addr()
	a.meta = append([]byte(nil), r.bytes(MaxMeta)...)
	if r.err == nil && a.speaks.oldest > a.speaks.newest {
		r.fail(fmt.Errorf("%v are no range", a.speaks))
	}
	if r.err == nil && started > uint64(1<<40) {
		r.fail(fmt.Errorf("start time %d is out of range", started))
	}
	if r.err == nil && (!a.quic.IsValid() || a.quic.Port() == 0 || a.quic.Addr().IsUnspecified()) {
		r.fail(fmt.Errorf("QUIC address %v cannot be dialed", a.quic))
	}
	a.started = int64(started)
	return a
}

// parseAbout reads node metadata. Bytes after the last known field are ignored.
func parseAbout(b []byte) (about, error) {
	r := reader{b: b}
	a := r.about()
	if r.err != nil {
		return about{}, fmt.Errorf("parse node metadata: %w", r.err)
	}
	return a, nil
}

func (a about) startedAt() time.Time { return time.Unix(a.started, 0) }
