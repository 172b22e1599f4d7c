package mesh

import (
	"crypto/x509"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
)

// table is what is known of each peer.
type table struct {
	self   string
	speaks protocols

	mu      sync.Mutex
	closed  bool
	records map[string]*record // by name
}

// record is what is known of one peer. All fields are guarded by table.mu.
type record struct {
	about  about          // from its last hello, or from gossip when that came later
	gossip netip.AddrPort // zero until gossip tells

	deaf bool // gossip packets there and back get lost

	member bool      // alive or suspect to memberlist
	since  time.Time // of the last change of member
	left   bool      // this instance said that it goes
	banned bool      // the last certificate that it showed is revoked
	keys   offer     // its gossip keys, as last heard; without the keys
	reason string    // why its last connection ended, for PeerDown; empty since the next

	handling chan struct{} // capacity 1: full while the handler has a datagram, of whichever connection

	current *peerConn   // where new streams go; nil or one of conns
	conns   []*peerConn // all that are open, draining ones included
	dial    *dialCall   // under way
	dialErr error       // of the last dial; nil after a hello
	failing time.Time   // since when dials fail
}

// dialCall is one dial that all who want the peer wait for.
type dialCall struct {
	done chan struct{} // closed when pc and err stand
	pc   *peerConn
	err  error
}

func newTable(self string, speaks protocols) *table {
	return &table{self: self, speaks: speaks, records: map[string]*record{}}
}

func (t *table) recordLocked(name string) *record {
	r := t.records[name]
	if r == nil {
		r = &record{since: time.Now(), handling: make(chan struct{}, 1)}
		t.records[name] = r
	}
	return r
}

// adopt takes a connection whose hello has succeeded. Both ends see the same connections of a pair and prefer the same
// one, in whatever order they adopt them; the others drain. Connections of an older instance are stale: the caller
// closes them. ok is false when the table is closed.
func (t *table) adopt(pc *peerConn) (stale []*peerConn, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, false
	}
	r := t.recordLocked(pc.name)
	old := r.current
	if old != nil && old.about.instance != pc.about.instance {
		stale, old = slices.Clone(r.conns), nil
	}
	r.conns = append(r.conns, pc)
	pc.handling = r.handling
	if old == nil || !old.open() || t.prefers(pc, old) {
		r.current = pc
	}
	for _, c := range r.conns {
		c.drain(c != r.current)
	}
	r.about, r.keys = pc.about, pc.keys
	r.banned, r.deaf = false, false
	r.left, r.reason, r.dialErr, r.failing = false, "", nil, time.Time{}
	return stale, true
}

// prefers reports whether a is kept and b drains: the one whose certificates last longer comes first, so that renewed
// ones replace what they renew; then what the smaller name dialed, then the later dial, since its dialer may have lost
// the earlier.
func (t *table) prefers(a, b *peerConn) bool {
	if !a.until.Equal(b.until) {
		return a.until.After(b.until)
	}
	if a.dialed != b.dialed {
		return t.keeps(a)
	}
	return a.number >= b.number
}

// keeps reports whether pc was dialed by the smaller of its two names.
func (t *table) keeps(pc *peerConn) bool { return pc.dialed == (t.self < pc.name) }

// remove forgets a closed connection, and says why the peer is down if it was the last.
func (t *table) remove(pc *peerConn, why string, left bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.records[pc.name]
	r.conns = slices.DeleteFunc(r.conns, func(c *peerConn) bool { return c == pc })
	if left && r.about.instance == pc.about.instance {
		r.left = true
	}
	if r.current != pc {
		return
	}
	t.chooseLocked(r, why)
}

// chooseLocked makes the best of the peer's connections the one for new streams; without one, why says so.
func (t *table) chooseLocked(r *record, why string) {
	r.current, r.reason = nil, why
	for _, c := range r.conns {
		if c.open() && !c.isRetired() && (r.current == nil || t.prefers(c, r.current)) {
			r.current = c
		}
	}
	switch {
	case r.current != nil:
		r.current.drain(false)
	case !r.member:
		r.since = time.Now()
	}
}

// retire takes pc from those that may be chosen, and reports whether it was one.
func (t *table) retire(pc *peerConn, why string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if pc.isRetired() {
		return false
	}
	close(pc.retired)
	pc.drain(true)
	if r := t.records[pc.name]; r != nil && r.current == pc { // else it has ended meanwhile
		t.chooseLocked(r, why)
	}
	return true
}

// current returns the open connection for new streams to name, or nil.
func (t *table) current(name string) *peerConn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.records[name]; r != nil && r.current != nil && r.current.open() {
		return r.current
	}
	return nil
}

// hasKeys keeps which gossip keys a peer has.
func (t *table) hasKeys(name string, o offer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.records[name]; r != nil {
		r.keys = offer{version: o.version, sum: o.sum}
	}
}

// distrust keeps that a certificate of a peer is revoked, until it shows another. Of a peer that is connected by another one
// it says nothing: a stranger may have shown it.
func (t *table) distrust(c *x509.Certificate, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.records[name]; r != nil {
		r.banned = r.current == nil || !r.current.open() || r.current.cert.Equal(c)
	}
}

