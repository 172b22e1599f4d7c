package spread

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
)

const (
	// maxPulls bounds the pulls that run at a time: a whole digest takes a packet's time at each end, and hundreds that are
	// missed together should not delay requests.
	maxPulls = 8
	// maxPullsOf bounds those from one owner: one that does not answer must not keep the others' waiting.
	maxPullsOf = maxPulls / 2
	// maxAsked bounds the digests of one owner that are asked for: all of as many engines as it may have, in two geometries.
	maxAsked = 2 * 3 * MaxEngines
	// pullDeadline bounds one pull; what comes next of the digest asks again.
	pullDeadline = 5 * time.Second
	// pullSlack is the part of a period by which a pull may come earlier than a period after the one before, so that the
	// next frame may begin it.
	pullSlack = 4
	// pullJitter is the part of a period within which a pull is begun: all peers of an owner may have missed the same.
	pullJitter = 8
	// pullHeader is more than a digest takes beside its bits.
	pullHeader = 1 << 10
)

// The codes that cancel a pull: it took too long, the owner does not have the digest, the asker has too many.
const (
	codePullDeadline = 33
	codePullGone     = 36
	codePullBusy     = 37
)

var (
	// errOther says that an owner answered with another digest than the one that was asked for.
	errOther = errors.New("the owner sent another digest")
	// errGone says that a peer asked for a digest that this agent does not have.
	errGone = errors.New("no such digest")
	// errBusy says that a peer asks for more at a time than it may.
	errBusy = errors.New("too many pulls at a time")
)

// asked is when a digest was pulled last.
type asked struct {
	at      time.Time
	running bool
}

// pull has what is missing of a digest fetched from its owner: once at a time, and not as often as digests are told,
// whoever says that something is missing.
func (l *Listener) pull(id DigestID) {
	period := DigestPeriod(l.Carrier.Agents())
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.owners[id.Engine.Agent()]
	if o == nil || l.ctx.Err() != nil {
		return
	}
	a := o.asked[id]
	if a == nil {
		if len(o.asked) >= maxAsked {
			return
		}
		a = &asked{}
		o.asked[id] = a
	}
	if a.running || now.Sub(a.at) < period-period/pullSlack {
		return
	}
	a.running, a.at = true, now
	l.pulls.Inc()
	l.pullers.Go(func() {
		if err := l.pullInTurn(o, id, rand.N(period/pullJitter)); err != nil && o.ctx.Err() == nil {
			l.Logger.Debug("digest not pulled", "engine", id.Engine, "tier", id.Tier.String(), "err", err)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		a.running = false
	})
}

// pullInTurn pulls after a while, and when few others run: of the same owner first, so that who waits for those holds up no
// other.
func (l *Listener) pullInTurn(o *owner, id DigestID, after time.Duration) error {
	select {
	case <-time.After(after):
	case <-o.ctx.Done():
		return o.ctx.Err()
	}
	for _, slots := range []chan struct{}{o.slots, l.slots} {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-o.ctx.Done():
			return o.ctx.Err()
		}
	}
	return l.pullNow(id)
}

// pullNow pulls a digest: what is missing of it or, where that does not fit what is here, all of it.
func (l *Listener) pullNow(id DigestID) error {
	fits, err := l.pullOnce(id)
	if err == nil && !fits {
		if index := l.Index.TierIn(id.Geometry, id.Tier); index != nil {
			index.Remove(id.Engine)
		}
		_, err = l.pullOnce(id)
	}
	return err
}

func (l *Listener) pullOnce(id DigestID) (fits bool, err error) {
	ctx, cancel := context.WithTimeout(l.ctx, pullDeadline)
	defer cancel()
	s, err := l.Carrier.OpenPull(ctx, id.Engine.Agent())
	if err != nil {
		return false, fmt.Errorf("open pull: %w", err)
	}
	defer s.Close()
	defer context.AfterFunc(ctx, func() { s.Cancel(codePullDeadline) })()
	d, err := l.ask(s, id)
	if err != nil {
		return false, err
	}
	l.View.Heard(id.Engine.Agent(), time.Now())
	return l.take(id, &d)
}

