package node

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/mesh"
)

// maxPull bounds a pulled digest: 2^24 bits and its header.
const maxPull = 2<<20 + 1024

// pullDeadline bounds one pull; the next digest message asks again.
const pullDeadline = 5 * time.Second

// pull fetches from its owner what is missing of an engine's digest. One pull of an engine runs at a time.
func (n *Node) pull(id engine.ID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pulling[id] || n.ctx.Err() != nil {
		return
	}
	n.pulling[id] = true
	n.metrics.pulls.Inc()
	n.tasks.Go(func() {
		if err := n.pullNow(id); err != nil && n.ctx.Err() == nil {
			n.log.Warn("digest not pulled", "engine", id, "err", err)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.pulling, id)
	})
}

func (n *Node) pullNow(id engine.ID) error {
	ctx, cancel := context.WithTimeout(n.ctx, pullDeadline)
	defer cancel()
	s, err := n.mesh.Open(ctx, id.Agent(), mesh.KindDigestPull)
	if err != nil {
		return fmt.Errorf("open pull: %w", err)
	}
	defer s.Close()
	defer context.AfterFunc(ctx, func() { s.Cancel(codePullDeadline) })()
	have, _ := n.index.Have(id)
	b := engine.AppendString(nil, id.Name())
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
	name, gen, number := r.String(256), engine.Generation(r.Uvarint()), r.Uvarint()
	if err := r.Err(); err != nil {
		return fmt.Errorf("parse pull: %w", err)
	}
	a := n.byName[name]
	if a == nil {
		return fmt.Errorf("serve pull of %q: %w", name, errGone)
	}
	d, ok := a.DeltasSince(cachestate.TierGPU, number)
	if !ok || d.Generation != gen {
		d = a.Digests()[0]
	}
	if _, err := s.Write(cachestate.AppendDelta(nil, &d)); err != nil {
		return fmt.Errorf("send digest: %w", err)
	}
	return s.Close()
}
