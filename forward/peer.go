package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// Peers reaches other agents. It is safe for concurrent use.
type Peers interface {
	// OpenRequest opens a stream that the peer answers with its Owner's ServeRequest.
	OpenRequest(ctx context.Context, agent string) (Stream, error)
	// OpenProbe opens a stream that the peer answers with its Owner's ServeProbe.
	OpenProbe(ctx context.Context, agent string) (Stream, error)
	// SendDatagram gives b, which it keeps, to the peer's ServeDatagram. It does not wait. What is sent may be lost; what is
	// too long for any path is an error.
	SendDatagram(agent string, b []byte) error
	// RTT returns the smoothed round trip to the peer; 0 when it is not known.
	RTT(agent string) time.Duration
}

// acceptFloor is the least time that an owner has to accept or to answer a probe before that counts as missed. Accepts
// take a fraction of a millisecond; a collector or a busy core can hold one up by tens.
const acceptFloor = 50 * time.Millisecond

func acceptDeadline(rtt time.Duration) time.Duration { return max(acceptFloor, 4*rtt) }

var (
	// errMissed says that a peer did not accept in time: it may hang, and counts as missed.
	errMissed = errors.New("no accept in time")
	// errUnreached says that a peer could not be asked: its connection broke, or it did not understand.
	errUnreached = errors.New("peer not reached")
)

// askPeer has another agent serve the request on one of its engines. Patience multiplies the accept deadline.
func (g *Ingress) askPeer(ctx context.Context, agent string, c *call, body []byte, patience int, to receiver) (ending, error) {
	wait := acceptDeadline(g.Peers.RTT(agent)) * time.Duration(patience)
	openCtx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	s, err := g.Peers.OpenRequest(openCtx, agent)
	if err != nil {
		return ending{}, notAccepted(err)
	}
	h := &hop{
		Stream: s, frames: newFrameReader(s), out: newFrameWriter(s),
		doubt: func(err error) { g.doubtLoad(engine.MakeID(agent, c.Engine), err) },
		heard: func(now time.Time) { g.View.Heard(agent, now) },
	}
	stop := context.AfterFunc(ctx, func() { s.Cancel(codeCanceled) })
	defer stop()
	end, err := h.run(c, body, time.Now().Add(wait), to)
	if err != nil {
		s.Cancel(codeCanceled)
	} else {
		_ = s.Close() // the answer is complete
	}
	if cause := context.Cause(ctx); cause != nil && err != nil && h.accepted {
		return ending{}, &failure{"peer_lost", cause}
	}
	return end, err
}

// notAccepted says whether a peer let the time pass, or could not be asked.
func notAccepted(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", errMissed, err)
	}
	return fmt.Errorf("%w: %w", errUnreached, err)
}

// hop is the ingress side of one request stream.
type hop struct {
	Stream
	frames   *frameReader
	out      *frameWriter
	doubt    func(error)     // called for each load that cannot be true
	heard    func(time.Time) // called for frames, at most once in heardGap
	heardAt  time.Time
	accepted bool
	ids      tokens // of the last TOKENS frame
}

// run asks and passes the answer on. With a *failure that the owner told comes its load. A failed write is not the end: an
// owner that bounces does so before it has read the body, and its answer says why.
func (h *hop) run(c *call, body []byte, deadline time.Time, to receiver) (ending, error) {
	_ = h.SetDeadline(deadline)
	early := len(body) <= earlyBody && !c.Once
	if err := h.request(c, body, early); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		early = true // nothing more can be written
	}
	for {
		t, payload, err := h.frames.read()
		if err != nil {
			return ending{}, h.broken(err)
		}
		h.hear()
		switch t {
		case frameAccept:
			err = h.accept(payload, body, early, to)
			body = nil // not kept while the answer comes
		case frameHead:
			err = receiveHead(payload, to)
		case frameData, frameContent:
			err = to.data(payload, t == frameContent)
		case frameTokens:
			h.ids.IDs = h.ids.IDs[:0]
			if err = parseTokens(payload, &h.ids); err == nil {
				err = to.tokens(&h.ids)
			}
		case frameBounce:
			v, err := parseVerdict(payload)
			return ending{}, errors.Join(&bounce{v}, h.excuse(err))
		case frameFail:
			v, err := parseVerdict(payload)
			return ending{Load: v.Load}, &failure{v.Reason, errors.Join(errors.New("engine failed"), h.excuse(err))}
		case frameEnd:
			end, err := parseEnding(payload)
			return end, h.excuse(err)
		default: // a later version's frame
		}
		if err != nil {
			return ending{}, err
		}
	}
}

