package forward

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// farPeers are peers at some round trip time that nobody reaches.
type farPeers time.Duration

func (p farPeers) OpenRequest(context.Context, string) (Stream, error) { return nil, errors.New("far") }

func (p farPeers) OpenProbe(context.Context, string) (Stream, error) { return nil, errors.New("far") }
func (p farPeers) SendDatagram(string, []byte) error                 { return errors.New("far") }
func (p farPeers) RTT(string) time.Duration                          { return time.Duration(p) }

func TestProbesAreSentOnlyWhereTheyCanSaveSomething(t *testing.T) {
	near, far := 100*time.Microsecond, 60*time.Millisecond
	own := func(c *Candidate) { c.State = Own }
	suspect := func(c *Candidate) { c.State = Suspect }
	a, b, c := candidate("a/0", 0, 0, 0), candidate("b/0", 0, 1, 0), candidate("c/0", 0, 2, 0)
	d, e := candidate("d/0", 0, 3, 0), candidate("e/0", 0, 4, 0)
	for _, tt := range []struct {
		name  string
		bytes float64
		rtt   time.Duration
		short []Candidate
		asked []string // agents that are sent a probe
	}{
		{"the best four", 64000, near, []Candidate{a, b, c, d, e}, []string{"a", "b", "c", "d"}},
		{"its own load is read", 64000, near, []Candidate{with(a, own), b, c, d, e}, []string{"b", "c", "d"}},
		{"a short prompt, for which no digest is looked at", 40, near, []Candidate{a, b, c, d, e}, []string{"a", "b", "c", "d"}},
		{"one candidate is left", 64000, near, []Candidate{a}, nil},
		{"the whole prompt takes less than a round trip", 3600, far, []Candidate{a, b, c, d, e}, nil}, // 900 tokens take 56 ms
		{"it takes longer", 4000, far, []Candidate{a, b, c, d, e}, []string{"a", "b", "c", "d"}},
		{"a suspect is asked whatever it takes", 796, far, []Candidate{a, b, c, d, with(e, suspect)}, []string{"e"}},
		{"a suspect that is alone", 64000, near, []Candidate{with(a, suspect)}, []string{"a"}},
	} {
		x := &exchange{g: &Ingress{Config: Config{Peers: farPeers(tt.rtt)}}, q: *ask(tt.bytes)}
		agents := slices.Sorted(maps.Keys(x.toProbe(tt.short)))
		if !slices.Equal(agents, tt.asked) {
			t.Errorf("%s: asked %v, want %v", tt.name, agents, tt.asked)
		}
		for _, c := range tt.short {
			if slices.Contains(agents, c.ID.Agent()) && !c.Asked || c.Probed != (c.Asked && c.State == Own) {
				t.Errorf("%s: %+v", tt.name, c)
			}
		}
	}
}

func TestEngineOfUnknownLoadIsProbed(t *testing.T) {
	unknown := Candidate{ID: engine.ID("e/0"), State: Fresh}
	q := ask(64000)
	busy := func(id string) Candidate { return candidate(id, 0, 0, 3) }
	short := []Candidate{busy("a/0"), busy("b/0"), busy("c/0"), unknown}
	q.Learned = LearnedBy(short)
	if set := ProbeSet(q, short); !slices.Contains(set, 3) {
		t.Errorf("asked %v, want the unknown one among them", set)
	}
}
