package node

import (
	"context"
	"encoding/binary"
	"errors"
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

// pull fetches from its owner what is missing of a digest. One pull of each runs at a time.
func (n *Node) pull(id digestID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pulling[id] || n.ctx.Err() != nil {
		return
	}
	n.pulling[id] = true
	n.metrics.pulls.Inc()
	n.tasks.Go(func() {
		if err := n.pullNow(id); err != nil && n.ctx.Err() == nil {
			n.log.Warn("digest not pulled", "engine", id.engine, "tier", id.tier.String(), "err", err)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.pulling, id)
	})
}

func (n *Node) pullNow(id digestID) error {
	ctx, cancel := context.WithTimeout(n.ctx, pullDeadline)
	defer cancel()
	s, err := n.mesh.Open(ctx, id.engine.Agent(), mesh.KindDigestPull)
	if err != nil {
		return fmt.Errorf("open pull: %w", err)
	}
	defer s.Close()
	defer context.AfterFunc(ctx, func() { s.Cancel(codePullDeadline) })()
	have, _ := n.have(id)
	b := append(engine.AppendString(nil, id.engine.Name()), byte(id.tier))
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
	d, _, err := cachestate.ParseDelta(answer, id.engine.Agent(), n.index.Geometry())
	if err != nil {
		return err
	}
	n.view.Heard(id.engine.Agent(), time.Now())
	if d.Engine != id.engine || d.Tier != id.tier {
		return errOther
	}
	if gen, ok := n.view.Generation(id.engine); !ok || gen != d.Generation {
		return nil // of another life than the one that is announced
	}
	if outcome := n.index.Apply(&d); outcome.NeedFull() {
		n.index.Tier(id.tier).Remove(id.engine) // a delta did not fit what is here: the next message has the whole digest pulled
	}
	return nil
}

// errOther says that an owner answered with another digest than the one that was asked for.
var errOther = errors.New("the owner sent another digest")

// have returns the version of a digest that is here.
func (n *Node) have(id digestID) (cachestate.Version, bool) {
	index := n.index.Tier(id.tier)
	if index == nil {
		return cachestate.Version{}, false
	}
	return index.Have(id.engine)
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
