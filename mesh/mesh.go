// Package mesh is who the peers are and how bytes get to them. memberlist finds the agents of one mesh and notices the
// dead; one QUIC connection for each pair of agents carries everything else: requests, probes, digest pulls, raft, and
// memberlist's own streams. A certificate names each agent, and nothing is believed of a peer that its certificate
// does not say.
//
// The package carries bytes and knows nothing of what they mean. Whoever composes an agent gives it handlers (see
// Config) and calls Run; every method of Mesh may be called from any goroutine, and before Run they find no peers.
//
// A certificate is needed as soon as two processes are to form a mesh, also on one machine: an EphemeralAuthority lives
// in one process's memory, so it serves several agents in that process, or one agent alone.
//
// Locks: Mesh.notifyMu, then table.mu, then Mesh.spawnMu; all others are taken alone. PeerHandler's methods run under
// notifyMu.
package mesh

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/quic-go/quic-go"
)

// What callers branch on.
var (
	// ErrUnknownPeer is returned for a name that is no member and has no connection.
	ErrUnknownPeer = errors.New("unknown peer")
	// ErrNotConnected is returned where a connection is needed and not made.
	ErrNotConnected = errors.New("not connected")
	// ErrTooLarge is returned for a datagram above its bound; nothing was sent.
	ErrTooLarge = errors.New("too large")
	// ErrClosed is returned by a mesh that is not running (any more).
	ErrClosed = errors.New("mesh is closed")
)

// Mesh is one agent's place in its mesh.
type Mesh struct {
	cfg      Config
	log      *slog.Logger
	self     about // but for its meta, which is in meta
	meta     atomic.Pointer[[]byte]
	creds    *credentials
	folder   *folder
	tls      tlsConfigs
	keys     *keyring
	rotating sync.Mutex // held over a rotation of keys

	quic       *quic.Transport
	quicConfig *quic.Config
	initials   bucket // connections that peers begin
	transport  *transport
	delegate   *delegate
	table      *table
	refusals   *refusals
	metrics    *metrics
	traffic    traffic
	settle     *settle
	seeds      *seeds
	dials      atomic.Uint64 // begun so far
	dialSlots  chan struct{} // bounds handshakes that this agent begins
	retrySlots chan struct{} // and those with peers that did not answer the last time: they take all the time there is
	askSlots   chan struct{} // and those that it begins within another

	ctx     context.Context // from New to Close; what runs for the mesh ends with it
	cancel  context.CancelCauseFunc
	wg      sync.WaitGroup // everything that runs for the mesh
	running atomic.Bool
	leaving atomic.Bool
	goodbye chan struct{} // full over memberlist's Leave and Shutdown; a mutex would stop the clock of tests in fake time
	done    chan struct{} // closed when Run has returned
	list    atomic.Pointer[memberlist.Memberlist]

	spawnMu sync.Mutex
	stopped bool // Run waits for wg: nothing may be added from outside of it

	notifyMu sync.Mutex
	reported map[string]Peer // by name: the peers whose PeerUp was told last
}

// New checks the config and opens the two sockets; nothing is sent before Run. A Mesh that is never run must be closed.
func New(cfg Config) (*Mesh, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	keys, err := newKeyring(cfg)
	if err != nil {
		return nil, err
	}
	met, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	m := &Mesh{
		cfg: cfg, log: cfg.Logger.With("mesh", cfg.MeshID, "agent", cfg.Name), keys: keys, metrics: met,
		creds: newCredentials(cfg.Identity), folder: newFolder(cfg), done: make(chan struct{}), goodbye: make(chan struct{}, 1),
		reported:  map[string]Peer{},
		dialSlots: make(chan struct{}, cfg.Timings.DialLimit), askSlots: make(chan struct{}, cfg.Timings.DialLimit),
		retrySlots: make(chan struct{}, cfg.Timings.DialLimit),
	}
	m.ctx, m.cancel = context.WithCancelCause(context.Background())
	m.table = newTable(cfg.Name, cfg.protocols)
	m.refusals = newRefusals(m.log, met)
	m.settle = newSettle()
	m.seeds = newSeeds()
	m.delegate = newDelegate(m)
	if err := m.open(); err != nil {
		met.unregister()
		return nil, err
	}
	met.peers.Store(m)
	return m, nil
}

