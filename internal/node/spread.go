package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/engineagent"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/mesh"
)

// The first byte of a message says what it is.
const (
	messageEngines byte = 1 // announcement: number, instance of the sender, all its engines
	messageDigests byte = 2 // deltas or whole digests of the sender's engines
)

// maxDatagram bounds a heartbeat: with its headers it must fit a path of 1,280 bytes.
const maxDatagram = 1100

// announcePeriod is the number of digest periods between two announcements that tell nothing new. An announcement goes
// out at once when something changes and when a peer appears; the repetition repairs what a lost connection took along.
const announcePeriod = 10

// heartbeatPeriod is the period of loads: probes give the freshness that decides, heartbeats choose whom to probe. A
// shorter one costs two packets a peer each time, a longer one makes a dead agent known later.
func heartbeatPeriod(agents int) time.Duration {
	if agents <= 16 {
		return 500 * time.Millisecond
	}
	return time.Second
}

// digestPeriod must stay below the time that users think between two turns.
func digestPeriod(agents int) time.Duration {
	switch {
	case agents <= 16:
		return 500 * time.Millisecond
	case agents <= 64:
		return time.Second
	case agents <= 256:
		return 2 * time.Second
	default:
		return 5 * time.Second
	}
}

// agents returns the number of agents that can be reached, this one included.
func (n *Node) agents() int {
	count := 1
	for _, p := range n.mesh.Peers() {
		if p.Connected {
			count++
		}
	}
	return count
}

// beat sends heartbeats: one a period, and one when the state of an engine changes, but not more than four a period: an
// engine that is full and free again many times a second would cost every peer two packets each time.
func (n *Node) beat(ctx context.Context) error {
	for {
		period := heartbeatPeriod(n.agents())
		n.period.Store(int64(period))
		n.heartbeat(period)
		sent := time.Now()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(period):
			continue
		case <-n.stateChanged:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(sent.Add(period / 4))):
		}
	}
}

// heartbeat tells the loads of this agent's engines to every peer, and to this agent's own view.
func (n *Node) heartbeat(period time.Duration) {
	report := n.ingress.Owner.Report(period)
	n.view.Hear(n.config.Mesh.Name, report, time.Now())
	for _, b := range datagrams(report) {
		_, _ = n.mesh.BroadcastDatagram(b) // a lost heartbeat is followed by the next
	}
}

// datagrams splits a report into as many as fit a packet each.
func datagrams(r forward.Report) [][]byte {
	var out [][]byte
	part := forward.Report{Period: r.Period}
	for _, l := range r.Loads {
		longer := forward.Report{Period: r.Period, Loads: append(part.Loads, l)}
		if len(part.Loads) > 0 && len(forward.AppendReport(nil, longer)) > maxDatagram {
			out = append(out, forward.AppendReport(nil, part))
			longer.Loads = []forward.EngineLoad{l}
		}
		part = longer
	}
	return append(out, forward.AppendReport(nil, part))
}

// publish sends digests each period, and announcements when they tell something new or are due again.
func (n *Node) publish(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var told []engine.Engine
	for round := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-n.described:
			if cannotWait(told, n.engines()) {
				told = n.announce()
			}
		case <-timer.C:
			if round%announcePeriod == 0 {
				told = n.announce()
			}
			n.publishDigests()
			round++
			timer.Reset(digestPeriod(n.agents()))
		}
	}
}

// smallScale is by how much a scale may move without being told at once: it follows every answer, and would have an
// announcement made for many of them.
const smallScale = 2.0 / 16

// cannotWait reports whether peers should hear at once of how engines are now, and not with the announcement that is due anyway.
func cannotWait(told, now []engine.Engine) bool {
	return !slices.EqualFunc(told, now, func(t, e engine.Engine) bool {
		if math.Abs(t.OverlapScale()-e.OverlapScale()) <= smallScale {
			e.Scale = t.Scale
		}
		return bytes.Equal(engine.AppendEngine(nil, &t), engine.AppendEngine(nil, &e))
	})
}

