package mesh

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// maxGossipKeys is the most keys that a mesh has at a time. A rotation needs two; what rotations left that were broken off
// adds to them.
const maxGossipKeys = 8

// maxKeyVersion bounds versions that peers tell, far above the rotations of a mesh's life.
const maxKeyVersion = 1 << 40

// keySet is the gossip keys of a mesh, as one agent knows them.
type keySet struct {
	version uint64   // grows by one with every change; 0 is what operators handed out
	keys    [][]byte // 1 to maxGossipKeys; the first encrypts, all decrypt
}

// keySum tells sets of keys apart, and nothing about the keys.
type keySum [8]byte

func (k keySet) sum() keySum {
	h := sha256.New()
	h.Write([]byte("kvmesh gossip keys\x00"))
	for _, key := range k.keys {
		h.Write(key)
	}
	return keySum(h.Sum(nil))
}

// fingerprint names a key in front of people: 8 bytes of a hash, in hexadecimal.
func fingerprint(key []byte) string {
	sum := sha256.Sum256(append([]byte("kvmesh gossip key\x00"), key...))
	return hex.EncodeToString(sum[:8])
}

// offer is what two agents compare of their sets, with the keys where the other side is to take them.
type offer struct {
	version uint64
	sum     keySum
	keys    [][]byte // nil where only compared
}

func (k keySet) offer() offer { return offer{version: k.version, sum: k.sum()} }

func (k keySet) full() offer { return offer{version: k.version, sum: k.sum(), keys: k.keys} }

// newer reports whether a replaces b: it has the higher version, or, where two agents changed the same keys at once, the
// greater sum, so that all end with the same. Of what operators handed out nothing replaces anything: one agent with a
// wrong file must not change the keys of a mesh.
func newer(a, b offer) bool {
	if a.version != b.version || a.version == 0 {
		return a.version > b.version
	}
	return bytes.Compare(a.sum[:], b.sum[:]) > 0
}

// maxOffer bounds the wire form of an offer, with room for what later versions add.
const maxOffer = 16 + len(keySum{}) + maxGossipKeys*GossipKeyBytes + 128

// appendOffer appends the wire form with its length before it: version (uvarint), sum (8 B), number of keys (uvarint), keys
// (32 B each).
func appendOffer(b []byte, o offer) []byte {
	body := append(binary.AppendUvarint(nil, o.version), o.sum[:]...)
	body = binary.AppendUvarint(body, uint64(len(o.keys)))
	return appendBytes(b, append(body, bytes.Join(o.keys, nil)...))
}

// parseOffer reads an offer without its length. Bytes after the last known field are ignored.
func parseOffer(b []byte) (offer, error) {
	r := reader{b: b}
	o := offer{version: r.uvarint()}
	copy(o.sum[:], r.take(uint64(len(o.sum))))
	n := r.uvarint()
	if r.err == nil && (n > maxGossipKeys || o.version > maxKeyVersion) {
		r.fail(fmt.Errorf("%d keys of version %d", n, o.version))
	}
	for i := uint64(0); i < n && r.err == nil; i++ {
		o.keys = append(o.keys, bytes.Clone(r.take(GossipKeyBytes)))
	}
	if r.err == nil && n > 0 && (keySet{keys: o.keys}).sum() != o.sum {
		r.fail(errors.New("the keys have another sum"))
	}
	if r.err != nil {
		return offer{}, fmt.Errorf("parse gossip keys: %w", r.err)
	}
	return o, nil
}

// readOffer reads one offer with its length.
func readOffer(rd io.Reader) (offer, error) {
	n, err := binary.ReadUvarint(byteReader{rd})
	if err != nil {
		return offer{}, fmt.Errorf("read gossip keys: %w", err)
	}
	if n > uint64(maxOffer) {
		return offer{}, fmt.Errorf("read gossip keys: %d bytes are above the limit of %d", n, maxOffer)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(rd, b); err != nil {
		return offer{}, fmt.Errorf("read gossip keys: %w", err)
	}
	return parseOffer(b)
}