// behind returns the names of the peers that are there, are to have gossip keys and are not known to have these, in order.
func (t *table) behind(o offer) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	names := []string{}
	for name, r := range t.records {
		there := r.member || r.current != nil && r.current.open()
		if there && !r.left && !r.banned && (r.keys.version != o.version || r.keys.sum != o.sum) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// connected returns the connection to each peer that has one.
func (t *table) connected() []*peerConn {
	t.mu.Lock()
	defer t.mu.Unlock()
	pcs := make([]*peerConn, 0, len(t.records))
	for _, r := range t.records {
		if r.current != nil && r.current.open() {
			pcs = append(pcs, r.current)
		}
	}
	return pcs
}

// all returns every connection, draining ones included.
func (t *table) all() []*peerConn {
	t.mu.Lock()
	defer t.mu.Unlock()
	var pcs []*peerConn
	for _, r := range t.records {
		pcs = append(pcs, r.conns...)
	}
	return pcs
}

// closeAll closes all connections; after codeClosed or codeLeaving at the end no others are taken.
func (t *table) closeAll(code quic.ApplicationErrorCode, why string) {
	t.mu.Lock()
	t.closed = true
	var pcs []*peerConn
	for _, r := range t.records {
		pcs = append(pcs, r.conns...)
	}
	t.mu.Unlock()
	closeEach(pcs, code, why)
}

// about returns what is known of name, and whether there is an address to dial.
func (t *table) about(name string) (about, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.records[name]
	if r == nil {
		return about{}, false
	}
	return r.about, r.about.quic.IsValid()
}

// joined takes what gossip says of a live member.
func (t *table) joined(name string, a about, gossip netip.AddrPort) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.recordLocked(name)
	if !r.member {
		r.member, r.since = true, time.Now()
	}
	r.gossip = gossip
	if r.about.instance != a.instance {
		r.left = false
	}
	switch {
	case r.current == nil:
		r.about = a
	case r.about.instance == a.instance:
		r.about.meta = a.meta // the hello's may be older, or newer for a moment
	}
}

// departed takes that gossip holds a member for dead or left. While its connection stands that is a mistake of others,
// who could not reach it: the connection's own silence would end it sooner. It is a stranger then, to be introduced again.
func (t *table) departed(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.records[name]
	if r == nil || !r.member {
		return
	}
	r.member, r.since = false, time.Now()
}

// wanted reports whether a connection to name is to be made and kept.
func (t *table) wanted(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.records[name]
	return r != nil && r.member && !r.left
}

// linked returns the names of the members that are connected.
func (t *table) linked() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var names []string
	for name, r := range t.records {
		if r.member && r.current != nil && r.current.open() {
			names = append(names, name)
		}
	}
	return names
}

// gossips keeps whether gossip packets to a peer and back get through.
func (t *table) gossips(name string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.records[name]; r != nil {
		r.deaf = !ok
	}
}

// size returns how many peers are known.
func (t *table) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.records)
}

// isMember reports whether name is alive to memberlist.
func (t *table) isMember(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.records[name]
	return r != nil && r.member
}

// strangers returns connected peers that are not members: memberlist has yet to be introduced to them.
func (t *table) strangers() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var names []string
	for name, r := range t.records {
		if !r.member && r.current != nil && r.current.open() {
			names = append(names, name)
		}
	}
	return names
}

// lost returns one peer at random that is neither member nor connected and did not say that it goes, and forgets those
// that have been so for longer than forget.
func (t *table) lost(now time.Time, forget time.Duration) (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var names []string
	for name, r := range t.records {
		switch {
		case r.member || len(r.conns) > 0 || r.dial != nil:
		case now.Sub(r.since) > forget:
			delete(t.records, name)
		case !r.left && r.about.quic.IsValid():
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "", false
	}
	return names[rand.N(len(names))], true
}

// hasAddr reports whether a member is connected that advertises addr, or was reached there.
func (t *table) hasAddr(addr netip.AddrPort) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.records {
		if r.member && r.current != nil && r.current.open() && (r.about.quic == addr || r.current.remote == addr) {
			return true
		}
	}
	return false
}

// counts returns members and connections: what settles.
func (t *table) counts() (members, connections int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.records {
		if r.member {
			members++
		}
		if r.current != nil && r.current.open() {
			connections++
		}
	}
	return members, connections
}

// reach returns the peer, whether it can be reached, and if not, why.
func (t *table) reach(name string) (p Peer, up bool, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.records[name]
	if r == nil {
		return Peer{Name: name}, false, "forgotten"
	}
	p = r.peer(name)
	return p, p.Connected, r.reason
}

func (t *table) peer(name string) (Peer, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.records[name]
	if r == nil {
		return Peer{}, false
	}
	return r.peer(name), true
}

func (t *table) peers() []Peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	peers := make([]Peer, 0, len(t.records))
	for name, r := range t.records {
		peers = append(peers, r.peer(name))
	}
	return peers
}

func (r *record) peer(name string) Peer {
	p := Peer{
		Name: name, Instance: r.about.instance, Started: r.about.startedAt(), QUICAddr: r.about.quic,
		GossipAddr: r.gossip, Meta: r.about.meta,
	}
	if r.current != nil && r.current.open() {
		p.Connected, p.RTT, p.Protocol = true, r.current.rtt(), r.current.protocol
	}
	switch {
	case r.left:
		p.State = StateLeft
	case !r.member && !p.Connected:
		p.State = StateDead
	}
	return p
}
