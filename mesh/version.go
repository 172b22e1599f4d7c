package mesh

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// newestProtocol and oldestProtocol are the versions of the protocol that this package speaks: all from the one to the
// other. DESIGN.md says when a change needs a version and how one is added.
const (
	newestProtocol = 1
	oldestProtocol = 1
)

// protocols is a range of versions, all of which an agent speaks.
type protocols struct{ oldest, newest uint8 }

func (p protocols) String() string {
	if p.oldest == p.newest {
		return fmt.Sprintf("protocol %d", p.newest)
	}
	return fmt.Sprintf("protocols %d to %d", p.oldest, p.newest)
}

// meet reports whether there is a version in both.
func (p protocols) meet(other protocols) bool {
	return p.oldest <= other.newest && other.oldest <= p.newest
}

const (
	alpnVersion = "kvmesh/" // and the version, in decimal
	// alpnAny is offered last by every agent. Two that have no version in common agree on it, and so on a connection that
	// lives just long enough to say which versions each of them speaks: a TLS alert has no room for that.
	alpnAny = "kvmesh"
)

// alpn returns what an agent offers in TLS, best first.
func (p protocols) alpn() []string {
	var out []string
	for v := int(p.newest); v >= int(p.oldest); v-- {
		out = append(out, alpnVersion+strconv.Itoa(v))
	}
	return append(out, alpnAny)
}

// agreedProtocol reads the version that TLS has agreed on; 0 is none.
func agreedProtocol(negotiated string) uint8 {
	n, err := strconv.ParseUint(strings.TrimPrefix(negotiated, alpnVersion), 10, 8)
	if err != nil {
		return 0
	}
	return uint8(n)
}

// offerWords says what a dialer offered. It is the dialer's own text.
func offerWords(offered []string) string {
	versions := slices.DeleteFunc(slices.Clone(offered), func(s string) bool { return s == alpnAny })
	return strings.Join(versions, ", ")
}
