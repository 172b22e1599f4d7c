package mesh

import (
	"sync"
	"time"
)

// settlePolls is how often in a row the membership must be the same.
const settlePolls = 3

// settle is whether this agent trusts its view of the mesh.
type settle struct {
	ready chan struct{} // closed once, for good

	mu sync.Mutex
	in bool // a seed has answered, or none is needed
}

func newSettle() *settle { return &settle{ready: make(chan struct{})} }

func (s *settle) joined(in bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in = s.in || in
}

func (s *settle) isIn() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.in
}

// awaitSettled closes ready when members and connections have stayed the same for three polls after joining, when the
// deadline is over, or at once when there is nobody to join.
func (m *Mesh) awaitSettled() {
	if len(m.cfg.Join) == 0 || m.membershipRests() {
		m.log.Info("mesh settled")
		close(m.settle.ready)
	}
}

// membershipRests waits for that and returns false when the mesh is closed first.
func (m *Mesh) membershipRests() bool {
	deadline := time.Now().Add(m.cfg.Timings.SettleTimeout)
	same, last := 0, [2]int{}
	for same < settlePolls && time.Now().Before(deadline) {
		if !sleep(m.ctx, m.cfg.Timings.SettlePoll) {
			return false
		}
		members, connections := m.table.counts()
		now := [2]int{members, connections}
		if same++; now != last || !m.settle.isIn() {
			same, last = 0, now
		}
	}
	return true
}

// Ready is closed when the mesh has settled: from then on this agent's view of who is there can be trusted.
func (m *Mesh) Ready() <-chan struct{} { return m.settle.ready }

// Settled reports whether Ready is closed.
func (m *Mesh) Settled() bool {
	select {
	case <-m.settle.ready:
		return true
	default:
		return false
	}
}