// open opens both sockets and learns from them what this agent says of itself.
func (m *Mesh) open() error {
	quicSock, quicAddr, err := m.listen(m.cfg.QUICBind, m.cfg.QUICAdvertise)
	if err != nil {
		return fmt.Errorf("open the QUIC socket: %w", err)
	}
	gossipSock, gossipAddr, err := m.listen(m.cfg.GossipBind, m.cfg.GossipAdvertise)
	if err != nil {
		quicSock.Close()
		return fmt.Errorf("open the gossip socket: %w", err)
	}
	var id [8]byte
	rand.Read(id[:])
	m.self = about{
		speaks: m.cfg.protocols, instance: binary.LittleEndian.Uint64(id[:]), started: m.cfg.Now().Unix(),
		quic: quicAddr,
	}
	m.meta.Store(&m.cfg.Meta)
	m.tls = tlsConfigs{speaks: m.cfg.protocols, foreign: m.refuseProtocol}
	m.quicConfig = quicConfig(m.cfg.Timings)
	m.quic = &quic.Transport{
		Conn: quicSock, StatelessResetKey: resetKey(m.cfg.Identity),
		VerifySourceAddress: func(net.Addr) bool { return !m.initials.take(time.Now()) },
		ConnContext:         func(ctx context.Context, _ *quic.ClientInfo) (context.Context, error) { return m.pin(ctx), nil },
	}
	m.transport = newTransport(m, gossipSock, gossipAddr)
	return nil
}

func (m *Mesh) listen(bind, advertise string) (net.PacketConn, netip.AddrPort, error) {
	sock, err := m.cfg.ListenPacket("udp", bind)
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	addr, err := advertised(sock.LocalAddr(), advertise)
	if err != nil {
		sock.Close()
		return nil, netip.AddrPort{}, err
	}
	return sock, addr, nil
}

// Run joins the mesh and serves it until ctx ends, Close is called or a socket breaks; it returns nil for the first
// two. It tells nobody that the agent goes: call Leave first where that is wanted.
func (m *Mesh) Run(ctx context.Context) error {
	if !m.running.CompareAndSwap(false, true) {
		return errors.New("run mesh: it ran already")
	}
	defer close(m.done)
	defer context.AfterFunc(ctx, func() { m.cancel(ErrClosed) })()
	ln, err := m.quic.Listen(m.tls.server(), m.quicConfig)
	if err != nil {
		m.stop(nil)
		return fmt.Errorf("listen for QUIC: %w", err)
	}
	list, err := memberlist.Create(m.memberlistConfig())
	if err != nil {
		m.stop(ln)
		return fmt.Errorf("start memberlist: %w", err)
	}
	m.list.Store(list)
	if m.folder.dir != "" {
		m.wg.Go(m.rereadAll)
	}
	m.wg.Go(func() { m.acceptAll(ln) })
	m.wg.Go(m.transport.readPackets)
	m.wg.Go(m.reconcileAll)
	m.wg.Go(m.joinAll)
	m.wg.Go(m.awaitSettled)
	m.wg.Go(m.reviewAll)
	m.wg.Go(m.watchGossip)
	<-m.ctx.Done()
	m.stop(ln)
	if err := context.Cause(m.ctx); !errors.Is(err, ErrClosed) {
		return err
	}
	return nil
}

// stop ends in this order: memberlist and its socket, so that nothing new is begun; then the connections, which tells
// the peers why; then the QUIC socket; then it waits for what still runs.
func (m *Mesh) stop(ln *quic.Listener) {
	m.cancel(ErrClosed)
	if list := m.list.Load(); list != nil {
		m.goodbye <- struct{}{}
		_ = list.Shutdown() // it fails only where the transport does
		<-m.goodbye
	}
	_ = m.transport.Shutdown()
	if ln != nil {
		ln.Close()
	}
	code, why := codeClosed, "agent stopped"
	if m.leaving.Load() {
		code, why = codeLeaving, "agent left"
	}
	m.table.closeAll(code, why)
	m.quic.Close()
	m.quic.Conn.Close()
	m.spawnMu.Lock()
	m.stopped = true
	m.spawnMu.Unlock()
	m.wg.Wait()
}

