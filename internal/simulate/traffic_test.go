package simulate

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/internal/workload"
)

func TestCopiesShareOnlyWhatMostRequestsHold(t *testing.T) {
	c := smallConfig("oracle")
	c.Engines, c.Span = 16, 200*time.Second
	p := newReplay(c.Trace, &c)
	if len(p.arrivals) != 4*300 {
		t.Fatalf("%d arrivals of four copies of 300", len(p.arrivals))
	}
	w := bench(t, "oracle", 4, MachineFIFO)
	run := &player{replay: p, w: w}
	owner := map[block]int32{}
	users := map[uint64]bool{}
	for i := range p.arrivals {
		a := p.arrivals[i]
		if i > 0 && a.at < p.arrivals[i-1].at {
			t.Fatal("arrivals are not in order")
		}
		r := run.arrive()
		users[r.user] = true
		for at, b := range r.chain {
			if first, known := owner[b]; at > 0 && known && first != a.copy {
				t.Fatalf("block %d is in copies %d and %d", b, first, a.copy)
			}
			owner[b] = a.copy
		}
		if r.chain[0] != 0 {
			t.Fatalf("the system prompt is block %d", r.chain[0])
		}
	}
	if len(users) != 4*30 {
		t.Errorf("%d conversations; want 120", len(users))
	}
}

func TestLoadPressesArrivalsTogether(t *testing.T) {
	c := smallConfig("oracle")
	c.Span = time.Hour
	whole := newReplay(c.Trace, &c)
	c.Load = 2
	double := newReplay(c.Trace, &c)
	last := len(whole.arrivals) - 1
	if got, want := double.arrivals[last].at, whole.arrivals[last].at/2; got != want {
		t.Errorf("at twice the load the last request comes at %v; want %v", got, want)
	}
}

func TestBurstsArriveAtOneInstant(t *testing.T) {
	c := smallConfig("oracle")
	p := newReplay(c.Trace, &c)
	before := slices.Clone(p.arrivals)
	p.bunch(7)
	for i, a := range p.arrivals {
		if want := before[i-i%7].at; a.at != want || a.kind != before[i].kind {
			t.Fatalf("arrival %d at %v; want %v", i, a.at, want)
		}
	}
}

func TestOnlyCoarseClocksAreJittered(t *testing.T) {
	fine := smallTrace()
	coarse := smallTrace()
	for i := range coarse.Requests {
		coarse.Requests[i].At = coarse.Requests[i].At.Truncate(workload.MooncakeQuantum)
	}
	if tick(fine) != 0 || tick(coarse) != workload.MooncakeQuantum {
		t.Errorf("ticks of %v and %v", tick(fine), tick(coarse))
	}
}

func TestMixtureHasItsStreams(t *testing.T) {
	c := smallConfig("oracle")
	c.Span = 59800 * time.Millisecond // the trace's length
	p := newReplay(c.Trace, &c)
	recorded := len(p.kinds)
	p.mixIn(c.Trace, &c)
	counts := map[int]int{}
	for _, k := range p.kinds[recorded:] {
		counts[k.common()]++
		if blocks := k.runs[0].Count + k.runs[1].Count; (k.input+traceBlockTokens-1)/traceBlockTokens != blocks {
			t.Fatalf("%d tokens in %d blocks", k.input, blocks)
		}
	}
	if counts[12] != 201 || counts[5] != 75 {
		t.Errorf("requests below 12 and 5 shared blocks: %v; want 0.67 and 0.25 of 300", counts)
	}
}

