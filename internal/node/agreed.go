package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/policy"
	"github.com/kvmesh/kvmesh/mesh"
	"github.com/kvmesh/kvmesh/mesh/agreed"
)

// agreedFolder is where the agreed state is, in the data folder.
const agreedFolder = "agreed"

// AgreedFolder returns the folder of the agreed state in a data folder.
func AgreedFolder(data string) string { return filepath.Join(data, agreedFolder) }

// agreement is this agent's part in what the mesh agrees on, and what it makes of it: whatever changes is put to where
// requests find it without waiting. It has its own loop, and handlers of the debug server call it.
type agreement struct {
	n     *Node
	group *agreed.Group
	local *localCordons
	moved chan struct{} // capacity 1: cordons of this agent alone have changed

	caughtUp atomic.Bool  // the state of the mesh is here, as far as there is one
	settled  atomic.Int64 // when the mesh had settled; Unix time in ns

	mu      sync.Mutex
	policy  policyInForce
	revoked map[string]bool // what mesh was told already
}

func (n *Node) buildAgreed() error {
	a := &agreement{n: n, moved: make(chan struct{}, 1), revoked: map[string]bool{}}
	a.policy = fromConfig(&n.config)
	a.local = loadLocalCordons(n.config.Data)
	c := agreed.Config{
		Name: n.config.Mesh.Name, Agents: roster{n}, Streams: roster{n}, Expect: n.config.BootstrapExpect,
		Logger:         n.log,
		ValidatePolicy: func(text string) error { _, err := policy.Parse([]byte(text)); return err },
	}
	if n.config.Data != "" {
		c.Folder = AgreedFolder(n.config.Data)
	}
	var err error
	a.group, err = agreed.New(c)
	n.agreement = a
	return err
}