// enter makes Close wait until the caller calls m.wg.Done, unless the mesh has stopped. What Run started need not.
func (m *Mesh) enter() bool {
	m.spawnMu.Lock()
	defer m.spawnMu.Unlock()
	if m.stopped {
		return false
	}
	m.wg.Add(1)
	return true
}

// spawn runs f for the mesh, unless it has stopped. What runs for the mesh already may use m.wg.Go.
func (m *Mesh) spawn(f func()) bool {
	if !m.enter() {
		return false
	}
	go func() {
		defer m.wg.Done()
		f()
	}()
	return true
}

// Close stops the mesh and waits until Run has returned; no handler is called after that. The peers are not told that
// this agent goes for good: to them it is dead until it comes back (Leave tells them). While a Leave runs, Close waits
// for it, at most its timeout.
func (m *Mesh) Close() error {
	m.cancel(ErrClosed)
	if m.running.CompareAndSwap(false, true) {
		_ = m.transport.Shutdown()
		m.quic.Conn.Close()
		close(m.done)
	}
	<-m.done
	m.metrics.unregister()
	return nil
}

// Leave tells the peers that this agent goes on purpose: connected ones by closing their connections, the others by
// gossip, for which it waits at most timeout. The mesh still runs, without peers; call Close next.
func (m *Mesh) Leave(timeout time.Duration) error {
	list := m.list.Load()
	if list == nil || m.ctx.Err() != nil {
		return fmt.Errorf("leave: %w", ErrClosed)
	}
	m.leaving.Store(true)
	deadline := time.Now().Add(timeout)
	m.table.closeAll(codeLeaving, "agent left")
	err := m.leaveGossip(list, timeout)
	// memberlist returns when one peer has it; a few rounds more and all have.
	sleep(m.ctx, min(3*m.cfg.Timings.GossipInterval, time.Until(deadline)))
	if err != nil {
		return fmt.Errorf("leave: %w", err)
	}
	return nil
}

// leaveGossip leaves, unless the mesh stops: memberlist panics when it is to leave after its shutdown.
func (m *Mesh) leaveGossip(list *memberlist.Memberlist, timeout time.Duration) error {
	m.goodbye <- struct{}{}
	defer func() { <-m.goodbye }()
	if m.ctx.Err() != nil {
		return ErrClosed
	}
	return list.Leave(timeout)
}

// about is what this agent says of itself now.
func (m *Mesh) about() about {
	a := m.self
	a.meta = *m.meta.Load()
	return a
}

// metaTimeout bounds the wait for gossip to take changed metadata: it goes on by itself afterwards.
const metaTimeout = time.Second

// SetMeta changes Config.Meta, of at most MaxMeta bytes, and returns at once. Connections made from now on have it, and gossip
// brings it to the others within seconds; PeerHandler is not told of it.
func (m *Mesh) SetMeta(meta []byte) error {
	if len(meta) > MaxMeta {
		return fmt.Errorf("set meta: %d bytes: %w", len(meta), ErrTooLarge)
	}
	meta = bytes.Clone(meta)
	if was := m.meta.Swap(&meta); bytes.Equal(*was, meta) {
		return nil
	}
	list := m.list.Load()
	if list == nil { // it is gossiped from the start
		return nil
	}
	m.spawn(func() {
		if err := m.updateGossip(list); err != nil && m.ctx.Err() == nil {
			m.log.Debug("changed metadata not gossiped yet", "err", err)
		}
	})
	return nil
}

// updateGossip says anew what this agent says of itself, unless it leaves: that would bring it back.
func (m *Mesh) updateGossip(list *memberlist.Memberlist) error {
	m.goodbye <- struct{}{}
	defer func() { <-m.goodbye }()
	if m.ctx.Err() != nil || m.leaving.Load() {
		return nil
	}
	return list.UpdateNode(metaTimeout)
}

// Name is this agent's name.
func (m *Mesh) Name() string { return m.cfg.Name }

// Instance is this agent's instance: a random number for one life of its process.
func (m *Mesh) Instance() uint64 { return m.self.instance }

// QUICAddr is the address at which peers reach this agent, and which others may name in Config.Join.
func (m *Mesh) QUICAddr() netip.AddrPort { return m.self.quic }

// GossipAddr is the address to which peers send gossip packets.
func (m *Mesh) GossipAddr() netip.AddrPort { return m.transport.addr }
