package spread

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
)

// maxPull bounds a pulled digest: 2^24 bits and its header.
const maxPull = 2<<20 + 1024

// pullDeadline bounds one pull; the next digest message asks again.
const pullDeadline = 5 * time.Second

// codePullDeadline cancels a pull that took too long.
const codePullDeadline = 33

var (
	// errOther says that an owner answered with another digest than the one that was asked for.
	errOther = errors.New("the owner sent another digest")
	// errGone says that a peer asked for an engine that this agent does not have.
	errGone = errors.New("no such engine")
)

// pull fetches from its owner what is missing of a digest. One pull of each runs at a time.
func (l *Listener) pull(id DigestID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pulling[id] || l.ctx.Err() != nil {
		return
	}
	l.pulling[id] = true
	l.pulls.Inc()
	l.pullers.Go(func() {
		if err := l.pullNow(id); err != nil && l.ctx.Err() == nil {
			l.Logger.Warn("digest not pulled", "engine", id.Engine, "tier", id.Tier.String(), "err", err)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.pulling, id)
	})
}

func (l *Listener) pullNow(id DigestID) error {
	ctx, cancel := context.WithTimeout(l.ctx, pullDeadline)
	defer cancel()
	s, err := l.Carrier.OpenPull(ctx, id.Engine.Agent())
	if err != nil {
		return fmt.Errorf("open pull: %w", err)
	}
	defer s.Close()
	defer context.AfterFunc(ctx, func() { s.Cancel(codePullDeadline) })()
	have, _ := l.Have(id)
	b := append(engine.AppendString(nil, id.Engine.Name()), byte(id.Tier))
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
	d, _, err := cachestate.ParseDelta(answer, id.Engine.Agent(), l.Index.Geometry())
	if err != nil {
		return err
	}
	l.View.Heard(id.Engine.Agent(), time.Now())
	return l.take(id, &d)
}

// take takes in what an owner answered to a pull.
func (l *Listener) take(id DigestID, d *cachestate.Delta) error {
	if d.Engine != id.Engine || d.Tier != id.Tier {
		return errOther
	}
	if gen, ok := l.View.Generation(id.Engine); !ok || gen != d.Generation {
		return nil // of another life than the one that is announced
	}
	if outcome := l.Index.Apply(d); outcome.NeedFull() {
		l.Index.Tier(id.Tier).Remove(id.Engine) // a delta did not fit what is here: the next message has the whole digest pulled
	}
	return nil
}

// ServePull answers a peer that missed deltas: with those, or with the whole digest when they are gone or larger.
func (t *Teller) ServePull(s Stream) error {
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
	source := t.byName[name]
	if source == nil {
		return fmt.Errorf("serve pull of %q: %w", name, errGone)
	}
	d, ok := source.DeltasSince(tier, number)
	if !ok || d.Generation != gen {
		all := source.Digests()
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
