package mesh

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
)

// The codes with which this package closes connections. A refusal is codeRefused plus its reason.
const (
	codeClosed   quic.ApplicationErrorCode = 1 // the agent stopped
	codeLeaving  quic.ApplicationErrorCode = 2 // the agent leaves the mesh for good
	codeSecond   quic.ApplicationErrorCode = 3 // another connection of the same pair is kept
	codeReplaced quic.ApplicationErrorCode = 4 // a new instance of the peer came
	codeSelf     quic.ApplicationErrorCode = 5 // the agent dialed itself
	codeRefused  quic.ApplicationErrorCode = 0x100
)

// maxReason bounds the text of a refusal, sent or received: it must fit the packet that closes the connection.
const maxReason = 200

// reason is why a peer was refused, as a number for the wire and a label for the counter.
type reason uint8

const (
	reasonOther reason = iota
	reasonMesh
	reasonCA
	reasonCertificate
	reasonName
	reasonNameTaken
	reasonVersion
	reasonHello
	reasonRevoked
)

func (r reason) String() string {
	switch r {
	case reasonMesh:
		return "other_mesh"
	case reasonCA:
		return "other_ca"
	case reasonCertificate:
		return "certificate"
	case reasonName:
		return "other_name"
	case reasonNameTaken:
		return "name_taken"
	case reasonVersion:
		return "other_version"
	case reasonHello:
		return "bad_hello"
	case reasonRevoked:
		return "revoked"
	default: // also a number from a later version
		return "other"
	}
}

// Refusal is one connection that came to nothing because one side would not have the other.
type Refusal struct {
	Time   time.Time
	Addr   string // the other side's address
	Name   string // as it claims, believed or not; "" when it was not learned
	Reason string // in words
	ByPeer bool   // the other side refused this agent
}

// String returns the refusal as a sentence.
func (r Refusal) String() string {
	who := r.Addr
	if r.Name != "" {
		who = r.Name + " at " + r.Addr
	}
	if r.ByPeer {
		return fmt.Sprintf("refused by %s: %s", who, r.Reason)
	}
	return fmt.Sprintf("refused %s: %s", who, r.Reason)
}

// refusedError is a refusal on its way to the one who dialed.
type refusedError struct {
	reason reason
	text   string
	byPeer bool
}

func (e *refusedError) Error() string {
	if e.byPeer {
		return "refused by the peer: " + e.text
	}
	return "refused: " + e.text
}

func refusef(r reason, format string, args ...any) *refusedError {
	return &refusedError{reason: r, text: fmt.Sprintf(format, args...)}
}

const (
	keepRefusals  = 32
	logEvery      = time.Minute // the same refusal again is logged once in this
	maxLogEntries = 1024        // remembered for that; beyond, it is forgotten which were logged
)

// refusals keeps the last ones.
type refusals struct {
	log     *slog.Logger
	metrics *metrics

	mu     sync.Mutex
	last   []Refusal            // oldest first, at most keepRefusals
	logged map[string]time.Time // by host, reason and direction
}

func newRefusals(log *slog.Logger, met *metrics) *refusals {
	return &refusals{log: log, metrics: met, logged: map[string]time.Time{}}
}

func (r *refusals) add(addr net.Addr, name string, err *refusedError) {
	ref := Refusal{Time: time.Now(), Addr: addr.String(), Name: name, Reason: clip(err.text), ByPeer: err.byPeer}
	r.metrics.refused.WithLabelValues(err.reason.String()).Inc()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.last) == keepRefusals {
		r.last = append(r.last[:0], r.last[1:]...)
	}
	r.last = append(r.last, ref)
	if r.firstLocked(ref, err.reason) {
		r.log.Warn("connection refused", "peer", ref.Name, "addr", ref.Addr, "by_peer", ref.ByPeer, "reason", ref.Reason)
	}
}

func (r *refusals) firstLocked(ref Refusal, why reason) bool {
	host, _, _ := net.SplitHostPort(ref.Addr) // a dialer that tries again may come from another port
	key := fmt.Sprint(host, ref.Name, why, ref.ByPeer)
	if t, ok := r.logged[key]; ok && ref.Time.Sub(t) < logEvery {
		return false
	}
	if len(r.logged) >= maxLogEntries {
		clear(r.logged)
	}
	r.logged[key] = ref.Time
	return true
}

func (r *refusals) all() []Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Refusal(nil), r.last...)
}

// clip bounds a text that may come from a peer, and keeps it on one line.
func clip(s string) string {
	if len(s) > maxReason {
		s = s[:maxReason]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// Refusals returns the last 32 refusals, oldest first.
func (m *Mesh) Refusals() []Refusal { return m.refusals.all() }

// refuseProtocol keeps that a peer offered none of our protocols. TLS itself refuses it, with an alert.
func (m *Mesh) refuseProtocol(addr net.Addr, offered []string) {
	m.refusals.add(addr, "", refusef(reasonVersion, "it speaks %s, this agent %v", offerWords(offered), m.tls.speaks))
}
