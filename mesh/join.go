package mesh

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

// seedsPerName is how many addresses of one name are tried in a round until one answers: gossip tells of the others, and a
// name may stand for a thousand agents.
const seedsPerName = 3

// seeds is how joining goes.
type seeds struct {
	mu  sync.Mutex
	own map[netip.AddrPort]*ownMark // addresses where this agent found itself
	err map[string]error            // by seed: why the last try failed; nothing after one that worked
}

// ownMark says that an address led to this agent itself. It lapses: behind an address that stands for many agents
// another may answer the next time.
type ownMark struct {
	until time.Time
	wait  backoff
}

const (
	// An address where this agent found itself is left alone for half to all of ownMin RejoinIntervals, doubled up to
	// ownMax: load balancers of packets keep a flow at its backend until it was silent for some two minutes.
	ownMin = 4
	ownMax = 32
	// maxOwn bounds the addresses that are remembered so: an agent has few at a time, but names may change theirs.
	maxOwn = 64
)

func newSeeds() *seeds { return &seeds{own: map[netip.AddrPort]*ownMark{}, err: map[string]error{}} }

func (s *seeds) isOwn(a netip.AddrPort, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	mark := s.own[a]
	return mark != nil && now.Before(mark.until)
}

func (s *seeds) markOwn(a netip.AddrPort, now time.Time, rejoin time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own[a] == nil {
		if len(s.own) >= maxOwn {
			clear(s.own)
		}
		s.own[a] = &ownMark{wait: backoff{min: ownMin * rejoin, max: ownMax * rejoin}}
	}
	s.own[a].until = now.Add(s.own[a].wait.next())
}

func (s *seeds) result(seed string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.err[seed] = err
		return
	}
	delete(s.err, seed)
}

// joinAll introduces this agent to its seeds, quickly at first and for ever, and after that looks at times for the other
// half of a split mesh.
func (m *Mesh) joinAll() {
	wait := backoff{min: m.cfg.Timings.RetryMin, max: m.cfg.Timings.RetryMax}
	joined := len(m.cfg.Join) == 0
	for {
		if m.joinSeeds() {
			joined = true
		}
		m.settle.joined(joined)
		d := wait.next()
		if joined && m.Settled() {
			d = m.cfg.Timings.RejoinInterval
			d = d*3/4 + rand.N(d/2) // agents of one deployment do not come together
		}
		if !sleep(m.ctx, d) {
			return
		}
		if m.leaving.Load() {
			return
		}
		if joined {
			m.rejoin()
		}
	}
}

// joinSeeds tries all seeds side by side, and reports whether one answered, if only as this agent itself.
func (m *Mesh) joinSeeds() bool {
	var wg sync.WaitGroup
	oks := make([]bool, len(m.cfg.Join))
	for i, seed := range m.cfg.Join {
		wg.Go(func() { oks[i] = m.joinSeed(seed) })
	}
	wg.Wait()
	for _, ok := range oks {
		if ok {
			return true
		}
	}
	return false
}

func (m *Mesh) joinSeed(seed string) bool {
	addrs, err := m.resolve(m.ctx, seed)
	if err == nil {
		err = m.joinAddrs(addrs)
	}
	if m.ctx.Err() != nil {
		return false
	}
	m.seeds.result(seed, err)
	if err != nil {
		m.log.Debug("seed does not answer", "seed", seed, "err", err)
	}
	return err == nil
}

// joinAddrs tries a few of a seed's addresses. It returns nil when one answers, is connected already, or when all are
// this agent's own. While one is connected, another that is not is still tried in each round: agents that start together
// may meet in groups that know nothing of each other.
func (m *Mesh) joinAddrs(addrs []netip.AddrPort) error {
	var others []netip.AddrPort
	tries := seedsPerName
	for _, a := range addrs {
		switch {
		case a == m.self.quic || m.seeds.isOwn(a, time.Now()):
		case m.table.hasAddr(a):
			tries = 1
		default:
			others = append(others, a)
		}
	}
	rand.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	var errs []error
	for _, a := range others[:min(len(others), tries)] {
		err := m.joinAddr(a)
		switch {
		case err == nil || tries == 1:
			return nil
		case !errors.Is(err, errSelf):
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (m *Mesh) joinAddr(a netip.AddrPort) error {
	pc, err := m.dial(m.ctx, a, "")
	if errors.Is(err, errSelf) {
		m.seeds.markOwn(a, time.Now(), m.cfg.Timings.RejoinInterval)
	}
	if err != nil {
		return err
	}
	if m.table.isMember(pc.name) {
		return nil
	}
	return m.introduce(pc.name)
}

// introductions is how often a push/pull is repeated until the peer is a member. When both sides hold each other for
// dead, the first makes them refute that, and only the second carries it.
const introductions = 3

// introduce makes a connected peer and this agent members of one another's gossip.
func (m *Mesh) introduce(name string) error {
	list := m.list.Load()
	if list == nil {
		return ErrClosed
	}
	for range introductions {
		// The transport goes by the name, so any address will do.
		if _, err := list.Join([]string{name + "/127.0.0.1:1"}); err != nil {
			return fmt.Errorf("exchange members with %s: %w", name, err)
		}
		if m.becomesMember(name) {
			return nil
		}
	}
	return fmt.Errorf("exchange members with %s: it did not become one", name)
}

// becomesMember waits a moment for reconcile.
func (m *Mesh) becomesMember(name string) bool {
	for range 4 {
		if m.table.isMember(name) {
			return true
		}
		if !sleep(m.ctx, m.cfg.Timings.GossipInterval/4) {
			return false
		}
	}
	return m.table.isMember(name)
}

// rejoin looks for agents that gossip has lost: one dead peer, chosen at random, and those that are connected but no
// members.
func (m *Mesh) rejoin() {
	m.mendKeys()
	for _, name := range m.table.strangers() {
		if err := m.introduce(name); err != nil {
			m.log.Debug("peer stays no member", "peer", name, "err", err)
		}
	}
	name, ok := m.table.lost(time.Now(), m.cfg.Timings.ForgetAfter)
	if !ok {
		return
	}
	if _, err := m.connection(m.ctx, name); err != nil {
		return // dead, as thought
	}
	if err := m.introduce(name); err != nil {
		m.log.Debug("peer stays no member", "peer", name, "err", err)
	}
}

// resolve returns the addresses that a seed stands for now.
func (m *Mesh) resolve(ctx context.Context, seed string) ([]netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(seed)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil || port == 0 {
		return nil, fmt.Errorf("seed %s: %q is no port", seed, service)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(ip.Unmap(), uint16(port))}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timings.HandshakeTimeout)
	defer cancel()
	ips, err := m.cfg.LookupHost(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", host, err)
	}
	addrs := make([]netip.AddrPort, len(ips))
	for i, ip := range ips {
		addrs[i] = netip.AddrPortFrom(ip.Unmap(), uint16(port))
	}
	return addrs, nil
}