// heardGap is the least time between two signs of life that one stream gives: far below what counts as silence, and long
// enough that the view's lock is not taken for every token.
const heardGap = 100 * time.Millisecond

func (h *hop) hear() {
	if now := time.Now(); now.Sub(h.heardAt) >= heardGap {
		h.heardAt = now
		h.heard(now)
	}
}

// request sends the REQUEST frame and, where it need not wait for the accept, the body.
func (h *hop) request(c *call, body []byte, early bool) error {
	if err := h.out.write(frameRequest, appendCall(c)); err != nil {
		return err
	}
	if early {
		return h.sendBody(body)
	}
	return h.out.flush()
}

func (h *hop) sendBody(body []byte) error {
	for len(body) > 0 {
		n := min(len(body), chunk)
		if err := h.out.write(frameBody, body[:n]); err != nil {
			return err
		}
		body = body[n:]
	}
	if err := h.out.flush(); err != nil {
		return err
	}
	return h.CloseWrite()
}

func (h *hop) accept(payload, body []byte, sent bool, to receiver) error {
	v, err := parseVerdict(payload)
	if err := h.excuse(err); err != nil {
		return err
	}
	h.accepted = true
	_ = h.SetDeadline(time.Time{})
	if err := to.accepted(v.Load); err != nil {
		return err
	}
	if sent {
		return nil
	}
	if err := h.sendBody(body); err != nil {
		return &failure{"peer_lost", err}
	}
	return nil
}

// excuse lets a frame stand whose load cannot be true: only that load is not known.
func (h *hop) excuse(err error) error {
	if errors.Is(err, engine.ErrImplausible) {
		h.doubt(err)
		return nil
	}
	return err
}

// broken says what a read error means: before the accept nothing was served; after it a stream without END is lost.
func (h *hop) broken(err error) error {
	if !h.accepted {
		return notAccepted(err)
	}
	return &failure{"peer_lost", unexpectedEOF(err)}
}

func receiveHead(payload []byte, to receiver) error {
	h, err := parseHead(payload)
	if err != nil {
		return err
	}
	return to.head(h)
}

// probeLimit bounds the answer to a probe: 256 engines of at most 300 bytes.
const probeLimit = 80 << 10

// probe asks an agent for the loads of its engines by a stream of their own: one round trip, unless packets are lost.
func probe(ctx context.Context, peers Peers, agent string) (Report, error) {
	s, err := peers.OpenProbe(ctx, agent)
	if err != nil {
		return Report{}, fmt.Errorf("open probe: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { s.Cancel(codeCanceled) })
	defer stop()
	defer s.Close()
	if err := s.CloseWrite(); err != nil {
		return Report{}, fmt.Errorf("send probe: %w", err)
	}
	b, err := io.ReadAll(io.LimitReader(s, probeLimit))
	if err != nil {
		s.Cancel(codeCanceled)
		return Report{}, fmt.Errorf("read probe answer: %w", err)
	}
	return ParseReport(b)
}

// loadOf returns one engine's load in a report.
func (r Report) loadOf(id engine.ID) (engine.Load, bool) {
	for _, l := range r.Loads {
		if l.Name == id.Name() {
			return l.Load, true
		}
	}
	return engine.Load{}, false
}
