package simulate

import (
	"strconv"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/spread"
)

// ingress is an agent that clients reach: its view of the mesh.
type ingress struct {
	number int
	index  int // of its engine; none when it has none
	name   string
	view   *forward.View
	heard  []uint64        // number of the last heartbeat taken in, by agent
	alive  []time.Duration // when the last sign of life came, by agent
	loads  [1]forward.EngineLoad
}

// periods of heartbeats and digests by the number of agents, as internal/node has them.
func (c *Config) periods() (heartbeat, digest time.Duration) {
	heartbeat, digest = time.Second, 5*time.Second
	switch {
	case c.Engines <= 16:
		heartbeat, digest = time.Second/2, time.Second/2
	case c.Engines <= 64:
		digest = time.Second
	case c.Engines <= 256:
		digest = 2 * time.Second
	}
	if c.Heartbeat > 0 {
		heartbeat = c.Heartbeat
	}
	if c.Digest > 0 {
		digest = c.Digest
	}
	return heartbeat, digest
}

// agents is the number of agents in the mesh.
func (w *world) agents() int {
	if w.cfg.Ingresses == w.cfg.Engines {
		return w.cfg.Engines
	}
	return w.cfg.Engines + w.cfg.Ingresses
}

// newIngress returns one that has heard every engine's announcement.
func (p *mesh) newIngress(i int) *ingress {
	g := &ingress{number: i, index: i, heard: make([]uint64, len(p.w.nodes)), alive: make([]time.Duration, len(p.w.nodes))}
	if p.w.cfg.Ingresses == p.w.cfg.Engines {
		g.name = p.w.nodes[i].agent
	} else {
		g.index, g.name = none, "ingress"+strconv.Itoa(i)
	}
	g.view = forward.NewView(g.name, p.w.index)
	for _, n := range p.w.nodes {
		g.view.Announce(n.agent, n.announcement(), p.w.clock())
	}
	return g
}

// announcement is what the owner tells of its engine.
func (n *node) announcement() []engine.Engine {
	return []engine.Engine{{
		ID: n.id, Kind: engine.KindVLLM, Generation: n.life, Models: n.w.models,
		BlockTokens: n.w.blockTokens, CapacityTokens: int64(n.w.cfg.CacheBlocks * n.w.blockTokens), MaxRunning: maxRunning,
		Residency: engine.ResidencyEvents, Evidence: engine.EvidenceUsage,
	}}
}

// feed takes in the heartbeats that have reached g by now. A digest is a sign of life too.
func (p *mesh) feed(g *ingress) {
	w := p.w
	for i, n := range w.nodes {
		if i == g.index {
			continue
		}
		if n.told > g.alive[i] {
			g.alive[i] = n.told
			g.view.Heard(n.agent, epoch.Add(n.told))
		}
		if n.beats.sent == g.heard[i] {
			continue
		}
		number, ok := n.beats.newest(g.heard[i], func(number uint64, sent time.Duration) bool {
			return p.arrived(g, i, number, sent)
		})
		if !ok {
			continue
		}
		g.heard[i] = number
		b := n.beats.number(number)
		at := b.at + w.drawnDelay(w.cfg.HeartbeatDelay, p.draw(g, i, number)...)
		g.loads[0] = forward.EngineLoad{Name: n.id.Name(), Load: b.load}
		g.view.Hear(n.agent, forward.Report{Period: p.heartbeat, Loads: g.loads[:]}, epoch.Add(at))
		if g.alive[i] = max(g.alive[i], at); g.alive[i] > at {
			g.view.Heard(n.agent, epoch.Add(g.alive[i]))
		}
	}
}

func (p *mesh) draw(g *ingress, owner int, number uint64) []uint64 {
	p.parts = append(p.parts[:0], streamChannel, uint64(g.number), uint64(owner), number)
	return p.parts
}

// arrived reports whether a heartbeat was not lost on its way to g and is there.
func (p *mesh) arrived(g *ingress, owner int, number uint64, sent time.Duration) bool {
	w := p.w
	if sent+w.cfg.HeartbeatDelay > w.now {
		return false
	}
	parts := p.draw(g, owner, number)
	if sent+w.drawnDelay(w.cfg.HeartbeatDelay, parts...) > w.now {
		return false
	}
	return w.cfg.HeartbeatLoss == 0 || uniform(w.cfg.Seed+1, parts...) >= w.cfg.HeartbeatLoss
}

// beat sends the heartbeat of an engine's agent.
func (p *mesh) beat(n *node) {
	l := n.load()
	n.beats.add(p.w.now, l)
	report := forward.Report{Period: p.heartbeat, Loads: []forward.EngineLoad{{Name: n.id.Name(), Load: l}}}
	size := in(spread.DatagramCost(len(forward.AppendReport(p.buf[:0], report))))
	p.w.result.heard(size * float64(p.w.agents()-1) * (1 - p.w.cfg.HeartbeatLoss))
}

// publish sends what changed in an engine's digest since the version that the others have: what was lost comes again.
func (p *mesh) publish(n *node) {
	w := p.w
	d := n.digest.Publish(w.clock())
	if have, ok := w.index.Have(n.id); !ok || have.Generation != n.life {
		d = n.digest.Full()
	} else if have.Number < d.From {
		if since, ok := n.digest.Since(have.Number); ok {
			d = since
		} else {
			d = n.digest.Full()
		}
	}
	size := in(spread.FeedCost(len(cachestate.AppendDelta(p.buf[:0], &d))))
	w.result.heard(size * float64(w.agents()-1))
	if !w.lost(w.cfg.DigestLoss) {
		w.at(w.now+w.delay(w.cfg.DigestDelay), event{kind: onDelta, a: int32(n.index), d: w.deltas.put(d)})
	}
}
