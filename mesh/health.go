package mesh

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	failingFor   = 5 * time.Second    // dials fail for so long before it is worth a note: agents do restart
	strangerFor  = 10 * time.Second   // a connected peer is no member for so long
	expiresSoon  = 7 * 24 * time.Hour // before the certificate ends
	slowToGossip = 3                  // memberlist's health score (0 to 8) from which this agent is too slow
)

// Health returns what an operator should look at, each in a sentence; empty means that all is well. Refusals are listed by
// Refusals.
func (m *Mesh) Health() []string {
	now := time.Now()
	notes := m.table.health(now)
	notes = append(notes, m.seedNotes()...)
	notes = append(notes, m.folder.health()...)
	notes = append(notes, m.certificateNotes(m.cfg.Now())...)
	if list := m.list.Load(); list != nil {
		if n := list.GetHealthScore(); n >= slowToGossip {
			notes = append(notes, fmt.Sprintf("this agent answers gossip late or loses packets (score %d of 8)", n))
		}
	}
	return notes
}

func (m *Mesh) certificateNotes(now time.Time) []string {
	var notes []string
	id := m.creds.identity()
	switch left := id.Expires().Sub(now); {
	case left < 0:
		notes = append(notes, fmt.Sprintf("the certificate of this agent has ended at %s", id.Expires().Format(time.RFC3339)))
	case left < expiresSoon:
		notes = append(notes, fmt.Sprintf("the certificate of this agent ends in %v", left.Round(time.Minute)))
	}
	if m.creds.isRevoked(id.Serial()) {
		notes = append(notes, fmt.Sprintf("the certificate of this agent (serial %s) is revoked: its peers refuse it", id.Serial()))
	}
	return notes
}

// health returns what is wrong with single peers, in order of their names.
func (t *table) health(now time.Time) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var notes []string
	for _, name := range slices.Sorted(maps.Keys(t.records)) {
		r := t.records[name]
		linked := r.current != nil && r.current.open()
		switch {
		case r.member && !linked && !r.about.speaks.meet(t.speaks):
			notes = append(notes, fmt.Sprintf("peer %s speaks %v, this agent %v: they cannot connect", name, r.about.speaks, t.speaks))
		case r.member && !linked && !r.failing.IsZero() && now.Sub(r.failing) >= failingFor:
			notes = append(notes, fmt.Sprintf("peer %s is alive by gossip (%v/udp), but QUIC to it at %v/udp fails since %s: %v",
				name, r.gossip, r.about.quic, r.failing.Format(time.TimeOnly), r.dialErr))
		case r.member && linked && r.deaf:
			notes = append(notes, fmt.Sprintf("peer %s is connected by QUIC, but gossip packets to it at %v/udp or their answers get lost: "+
				"is a port blocked in one direction?", name, r.gossip))
		case !r.member && linked && now.Sub(r.since) >= strangerFor:
			notes = append(notes, fmt.Sprintf("peer %s is connected, but no member: do its gossip keys differ?", name))
		}
	}
	return notes
}

func (m *Mesh) seedNotes() []string {
	if len(m.cfg.Join) == 0 || m.settle.isIn() {
		return nil
	}
	m.seeds.mu.Lock()
	defer m.seeds.mu.Unlock()
	var notes []string
	for _, seed := range slices.Sorted(maps.Keys(m.seeds.err)) {
		why := strings.ReplaceAll(m.seeds.err[seed].Error(), "\n", "; ")
		notes = append(notes, fmt.Sprintf("seed %s does not answer: %s", seed, why))
	}
	return notes
}
