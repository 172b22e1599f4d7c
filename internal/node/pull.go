package node

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/mesh"
)

// maxPull bounds a pulled digest: 2^24 bits and its header.
const maxPull = 2<<20 + 1024

// pullDeadline bounds one pull; the next digest message asks again.
const pullDeadline = 5 * time.Second

// pulled names one digest.
type pulled struct {
	engine engine.ID
	tier   cachestate.Tier
}

// pull fetches from its owner what is missing of an engine's digest. One pull of an engine runs at a time.
func (n *Node) pull(id engine.ID, t cachestate.Tier) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := pulled{id, t}
	if n.pulling[p] || n.ctx.Err() != nil {
		return
	}
	n.pulling[p] = true
	n.metrics.pulls.Inc()
	n.tasks.Go(func() {
		if err := n.pullNow(p); err != nil && n.ctx.Err() == nil {
			n.log.Warn("digest not pulled", "engine", id, "tier", t, "err", err)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.pulling, p)
	})
}

func (n *Node) pullNow(p pulled) error {
	id := p.engine
	ctx, cancel := context.WithTimeout(n.ctx, pullDeadline)
	defer cancel()
	s, err := n.mesh.Open(ctx, id.Agent(), mesh.KindDigestPull)
	if err != nil {
		return fmt.Errorf("open pull: %w", err)
	}
	defer s.Close()
	defer context.AfterFunc(ctx, func() { s.Cancel(codePullDeadline) })()
	var have cachestate.Version
	if index := n.index.Tier(p.tier); index != nil {
		have, _ = index.Have(id)
	}
	b := append(engine.AppendString(nil, id.Name()), byte(p.tier))
	b = binary.AppendUvarint(b, uint64(have.Generation))
	b = binary.AppendUvarint(b, have.Number)
	if _, err := s.Write(b); err != nil {
		return fmt.Errorf("send pull: %w", err)
	}
	if err := s.CloseWrite(); err != nil {
		return fmt.Errorf("send pull: %w", err)
	}
	answer, err := io.ReadAll(io.LimitReader(s, maxPull))
	if err != nil {
		return fmt.Errorf("read digest: %w", err)
	}
	d, _, err := cachestate.ParseDelta(answer, id.Agent())
	if err != nil {
		return err
	}
	if gen, ok := n.view.Generation(id); !ok || gen != d.Generation {
		return nil // of another life than the one that is announced
	}
	if outcome := n.index.Apply(&d); outcome.NeedFull() {
		n.index.Remove(id) // a delta did not fit what is here: the next message brings a whole digest
	}
	return nil
}

// codePullDeadline cancels a pull that took too long.
const codePullDeadline = 33

// servePull answers a peer that missed deltas: with those, or with the whole digest when they are gone or larger.
func (n *Node) servePull(s *mesh.Stream) error {
	_ = s.SetReadDeadline(time.Now().Add(pullDeadline))
	request, err := io.ReadAll(io.LimitReader(s, 512))
	if err != nil {
		return fmt.Errorf("read pull: %w", err)
	}
	r := engine.NewReader(request)
	name, tier, gen, number := r.String(256), cachestate.Tier(r.Byte()), engine.Generation(r.Uvarint()), r.Uvarint()
	if err := r.Err(); err != nil {
		return fmt.Errorf("parse pull: %w", err)
	}
	a := n.byName[name]
	if a == nil {
		return fmt.Errorf("serve pull of %q: %w", name, errGone)
	}
	d, ok := a.DeltasSince(tier, number)
	if !ok || d.Generation != gen {
		all := a.Digests()
		i := slices.IndexFunc(all, func(d cachestate.Delta) bool { return d.Tier == tier })
		if i < 0 {
			return fmt.Errorf("serve pull of %q in tier %v: %w", name, tier, errGone)
		}
		d = all[i]
	}
	if _, err := s.Write(cachestate.AppendDelta(nil, &d)); err != nil {
		return fmt.Errorf("send digest: %w", err)
	}
	return s.Close()
}
