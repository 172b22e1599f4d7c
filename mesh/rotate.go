package mesh

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

// GossipKeys is what may be shown of gossip keys.
type GossipKeys struct {
	Version uint64   `json:"version"`          // grows with every change; 0 is what the operator handed out
	Keys    []string `json:"keys"`             // fingerprints; the first encrypts
	Behind  []string `json:"behind,omitempty"` // peers that are there and have others; CompareGossipKeys only
}

// CompareGossipKeys compares keys with all peers, which settles what differs, and returns this agent's with those who have
// others all the same or could not be asked.
func (m *Mesh) CompareGossipKeys(ctx context.Context) GossipKeys {
	m.giveKeys(ctx, m.table.behind(m.keys.current().offer()))
	g := m.GossipKeys()
	g.Behind = m.table.behind(m.keys.current().offer())
	return g
}

// GossipKeys returns the fingerprints of the keys that are in use.
func (m *Mesh) GossipKeys() GossipKeys {
	set := m.keys.current()
	g := GossipKeys{Version: set.version, Keys: []string{}}
	for _, k := range set.keys {
		g.Keys = append(g.Keys, fingerprint(k))
	}
	return g
}

// ErrRotating is returned while another rotation runs at this agent.
var ErrRotating = errors.New("the gossip keys are being rotated already")

// errOvertaken ends a rotation during which newer keys came: who made them sees to it that all have those.
var errOvertaken = errors.New("others changed the keys meanwhile")

// rotationSteps is how many versions a rotation makes.
const rotationSteps = 3

// RotateGossipKey replaces the gossip keys of the whole mesh by a new one: it adds the new key everywhere, then has it
// encrypt everywhere, then removes all others, and waits before each step until every peer that is there has done the one
// before, but for those whose certificates are revoked. When ctx ends first it returns who has not; what was done stays, and
// all still understand each other, so that it can be called again. Keys go over connections, not over gossip. A peer that is away takes the new key when it connects.
func (m *Mesh) RotateGossipKey(ctx context.Context) error {
	if !m.rotating.TryLock() {
		return ErrRotating
	}
	defer m.rotating.Unlock()
	key := NewGossipKey()
	set := m.keys.current()
	if len(set.keys) >= maxGossipKeys {
		return fmt.Errorf("rotate gossip keys: there are %d already", len(set.keys))
	}
	if set.version > maxKeyVersion-rotationSteps {
		return fmt.Errorf("rotate gossip keys: no version comes after %d: stop all agents and give them a new file", set.version)
	}
	for _, step := range []struct {
		what string
		keys [][]byte
	}{
		{"adding the new key", append(slices.Clip(set.keys), key)},
		{"using the new key", append([][]byte{key}, set.keys...)},
		{"removing the old keys", [][]byte{key}},
	} {
		set = keySet{version: set.version + 1, keys: step.keys}
		if !m.takeKeys(set.full()) {
			return fmt.Errorf("rotate gossip keys: %s: %w", step.what, errOvertaken)
		}
		if err := m.spreadKeys(ctx, set); err != nil {
			return fmt.Errorf("rotate gossip keys: %s: %w", step.what, err)
		}
	}
	return nil
}

// takeKeys uses newer keys and keeps them in their file.
func (m *Mesh) takeKeys(o offer) bool {
	if !m.keys.take(o) {
		return false
	}
	m.log.Info("gossip keys changed", "version", o.version, "primary", fingerprint(o.keys[0]), "keys", len(o.keys))
	m.complain(GossipKeyFile, m.keys.save())
	return true
}

const (
	// spreadPoll is how often it is looked who is behind while keys are spread.
	spreadPoll = 200 * time.Millisecond
	// spreadWriters bounds the peers that keys are given to at a time.
	spreadWriters = 16
)

// spreadKeys gives set to the peers until every one that is there has it.
func (m *Mesh) spreadKeys(ctx context.Context, set keySet) error {
	for {
		if newer(m.keys.current().offer(), set.offer()) {
			return errOvertaken
		}
		behind := m.table.behind(set.offer())
		if len(behind) == 0 {
			return nil
		}
		m.giveKeys(ctx, behind)
		if len(m.table.behind(set.offer())) > 0 && !sleep(ctx, spreadPoll) {
			return fmt.Errorf("not done by %s: %w", strings.Join(m.table.behind(set.offer()), ", "), context.Cause(ctx))
		}
		if m.ctx.Err() != nil {
			return ErrClosed
		}
	}
}

// giveKeys exchanges keys with those of the named peers that are connected and not revoked.
func (m *Mesh) giveKeys(ctx context.Context, names []string) {
	slots := make(chan struct{}, spreadWriters)
	var wg sync.WaitGroup
	for _, name := range names {
		pc := m.table.current(name)
		if pc == nil || m.creds.isRevoked(serialOf(pc.cert)) {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			m.exchangeKeys(ctx, pc)
			<-slots
		})
	}
	wg.Wait()
}

// mendKeys exchanges keys with one peer that is not known to have this agent's: whoever missed a rotation hears of it from
// some peer, even if not from the one where it began.
func (m *Mesh) mendKeys() {
	if behind := m.table.behind(m.keys.current().offer()); len(behind) > 0 {
		m.giveKeys(m.ctx, []string{behind[rand.N(len(behind))]})
	}
}

// The first byte of a control stream says what it is for.
const (
	controlPing = 1
	controlKeys = 2
)

// exchangeKeys compares keys with the peer, and gives or takes them where one side has newer ones. Failing is no harm: it
// is done again.
func (m *Mesh) exchangeKeys(ctx context.Context, pc *peerConn) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timings.HandshakeTimeout)
	defer cancel()
	s, err := m.openStream(ctx, pc, KindControl)
	if err != nil {
		return
	}
	defer s.Close()
	deadline, _ := ctx.Deadline()
	_ = s.SetDeadline(deadline)
	mine := m.keys.current()
	if _, err := s.Write(appendOffer([]byte{controlKeys}, mine.offer())); err != nil {
		return
	}
	theirs, err := m.hearKeys(s)
	if err == nil && newer(mine.offer(), theirs) {
		if _, err = s.Write(appendOffer(nil, mine.full())); err == nil {
			_, err = m.hearKeys(s)
		}
	}
	if err != nil {
		m.log.Debug("gossip keys not compared", "peer", pc.name, "err", err)
	}
}

// hearKeys reads what the peer at the other end of s has, and takes it if it is newer and given.
func (m *Mesh) hearKeys(s *Stream) (offer, error) {
	o, err := readOffer(s)
	if err != nil {
		return o, err
	}
	m.takeKeys(o)
	m.table.hasKeys(s.Peer(), o)
	return o, nil
}

// serveKeys answers exchangeKeys. One who is revoked is cut off within a second, and learns no keys until then.
func (m *Mesh) serveKeys(s *Stream) {
	if m.creds.isRevoked(serialOf(s.conn.cert)) {
		return
	}
	_ = s.SetDeadline(time.Now().Add(m.cfg.Timings.HandshakeTimeout))
	theirs, err := m.hearKeys(s)
	if err != nil {
		m.metrics.drop("bad_keys")
		return
	}
	mine := m.keys.current()
	answer := mine.offer()
	if newer(answer, theirs) {
		answer = mine.full()
	}
	if _, err := s.Write(appendOffer(nil, answer)); err != nil || !newer(theirs, mine.offer()) {
		return
	}
	if _, err := m.hearKeys(s); err != nil {
		m.metrics.drop("bad_keys")
		return
	}
	_, _ = s.Write(appendOffer(nil, m.keys.current().offer())) // a peer that went away asks again
}