func TestConversationsAreAsDescribed(t *testing.T) {
	for _, shape := range []struct {
		name  string
		turns float64
		rate  float64
	}{{"two", 1.5, 611}, {"six", 4, 205}} {
		c := smallConfig("oracle")
		c.Workload, c.Shape, c.Engines, c.Span, c.WarmUp = "sessions", shape.name, 24, 200*time.Second, time.Second
		tr, err := trafficOf(&c)
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(&c, tr, policySpec{make: routed(newRandom)})
		source := w.source.(*chatter)
		begun, turns := 0, 0
		used := map[block]int{}
		for w.now = 0; begun < 2000; begun++ {
			r := source.arrive()
			for n := 0; ; n++ {
				turns++
				if r.turn != n || r.ends[0] != chatSystemTokens || r.ends[len(r.ends)-1] != r.input || len(r.ends) != 2+2*n {
					t.Fatalf("turn %d: number %d, messages end at %v, prompt of %d tokens", n, r.turn, r.ends, r.input)
				}
				for _, b := range append(r.chain[chatSystemTokens/chatBlockTokens:], r.answer...) {
					if conversation, known := used[b]; known && conversation != begun {
						t.Fatalf("block %d is in conversations %d and %d", b, conversation, begun)
					}
					used[b] = begun
				}
				v := &source.live.all[r.session]
				if 2*(v.turn+1) == len(v.lengths) {
					break
				}
				v.ends = append(v.ends, r.input+r.output)
				v.turn++
				r = source.request(int32(r.session))
			}
			e, _ := w.agenda.next()
			w.now = e.at
		}
		if mean := float64(turns) / float64(begun); math.Abs(mean-shape.turns) > 0.1 {
			t.Errorf("%s: %.2f turns a conversation; want %v", shape.name, mean, shape.turns)
		}
		if rate := float64(begun) / w.now.Seconds(); math.Abs(rate*10/shape.rate-1) > 0.1 {
			t.Errorf("%s: %.1f conversations a second; want %v", shape.name, rate, shape.rate/10)
		}
	}
}

func TestCodingSessionsBecomeLargerBlocks(t *testing.T) {
	turn := func(tokens int, runs ...workload.BlockRun) workload.CodingTurn {
		return workload.CodingTurn{InputTokens: tokens, OutputTokens: 5, Think: time.Hour, Blocks: runs}
	}
	all, err := codingSessionsOf([]workload.CodingSession{{
		BlockTokens: 64, SharedTokens: 600, Kind: workload.CodingKind{ToolTokens: 400, SystemTokens: 200},
		Turns: []workload.CodingTurn{
			turn(1100, workload.BlockRun{First: 1, Count: 18}),
			turn(1700, workload.BlockRun{First: 1, Count: 27}),
			turn(1700, workload.BlockRun{First: 1, Count: 15}, workload.BlockRun{First: 50, Count: 12}), // the second block changed
			turn(codingContext+1, workload.BlockRun{First: 1, Count: 27}),
			turn(1700, workload.BlockRun{First: 1, Count: 27}),
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	s := all[0]
	want := [][]uint32{{0, 1}, {0, 1, 2}, {0, 3, 4}}
	if len(s.turns) != len(want) || s.shared != 1 || s.blocks != 5 {
		t.Fatalf("%d turns, %d blocks shared of %d; want 3, 1 of 5", len(s.turns), s.shared, s.blocks)
	}
	for i, turn := range s.turns {
		if len(turn.chain) != len(want[i]) || turn.think != codingThink {
			t.Fatalf("turn %d: blocks %v after %v; want %v", i, turn.chain, turn.think, want[i])
		}
		for j, b := range turn.chain {
			if b != want[i][j] {
				t.Errorf("turn %d: blocks %v; want %v", i, turn.chain, want[i])
			}
		}
	}
}

func TestCodingLoopGoesOnAfterAnswers(t *testing.T) {
	c := smallConfig("oracle")
	c.Workload, c.Engines, c.Span = "coding-agent", 1, 100*time.Second
	var turns []workload.CodingTurn
	for i := range 50 {
		turns = append(turns, workload.CodingTurn{
			InputTokens: 600 + 512*i, OutputTokens: 5, Think: time.Second, Blocks: []workload.BlockRun{{First: 1, Count: 9 + 8*i}},
		})
	}
	c.Sessions = []workload.CodingSession{{BlockTokens: 64, SharedTokens: 512, Turns: turns}}
	r := simulated(t, c)[0]
	if r.Requests < codingSessions*15 || r.FollowUpRatio < 0.4 {
		t.Errorf("%d requests of %d sessions in 90 s, %.2f of later turns from cache", r.Requests, codingSessions, r.FollowUpRatio)
	}
}
