package simulate

import "testing"

// situation is what a table says of each engine before a pick.
type situation struct {
	held   []int // leading blocks of the prompt that each engine holds
	queued []int // tokens waiting for prefill
	sent   []int // requests that the router sent there before
	down   []int
}

// set brings a world of as many engines about.
func (s situation) set(w *world, p picker, chain []block) {
	for e, n := range s.held {
		for _, b := range chain[:n] {
			w.holders.add(b, e)
		}
	}
	for e, q := range s.queued {
		w.nodes[e].queued = q
	}
	for e, n := range s.sent {
		for i := range n {
			p.sent(w.ask(block(100_000+1000*e+10*i), 1, 1), e)
		}
	}
	for _, e := range s.down {
		w.nodes[e].up = false
	}
}

func TestPickers(t *testing.T) {
	const blocks = 10 // of the prompt, 5,120 tokens
	for _, c := range []struct {
		name, policy string
		situation
		want int
	}{
		{"oracle takes the holder while its queue is short", "oracle", situation{held: []int{8, 0}, queued: []int{12_000, 0}}, 0},
		{"oracle leaves it for thrice what it saves", "oracle", situation{held: []int{8, 0}, queued: []int{13_000, 0}}, 1},
		{"oracle passes over the dead", "oracle", situation{held: []int{8, 0}, down: []int{0}}, 1},
		{"least load counts requests", "least-load", situation{sent: []int{3, 2, 4}}, 1},
		{"round robin begins with the first", "round-robin", situation{sent: []int{3, 2, 4}}, 0},
		{"round robin passes over the dead", "round-robin", situation{sent: []int{0, 0}, down: []int{0}}, 1},
		{"random has one choice", "random", situation{sent: []int{0, 0, 0}, down: []int{0, 2}}, 1},
		{"nobody is up", "session", situation{sent: []int{0, 0}, down: []int{0, 1}}, none},
		{"a hash passes over an engine above the bound", "session", situation{sent: []int{50, 0}}, 1},
		{"and the other one", "session", situation{sent: []int{0, 50}}, 0},
		{"prefix-hash likewise", "prefix-hash", situation{sent: []int{50, 0}}, 1},
		{"kubeai likewise", "kubeai", situation{sent: []int{0, 50}}, 0},
		{"dynamo adds prefill and decode blocks", "dynamo", situation{held: []int{5, 0}, sent: []int{4, 0}}, 1},
		{"dynamo takes the holder for less", "dynamo", situation{held: []int{5, 0}, sent: []int{2, 0}}, 0},
		{"llm-d weighs what is held twice", "llm-d", situation{held: []int{8, 2}}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			engines := max(len(c.held), len(c.queued), len(c.sent))
			w := bench(t, c.policy, engines, MachineFIFO)
			p := w.policy.(*router).picker
			r := w.ask(10, blocks, 1)
			c.set(w, p, r.chain)
			if got := p.pick(r); got != c.want {
				t.Errorf("engine %d; want %d", got, c.want)
			}
		})
	}
}

func TestHashesKeepANameOnOneEngine(t *testing.T) {
	for _, policy := range []string{"session", "prefix-hash", "kubeai"} {
		w := bench(t, policy, 8, MachineFIFO)
		p := w.policy.(*router).picker
		used := map[int]bool{}
		for name := range 200 {
			r := w.ask(block(1000*name), 4, 1)
			e := p.pick(r)
			used[e] = true
			if again := p.pick(r); again != e {
				t.Errorf("%s: name %d on engines %d and %d", policy, name, e, again)
			}
		}
		if len(used) != 8 {
			t.Errorf("%s: 200 names on %d of 8 engines", policy, len(used))
		}
	}
}

func TestSGLangsRouter(t *testing.T) {
	w := bench(t, "sglang", 3, MachineFIFO)
	p := w.policy.(*router).picker
	known := w.ask(10, 10, 1)
	p.sent(known, 1)
	longer := w.ask(10, 20, 1)
	if e := p.pick(longer); e != 1 {
		t.Errorf("a prompt of which half was sent to engine 1 goes to %d", e)
	}
	other := w.ask(10, 40, 1)
	if e := p.pick(other); e == 1 {
		t.Error("a quarter is below the threshold, and engine 1 has the largest tree")
	}
	for i := range balanceAbove + 2 {
		p.sent(w.ask(block(1000+i), 1, 1), 1)
		p.sent(w.ask(block(5000+i), 1, 1), 2)
	}
	if e := p.pick(longer); e != 0 {
		t.Errorf("out of balance: engine %d and not the least loaded", e)
	}
}

func TestSGLangsRoutersKnowOnlyTheirOwnRequests(t *testing.T) {
	w := bench(t, "sglang-each", 2, MachineFIFO)
	p := w.policy.(*router).picker
	known := w.ask(10, 10, 1)
	known.ingress = 0
	p.sent(known, 1)
	for i := range 5 {
		filler := w.ask(block(1000*i+1000), 10, 1)
		filler.ingress = 1
		p.sent(filler, 1)
	}
	again := w.ask(10, 10, 1)
	again.ingress = 1
	if e := p.pick(again); e != 0 {
		t.Errorf("the other router sends it to %d, not to its smallest tree", e)
	}
}

func TestDynamosBooksAreEmptyAtTheEnd(t *testing.T) {
	w := bench(t, "dynamo", 2, MachineFIFO)
	for i := range 20 {
		r := w.ask(block(10*(i%3)), 5, 3)
		w.open++
		r.counted = true
		w.policy.arrive(r)
	}
	w.drain()
	p := w.policy.(*router).picker.(*dynamo)
	for e := range 2 {
		if p.tokens[e] != 0 || len(p.active[e]) != 0 {
			t.Errorf("engine %d: %d tokens and %d blocks active", e, p.tokens[e], len(p.active[e]))
		}
	}
}
