package forward

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// A probe's datagram is datagramProbe, its kind, the uvarint number of the question and, of an answer, the Report; an answer
// without one says that it does not fit. A Report begins with its period, which is never 0: so heartbeats are told apart.
const (
	datagramProbe  byte = 0
	datagramAsk    byte = 1
	datagramAnswer byte = 2
)

// probeAgain is the least time after which a probe whose datagram brought no answer is sent again, by stream. It is ten times
// a round trip on a LAN, and leaves most of the accept deadline to the stream, which is not lost: a lost datagram is no miss.
const probeAgain = 10 * time.Millisecond

// IsProbe reports whether a datagram is for ServeDatagram, and no heartbeat.
func IsProbe(b []byte) bool { return len(b) > 0 && b[0] == datagramProbe }

func appendProbe(kind byte, number uint64) []byte {
	return binary.AppendUvarint([]byte{datagramProbe, kind}, number)
}

// questions are the probes that were sent by datagram and have no answer yet. The zero value is ready for use.
type questions struct {
	mu   sync.Mutex
	last uint64
	open map[uint64]question
}

type question struct {
	agent  string
	answer chan<- []byte // has room for it
}

// ask returns the number of a new question, and where its answer comes.
func (q *questions) ask(agent string) (number uint64, answer <-chan []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open == nil {
		q.open = map[uint64]question{}
	}
	q.last++
	to := make(chan []byte, 1)
	q.open[q.last] = question{agent, to}
	return q.last, to
}

// answer passes an agent's answer on, if that agent was asked and the answer is still waited for.
func (q *questions) answer(agent string, number uint64, report []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if o, ok := q.open[number]; ok && o.agent == agent {
		delete(q.open, number)
		o.answer <- report
	}
}

// drop forgets a question.
func (q *questions) drop(number uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.open, number)
}

// probe asks an agent for the loads of its engines. It asks by datagram, which costs both ends less; by stream when that
// cannot be sent, brings no answer soon, or the answer does not fit.
func (g *Ingress) probe(ctx context.Context, agent string, rtt time.Duration) (Report, error) {
	number, answer := g.questions.ask(agent)
	defer g.questions.drop(number)
	if g.Peers.SendDatagram(agent, appendProbe(datagramAsk, number)) != nil {
		return probe(ctx, g.Peers, agent)
	}
	timer := time.NewTimer(max(probeAgain, 2*rtt))
	defer timer.Stop()
	select {
	case b := <-answer:
		if len(b) > 0 {
			return ParseReport(b)
		}
	case <-timer.C:
	}
	return probe(ctx, g.Peers, agent)
}

// ServeDatagram takes in a datagram of a peer that IsProbe reports: it answers a question with a report of this period, or
// passes an answer on. It does not wait and keeps b.
func (g *Ingress) ServeDatagram(agent string, b []byte, period time.Duration) error {
	r := engine.NewReader(b[1:])
	kind, number := r.Byte(), r.Uvarint()
	if err := r.Err(); err != nil {
		return fmt.Errorf("parse probe: %w", err)
	}
	switch kind {
	case datagramAsk:
		g.View.Heard(agent, time.Now())
		return g.answer(agent, number, period)
	case datagramAnswer:
		g.questions.answer(agent, number, r.Rest())
	default: // of a later version
	}
	return nil
}

// answer tells an agent the loads, or that they do not fit.
func (g *Ingress) answer(agent string, number uint64, period time.Duration) error {
	head := appendProbe(datagramAnswer, number)
	if g.Peers.SendDatagram(agent, AppendReport(head, g.Owner.Report(period))) == nil {
		return nil
	}
	if err := g.Peers.SendDatagram(agent, head); err != nil {
		return fmt.Errorf("answer probe: %w", err)
	}
	return nil
}