// run takes part, and applies what comes of it, until ctx ends.
func (a *agreement) run(ctx context.Context) error {
	for {
		changed := a.group.Changed()
		next := a.apply(time.Now())
		_ = a.n.mesh.SetMeta(encodeMeta(a.group.Self())) // it is short
		var expiry <-chan time.Time
		if !next.IsZero() {
			expiry = time.After(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-a.moved:
		case <-expiry:
		}
	}
}

// apply puts the state as it is now into force, and returns when a cordon ends by itself; zero for never.
func (a *agreement) apply(now time.Time) (next time.Time) {
	s := a.group.State()
	a.applyPolicy(s)
	a.applyRevoked(s)
	return a.applyCordons(now)
}

func (a *agreement) applyRevoked(s *agreed.State) {
	a.mu.Lock()
	var serials []string
	for _, r := range s.Revoked {
		if !a.revoked[r.Serial] {
			a.revoked[r.Serial] = true
			serials = append(serials, r.Serial)
		}
	}
	a.mu.Unlock()
	if err := a.n.mesh.Revoke(serials); err != nil {
		a.n.log.Warn("certificates of the agreed state are not all revoked", "err", err)
	}
}

// catchUpLimit is how long after the mesh has settled an agent waits for the agreed state before it is ready without.
const catchUpLimit = 3 * time.Second

// ready reports whether the agent routes by what the mesh has agreed on: it has heard it from a voter, no peer has anything, or
// it has waited for long enough. What was so once stays so: a quorum that is lost makes no agent unready.
func (a *agreement) ready(now time.Time) bool {
	if a.caughtUp.Load() {
		return true
	}
	if !a.n.mesh.Settled() {
		return false
	}
	a.settled.CompareAndSwap(0, now.UnixNano())
	heard := a.group.Status().Leader != "" && a.group.State().Index > 0
	others := slices.ContainsFunc(roster{a.n}.Agents(), func(o agreed.Agent) bool { return o.HasState })
	if heard || !others || now.UnixNano()-a.settled.Load() >= int64(catchUpLimit) {
		a.caughtUp.Store(true)
		return true
	}
	return false
}

// possible returns an error where no agent of the mesh could decide anything, so that nobody waits for that.
func (a *agreement) possible() error {
	if a.n.config.Data != "" || a.group.State().Index > 0 || len(roster{a.n}.Agents()) > 0 {
		return nil
	}
	return fmt.Errorf("%w: no agent of this mesh has a data folder; start three or five with --data and --bootstrap-expect", agreed.ErrNoQuorum)
}

// propose has the mesh decide on c.
func (a *agreement) propose(ctx context.Context, c agreed.Command) (agreed.Result, error) {
	if err := a.possible(); err != nil {
		return agreed.Result{}, err
	}
	return a.group.Propose(ctx, c)
}

// roster is the mesh as agreed sees it.
type roster struct{ n *Node }

var (
	_ agreed.Agents  = roster{}
	_ agreed.Streams = roster{}
)

// Agents implements agreed.Agents: those that are connected and have, or may have, a part in the agreed state.
func (r roster) Agents() []agreed.Agent {
	var out []agreed.Agent
	for _, p := range r.n.mesh.Peers() {
		if a := parseMeta(p.Name, p.Meta); p.Connected && (a.RaftID != "" || a.HasState) {
			out = append(out, a)
		}
	}
	return out
}

// Open implements agreed.Streams.
func (r roster) Open(ctx context.Context, agent string) (net.Conn, error) {
	s, err := r.n.mesh.Open(ctx, agent, mesh.KindRaft)
	if err != nil {
		return nil, err // a nil *mesh.Stream would be no nil Conn
	}
	return s, nil
}

// The parts of node metadata and of push/pull's state: a tag, a length, and so many bytes. A tag that is not known is skipped.
const (
	metaRaftID = 1
	metaExpect = 2
	metaState  = 3

	stateDigests = 1 // the version vector of digests
	stateAgreed  = 2 // name of the agent, then what Group.Advertise gave
)

func appendPart(b []byte, tag byte, body []byte) []byte {
	return engine.AppendString(append(b, tag), string(body))
}

// eachPart calls f for each part of b.
func eachPart(b []byte, f func(tag byte, body []byte)) error {
	r := engine.NewReader(b)
	for len(r.Rest()) > 0 {
		tag, body := r.Byte(), r.Bytes(mesh.MaxState)
		if err := r.Err(); err != nil {
			return err
		}
		f(tag, body)
	}
	return nil
}

// encodeMeta returns what peers should know of this agent before they ask.
func encodeMeta(a agreed.Agent) (b []byte) {
	if a.RaftID != "" {
		b = appendPart(b, metaRaftID, []byte(a.RaftID))
		b = appendPart(b, metaExpect, []byte{byte(a.Expect)})
	}
	if a.HasState {
		b = appendPart(b, metaState, nil)
	}
	return b
}

// parseMeta reads what encodeMeta wrote; of metadata that is damaged, what stands before the damage.
func parseMeta(name string, b []byte) agreed.Agent {
	a := agreed.Agent{Name: name}
	_ = eachPart(b, func(tag byte, body []byte) {
		switch {
		case tag == metaRaftID:
			a.RaftID = string(body)
		case tag == metaExpect && len(body) == 1:
			a.Expect = int(body[0])
		case tag == metaState:
			a.HasState = true
		}
	})
	return a
}

// maxOffer is more than the part about the agreed state takes.
const maxOffer = 2 << 10

// LocalState implements mesh.StateHandler: the version vector of the digests that this agent has, and which agreed state.
func (n *Node) LocalState() []byte {
	b := appendPart(nil, stateDigests, n.listener.State(mesh.MaxState-maxOffer))
	if mark := n.agreement.group.Advertise(); mark != nil {
		b = appendPart(b, stateAgreed, append(engine.AppendString(nil, n.config.Mesh.Name), mark...))
	}
	return b
}

// MergeState implements mesh.StateHandler.
func (n *Node) MergeState(b []byte) {
	err := eachPart(b, func(tag byte, body []byte) {
		switch tag {
		case stateDigests:
			n.listener.MergeState(body)
		case stateAgreed:
			n.offer(body)
		}
	})
	if err != nil {
		n.log.Debug("state of a peer not read to its end", "err", err)
	}
}

func (n *Node) offer(body []byte) {
	r := engine.NewReader(body)
	from := r.Name(maxPeerName)
	if err := errors.Join(r.Err(), n.agreement.group.Offer(from, r.Rest())); err != nil {
		n.log.Debug("agreed state of a peer not read", "peer", from, "err", err)
	}
}

// maxPeerName bounds an agent's name.
const maxPeerName = 64