// announce tells this agent's engines to every peer and to its own view, and returns what it told.
func (n *Node) announce() []engine.Engine {
	message, engines := n.announcement()
	n.view.Announce(n.config.Mesh.Name, engines, time.Now())
	n.broadcast(message)
	return engines
}

func (n *Node) engines() []engine.Engine {
	out := make([]engine.Engine, 0, len(n.agentsOf))
	for _, a := range n.agentsOf {
		out = append(out, a.Engine())
	}
	return out
}

// announcement is a number, this agent's instance, then its engines. Of two that come out of order the one with the higher
// number stands. The number is taken before the engines are read: when they change after that, a higher one follows.
func (n *Node) announcement() (message []byte, engines []engine.Engine) {
	b := binary.AppendUvarint([]byte{messageEngines}, n.announced.Add(1))
	engines = n.engines()
	b = binary.LittleEndian.AppendUint64(b, n.mesh.Instance())
	b = binary.AppendUvarint(b, uint64(len(engines)))
	for i := range engines {
		b = engine.AppendEngine(b, &engines[i])
	}
	return b, engines
}

// publishDigests sends what changed since the last time; empty deltas carry version and checksum, so that a peer that
// missed one finds out within a period.
func (n *Node) publishDigests() {
	var deltas []cachestate.Delta
	for _, a := range n.agentsOf {
		published := a.Publish()
		n.keepOwn(a, published)
		deltas = append(deltas, published...)
	}
	for _, b := range digestMessages(deltas) {
		n.broadcast(b)
	}
}

// keepOwn takes what an engine beside this agent published into the agent's own index. That may have dropped what it had,
// as it does when another generation is announced.
func (n *Node) keepOwn(a *engineagent.Agent, published []cachestate.Delta) {
	for i := range published {
		if !n.index.Apply(&published[i]).NeedFull() {
			continue
		}
		for _, whole := range a.Digests() {
			if whole.Tier == published[i].Tier {
				n.index.Apply(&whole)
			}
		}
	}
}

// wholeDigests are the messages that a new peer gets.
func (n *Node) wholeDigests() [][]byte {
	var whole []cachestate.Delta
	for _, a := range n.agentsOf {
		whole = append(whole, a.Digests()...)
	}
	return digestMessages(whole)
}

// digestMessages puts deltas into as few messages as the mesh takes: nearly always one, but whole digests of hundreds of
// engines in several tiers are more than that. None for no deltas.
func digestMessages(deltas []cachestate.Delta) [][]byte {
	var out [][]byte
	var part []byte
	for i := range deltas {
		b := cachestate.AppendDelta(nil, &deltas[i])
		if part != nil && len(part)+len(b) > mesh.MaxMessage {
			out, part = append(out, part), nil
		}
		if part == nil {
			part = []byte{messageDigests}
		}
		part = append(part, b...)
	}
	if part != nil {
		out = append(out, part)
	}
	return out
}

// watch keeps the view's clock.
func (n *Node) watch(ctx context.Context) error {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	minute := time.NewTicker(time.Minute)
	defer minute.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			n.view.Tick(now)
		case <-minute.C:
			n.forget()
		}
	}
}

// watchEngine passes an engine's changes on to the loops that tell them.
func (n *Node) watchEngine(ctx context.Context, changed <-chan struct{}) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			notify(n.stateChanged)
			notify(n.described)
		}
	}
}

// notify wakes the reader of a channel of capacity one; a wake that is pending already serves for both.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// broadcast sends a message to every connected peer. Those that it does not reach ask by version, or get it repeated.
func (n *Node) broadcast(b []byte) {
	ctx, cancel := context.WithTimeout(n.ctx, 5*time.Second)
	defer cancel()
	if err := n.mesh.BroadcastReliable(ctx, b); err != nil && n.ctx.Err() == nil {
		n.log.Debug("message did not reach every peer", "err", err)
	}
}