// ask asks for what is missing here of a digest.
func (l *Listener) ask(s Stream, id DigestID) (cachestate.Delta, error) {
	have, _ := l.Have(id)
	b := append(engine.AppendString(nil, id.Engine.Name()), byte(id.Tier))
	b = binary.AppendUvarint(b, uint64(have.Generation))
	b = binary.AppendUvarint(b, have.Number)
	b = cachestate.AppendGeometry(b, id.Geometry)
	if _, err := s.Write(b); err != nil {
		return cachestate.Delta{}, fmt.Errorf("send pull: %w", err)
	}
	if err := s.CloseWrite(); err != nil {
		return cachestate.Delta{}, fmt.Errorf("send pull: %w", err)
	}
	answer, err := io.ReadAll(io.LimitReader(s, int64(id.Geometry.Bits/8+pullHeader)))
	if err != nil {
		return cachestate.Delta{}, fmt.Errorf("read digest: %w", err)
	}
	d, _, err := cachestate.ParseDelta(answer, id.Engine.Agent(), id.Geometry)
	return d, err
}

// take takes in what an owner answered to a pull, and reports whether it fits what is here.
func (l *Listener) take(id DigestID, d *cachestate.Delta) (fits bool, err error) {
	if digestOf(d) != id {
		return false, errOther
	}
	if gen, ok := l.View.Generation(id.Engine); !ok || gen != d.Generation {
		return true, nil // of another life than the one that is announced
	}
	if l.Index.Apply(d).NeedFull() {
		return false, nil
	}
	l.current(id)
	return true, nil
}

// ServePull answers a peer that missed deltas: with those, or with the whole digest when they are gone or larger.
func (t *Teller) ServePull(peer string, s Stream) error {
	if !t.enterPull(peer) {
		s.Cancel(codePullBusy)
		return fmt.Errorf("serve pull: %w", errBusy)
	}
	defer t.leavePull(peer)
	_ = s.SetReadDeadline(time.Now().Add(pullDeadline))
	request, err := io.ReadAll(io.LimitReader(s, 512))
	if err != nil {
		return fmt.Errorf("read pull: %w", err)
	}
	id, have, err := t.parsePull(request)
	if err != nil {
		return err
	}
	d, ok := t.answerPull(id, have)
	if !ok {
		s.Cancel(codePullGone)
		return fmt.Errorf("serve pull of %q in tier %v: %w", id.Engine, id.Tier, errGone)
	}
	_ = s.SetWriteDeadline(time.Now().Add(pullDeadline))
	if _, err := s.Write(cachestate.AppendDelta(nil, &d)); err != nil {
		return fmt.Errorf("send digest: %w", err)
	}
	return s.Close()
}

// parsePull reads what a peer asks for. One that asks in no geometry knows only one, which is the default.
func (t *Teller) parsePull(b []byte) (id DigestID, have cachestate.Version, err error) {
	r := engine.NewReader(b)
	id = DigestID{Engine: engine.MakeID(t.Self, r.String(256)), Tier: cachestate.Tier(r.Byte()), Geometry: cachestate.DefaultGeometry()}
	have = cachestate.Version{Generation: engine.Generation(r.Uvarint()), Number: r.Uvarint()}
	if len(r.Rest()) > 0 {
		id.Geometry = cachestate.ReadGeometry(r)
	}
	if err := r.Err(); err != nil {
		return id, have, fmt.Errorf("parse pull: %w", err)
	}
	return id, have, nil
}

// answerPull returns what leads from a version of a digest to the last published one.
func (t *Teller) answerPull(id DigestID, have cachestate.Version) (cachestate.Delta, bool) {
	s := t.byName[id.Engine.Name()]
	if s == nil || !id.Tier.Valid() {
		return cachestate.Delta{}, false
	}
	t.publishing.Lock()
	defer t.publishing.Unlock()
	if d, ok := s.DeltasSince(id.Geometry, id.Tier, have.Number); ok && d.Generation == have.Generation {
		return d, true
	}
	return wholeDigest(s, id)
}

// enterPull reports whether a peer has fewer pulls than it may, and counts one more.
func (t *Teller) enterPull(peer string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pulls[peer] >= maxPulls {
		return false
	}
	t.pulls[peer]++
	return true
}

func (t *Teller) leavePull(peer string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pulls[peer]--; t.pulls[peer] == 0 {
		delete(t.pulls, peer)
	}
}
