package spread

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// protocol is the version of what feeds carry. A version that only adds frames or fields keeps it: both are skipped by
// those that do not know them.
const protocol = 1

// hello is the first frame of a feed. It says whose digests these are, and what their keys are comparable with.
type hello struct {
	protocol uint64
	instance uint64 // of the teller's process
	scheme   schemeID
}

// schemeID tells key schemes apart without telling the seed, which may be secret.
type schemeID struct {
	version     uint8
	fingerprint [4]byte // of the seed
}

func schemeOf(s cachestate.Scheme) schemeID {
	id := schemeID{version: s.Version}
	sum := sha256.Sum256(binary.LittleEndian.AppendUint64([]byte("kvmesh key scheme"), s.Seed))
	copy(id.fingerprint[:], sum[:])
	return id
}

// String returns the scheme as operators compare it: version and fingerprint.
func (s schemeID) String() string {
	return fmt.Sprintf("%d-%s", s.version, hex.EncodeToString(s.fingerprint[:]))
}

// frame returns the hello as it is written.
func (h hello) frame() []byte {
	b := binary.AppendUvarint(nil, h.protocol)
	b = binary.LittleEndian.AppendUint64(b, h.instance)
	b = append(b, h.scheme.version)
	return appendFrame(nil, frameHello, append(b, h.scheme.fingerprint[:]...))
}

// parseHello reads a hello. What follows the fields known here is of a newer version and is ignored.
func parseHello(b []byte) (h hello, err error) {
	r := engine.NewReader(b)
	h.protocol, h.instance, h.scheme.version = r.Uvarint(), r.Uint64(), r.Byte()
	for i := range h.scheme.fingerprint {
		h.scheme.fingerprint[i] = r.Byte()
	}
	if err := r.Err(); err != nil {
		return hello{}, fmt.Errorf("parse hello: %w", err)
	}
	return h, nil
}
