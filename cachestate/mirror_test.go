package cachestate

import (
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// turns returns the prompt of a conversation with so many bytes in each turn, one key an end of turn, four bytes a
// token. Equal turns in front share keys.
func turns(sizes ...int) *Prompt {
	p := &Prompt{Keys: []Key{1}, Offsets: []uint32{0}}
	path := ""
	for _, size := range sizes {
		path += fmt.Sprint("/", size)
		p.Bytes += int64(size)
		p.Keys = append(p.Keys, Key(maphash.String(pathSeed, path)))
		p.Offsets = append(p.Offsets, uint32(p.Bytes))
	}
	return p
}

var pathSeed = maphash.MakeSeed()

func nothing(Key, bool) {}

// plenty is a bound on keys that no test reaches but the one of the bound.
const plenty = 1 << 20

func TestKeysWithoutTokensAreBounded(t *testing.T) {
	m := NewMirror(1_000_000, 1, 100, nothing)
	for i := range 50 {
		p := &Prompt{Bytes: 10}
		for j := range 10 {
			p.Keys = append(p.Keys, Key(i*10+j+1))
			p.Offsets = append(p.Offsets, uint32(j))
		}
		l := m.Start(p, 4)
		l.Prefilled()
		l.Finish(2, 1)
	}
	if len(m.keys) > 100 || m.Overlap([]Key{491}) != 1 {
		t.Errorf("%d keys are kept, of 500 with a bound of 100", len(m.keys))
	}
}

// serve runs one request from its start to its end.
func serve(m *Mirror, p *Prompt, output int) {
	l := m.Start(p, 4)
	l.Prefilled()
	l.Finish(0, output)
}

func TestMirrorEvictsInOrderOfRelease(t *testing.T) {
	m := NewMirror(300, 1, plenty, nothing)
	long := m.Start(turns(400), 4) // 100 tokens; starts first, ends last
	long.Prefilled()
	serve(m, turns(404), 0)
	long.Finish(0, 0)
	serve(m, turns(800), 0) // 200 tokens: one of the others must go
	if got := [2]int{m.Overlap(turns(400).Keys), m.Overlap(turns(404).Keys)}; got != [2]int{2, 1} {
		t.Errorf("got overlaps %v, want the one that ended last to stay", got)
	}
}

func TestMirrorEvictsTailsFirst(t *testing.T) {
	m := NewMirror(300, 1, plenty, nothing)
	serve(m, turns(400, 400), 50)
	if got := m.Tokens(); got != 250 {
		t.Fatalf("got %d tokens, want 250", got)
	}
	for _, tt := range []struct {
		capacity int64
		keys     int
		tokens   int64
	}{{250, 3, 250}, {249, 3, 200}, {200, 3, 200}, {199, 2, 100}, {99, 1, 0}, {0, 1, 0}} {
		m.SetCapacity(tt.capacity)
		if got := m.Overlap(turns(400, 400).Keys); got != tt.keys || m.Tokens() != tt.tokens {
			t.Errorf("capacity %d: got %d keys, %d tokens, want %d, %d", tt.capacity, got, m.Tokens(), tt.keys, tt.tokens)
		}
	}
}

func TestRunningRequestsAreNotEvicted(t *testing.T) {
	m := NewMirror(300, 1, plenty, nothing)
	serve(m, turns(400), 0)
	a := m.Start(turns(400, 400), 4) // pins 100, holds 100
	b := m.Start(turns(404), 4)      // holds 101
	if m.Tokens() != 301 || m.held != 201 || m.Overlap(turns(400).Keys) != 2 || len(a.entries) != 2 || len(b.entries) != 1 {
		t.Errorf("got %d tokens, %d held, overlap %d", m.Tokens(), m.held, m.Overlap(turns(400).Keys))
	}
	a.Generated(40)
	if m.Tokens() != 341 {
		t.Errorf("with 40 generated: got %d tokens, want 341", m.Tokens())
	}
	a.Finish(0, 40)
	if m.Tokens() != 201 { // its output and its last key, of 100 tokens, made room
		t.Errorf("after one ended: got %d tokens, want 201", m.Tokens())
	}
}

func TestConcurrentCopiesCount(t *testing.T) {
	m := NewMirror(1000, 1, plenty, nothing)
	a, b := m.Start(turns(400), 4), m.Start(turns(400), 4)
	a.Prefilled()
	b.Prefilled()
	if m.Tokens() != 200 {
		t.Errorf("two run: got %d tokens, want 200", m.Tokens())
	}
	b.Finish(0, 0)
	if m.Tokens() != 100 {
		t.Errorf("one runs: got %d tokens, want 100", m.Tokens())
	}
	m.SetCapacity(0)
	if m.Overlap(turns(400).Keys) != 2 {
		t.Error("a key that a running request pins was evicted")
	}
	a.Finish(0, 0)
	if m.Tokens() != 0 {
		t.Errorf("none runs at capacity 0: got %d tokens", m.Tokens())
	}
}

func TestNextTurnTakesOverTheOutput(t *testing.T) {
	m := NewMirror(1000, 1, plenty, nothing)
	serve(m, turns(400), 50)
	serve(m, turns(400, 200, 400), 0) // the answer, 50 tokens, and a question of 100
	if m.Tokens() != 250 {
		t.Errorf("got %d tokens, want 250: the output is counted twice", m.Tokens())
	}
}

func TestAbandonedRequestLeavesOrderAlone(t *testing.T) {
	m := NewMirror(300, 1, plenty, nothing)
	serve(m, turns(400), 0)
	serve(m, turns(404), 0)
	l := m.Start(turns(400), 4)
	l.Abandon()
	l.Abandon()
	l.Finish(0, 1000)
	m.SetCapacity(150)
	if m.held != 0 || m.Overlap(turns(400).Keys) != 1 || m.Overlap(turns(404).Keys) != 2 {
		t.Error("an abandoned request made its keys young")
	}
}

func TestRequestAbandonedWhileItGeneratesIsFinished(t *testing.T) {
	m := NewMirror(300, 1, plenty, nothing)
	l := m.Start(turns(400), 4)
	l.Prefilled()
	l.Generated(20)
	l.Abandon()
	if m.held != 0 || m.Tokens() != 120 || m.Overlap(turns(400).Keys) != 2 {
		t.Errorf("got %d held, %d tokens", m.held, m.Tokens())
	}
}

func TestSequencesTakeWholeBlocks(t *testing.T) {
	m := NewMirror(1000, 16, plenty, nothing)
	l := m.Start(turns(400), 4) // 100 tokens: 7 blocks
	if m.Tokens() != 112 {
		t.Errorf("waiting: got %d tokens, want 112", m.Tokens())
	}
	l.Prefilled()
	l.Generated(13) // 113 tokens: 8 blocks
	if m.Tokens() != 128 {
		t.Errorf("running: got %d tokens, want 128", m.Tokens())
	}
	l.Finish(0, 13)
	if m.Tokens() != 112 { // the partial block is free
		t.Errorf("ended: got %d tokens, want 112", m.Tokens())
	}
}

func TestReportedPromptTokensCorrectTheRest(t *testing.T) {
	m := NewMirror(1000, 1, plenty, nothing)
	l := m.Start(turns(400), 4)
	l.Finish(130, 0)
	if m.Tokens() != 130 {
		t.Errorf("got %d tokens, want 130", m.Tokens())
	}
}

func TestPromptWithoutKeysTakesRoom(t *testing.T) {
	m := NewMirror(100, 1, plenty, nothing)
	serve(m, turns(200), 0)
	l := m.Start(&Prompt{Bytes: 240}, 4)
	if m.Overlap(turns(200).Keys) != 1 {
		t.Error("60 tokens without keys evict nothing")
	}
	l.Finish(0, 10)
	if m.Tokens() != 70 || len(m.keys) != 1 {
		t.Errorf("got %d tokens and %d keys, want 70 and the root's", m.Tokens(), len(m.keys))
	}
	m.SetCapacity(10)
	if m.Tokens() != 0 {
		t.Errorf("got %d tokens", m.Tokens())
	}
}

func TestNoInputMakesTheMirrorNegative(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := NewMirror(300, 16, plenty, nothing)
		for range rapid.IntRange(1, 5).Draw(t, "requests") {
			p := &Prompt{Bytes: rapid.Int64().Draw(t, "bytes"), Offsets: rapid.SliceOfN(rapid.Uint32(), 1, 5).Draw(t, "offsets")}
			for i := range p.Offsets {
				p.Keys = append(p.Keys, Key(i+1))
			}
			l := m.Start(p, rapid.Float64().Draw(t, "bytes per token"))
			check := func() {
				if m.stored < 0 || m.held < 0 || m.Tokens() < 0 {
					t.Fatalf("%d tokens stored, %d held", m.stored, m.held)
				}
			}
			check()
			l.Prefilled()
			check()
			l.Generated(rapid.Int().Draw(t, "generated"))
			check()
			if rapid.Bool().Draw(t, "ends") {
				l.Finish(rapid.Int().Draw(t, "prompt"), rapid.Int().Draw(t, "output"))
			}
			check()
		}
	})
}

func TestFallingOffsetsTakeNoTokensAway(t *testing.T) {
	m := NewMirror(1000, 1, plenty, nothing)
	l := m.Start(&Prompt{Keys: []Key{1, 2}, Offsets: []uint32{400, 40}, Bytes: 40}, 4)
	l.Prefilled()
	if m.Tokens() != 100 {
		t.Errorf("got %d tokens, want those up to the farthest offset, 100", m.Tokens())
	}
}

// drawPrompt draws a conversation whose turns are few kinds, so that many share a start and some a whole; a turn of 0
// bytes makes two keys at one offset.
func drawPrompt(t *rapid.T) *Prompt {
	p := turns(rapid.SliceOfN(rapid.SampledFrom([]int{0, 40, 80, 203}), 0, 5).Draw(t, "turns")...)
	p.Bytes += int64(rapid.SampledFrom([]int{0, 0, 30}).Draw(t, "behind the last key"))
	return p
}

func TestMirrorAgreesWithPlainMirror(t *testing.T) {
	t.Run("one scheme", func(t *testing.T) { testMirrorAgreesWithPlainMirror(t, func(p *Prompt) *Prompt { return p }) })
	t.Run("two", func(t *testing.T) { testMirrorAgreesWithPlainMirror(t, inBoth) })
}

// inBoth is a prompt with the keys of another scheme too.
func inBoth(p *Prompt) *Prompt {
	p.Next = inNext(p)
	return p
}

// inNext is a prompt as the other scheme keys it.
func inNext(p *Prompt) *Prompt {
	next := p.Clone()
	for i := range next.Keys {
		next.Keys[i] = ^next.Keys[i]
	}
	return next
}

func testMirrorAgreesWithPlainMirror(t *testing.T, keyed func(*Prompt) *Prompt) {
	t.Helper()
	schemes := len(keyed(&Prompt{}).Forms())
	rapid.Check(t, func(t *rapid.T) {
		block := rapid.SampledFrom([]int{1, 16}).Draw(t, "block")
		resident := map[Key]bool{}
		m := NewMirror(300, block, plenty, func(k Key, on bool) {
			if resident[k] == on {
				t.Fatalf("key %x told twice", k)
			}
			resident[k] = on
		})
		twin := &plainMirror{capacity: 300, block: int64(block)}
		var leases []*Lease
		// with makes an action of f on one of the last leases, when there is any.
		with := func(f func(t *rapid.T, l *Lease, twinned *plainLease)) func(*rapid.T) {
			return func(t *rapid.T) {
				if n := len(leases); n > 0 {
					i := rapid.IntRange(max(0, n-6), n-1).Draw(t, "lease")
					f(t, leases[i], twin.leases[i])
				}
			}
		}
		actions := map[string]func(*rapid.T){
			"start": func(t *rapid.T) {
				p := keyed(drawPrompt(t))
				leases = append(leases, m.Start(p, 4))
				twin.start(p)
			},
			"prefilled": with(func(_ *rapid.T, l *Lease, twinned *plainLease) {
				l.Prefilled()
				twin.prefill(twinned)
			}),
			"generated": with(func(t *rapid.T, l *Lease, twinned *plainLease) {
				n := rapid.IntRange(0, 50).Draw(t, "tokens")
				if twinned.prefilled && !twinned.closed {
					l.Generated(n)
					twin.generated(twinned, int64(n))
				}
			}),
			"finish": with(func(t *rapid.T, l *Lease, twinned *plainLease) {
				n := rapid.IntRange(0, 50).Draw(t, "output")
				l.Finish(0, n)
				twin.finish(twinned, int64(n))
			}),
			"abandon": with(func(_ *rapid.T, l *Lease, twinned *plainLease) {
				l.Abandon()
				twin.abandon(twinned)
			}),
			"capacity": func(t *rapid.T) {
				twin.capacity = rapid.Int64Range(100, 400).Draw(t, "capacity")
				m.SetCapacity(twin.capacity)
				twin.evict()
			},
			"": func(t *rapid.T) { compareMirrors(t, m, twin.residentIn(schemes), twin, resident) },
		}
		for range 5 {
			t.Repeat(actions)
		}
	})
}

func compareMirrors(t *rapid.T, m *Mirror, want []Key, twin *plainMirror, resident map[Key]bool) {
	keys := slices.Sorted(maps.Keys(m.keys))
	if diff := cmp.Diff(want, keys, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("resident keys (-want +got):\n%s", diff)
	}
	told := 0
	for k, on := range resident {
		if on {
			told++
		}
		if on != (m.keys[k] != nil) {
			t.Fatalf("key %x: told %v", k, on)
		}
	}
	twins := 0
	for k, e := range m.keys {
		if e.twin == k {
			twins++
		}
	}
	if m.Tokens() != twin.total() || len(m.keys) != told || m.twins != twins {
		t.Fatalf("got %d tokens, %d keys, want %d, %d", m.Tokens(), len(m.keys), twin.total(), told)
	}
	last := uint64(0)
	for e := m.releases.root.next; e != &m.releases.root; e = e.next {
		if e.pins != 0 || e.stamp <= last {
			t.Fatalf("list of releases: pins %d, stamp %d after %d", e.pins, e.stamp, last)
		}
		last = e.stamp
	}
	p := drawPrompt(t)
	if n := m.Overlap(p.Keys); slices.ContainsFunc(p.Keys[n:], func(k Key) bool { return m.keys[k] != nil }) {
		t.Fatalf("a key is resident after one that is not")
	}
}

// Through a window of two schemes what is held is found by the new one as far as requests came in both, nothing counts twice,
// and keys of the old one go with the requests that come in the new one alone.
func TestMirrorChangesItsScheme(t *testing.T) {
	m := NewMirror(1000, 1, plenty, nothing)
	old := func(sizes ...int) *Prompt { return turns(sizes...) }
	both := func(sizes ...int) *Prompt { return inBoth(turns(sizes...)) }
	next := func(sizes ...int) *Prompt { return inNext(turns(sizes...)) }
	for _, step := range []struct {
		name              string
		serve             *Prompt
		overlaps          [2]int // of the conversation in the old scheme and in the next
		keys, turnsInPool int
	}{
		{"before", old(400, 400), [2]int{3, 0}, 3, 2},
		{"in the window", both(400, 400), [2]int{3, 3}, 6, 2},
		{"another in the window", both(404, 400), [2]int{3, 3}, 10, 4},
		{"by an ingress that has not heard of it", old(400, 400), [2]int{3, 0}, 7, 4},
		{"again in the window", both(400, 400), [2]int{3, 3}, 10, 4},
		{"after it", next(400, 400), [2]int{0, 3}, 7, 4},
		{"by an ingress that is late", both(400, 400), [2]int{3, 3}, 10, 4},
		{"after it again", next(400, 400), [2]int{0, 3}, 7, 4},
	} {
		serve(m, step.serve, 0)
		got := [2]int{m.Overlap(old(400, 400).Keys), m.Overlap(next(400, 400).Keys)}
		if got != step.overlaps || len(m.keys) != step.keys || m.Tokens() > int64(step.turnsInPool)*101 {
			t.Errorf("%s: overlaps %v, %d keys, %d tokens", step.name, got, len(m.keys), m.Tokens())
		}
	}
	if m.SetCapacity(0); len(m.keys) != 1 { // that of the root
		t.Errorf("%d keys without room", len(m.keys))
	}
}

// Within a window a digest may hold half as many keys more: a digest fuller than that counts as unknown.
func TestTwinsAreBounded(t *testing.T) {
	m := NewMirror(1<<30, 1, 100, nothing)
	for i := range 90 {
		serve(m, inBoth(turns(400+i)), 0)
	}
	if len(m.keys) < 149 || len(m.keys) > 150 || m.Overlap(turns(489).Keys) != 2 {
		t.Errorf("%d keys with a bound of 100", len(m.keys))
	}
	for i := range 90 {
		serve(m, inNext(turns(400+i)), 0)
	}
	if len(m.keys) > 100 || m.twins != 0 {
		t.Errorf("%d keys and %d twins after the window, with a bound of 100", len(m.keys), m.twins)
	}
}

// Two schemes may not have their boundaries at the same places. No key stands for more than its prefix then.
func TestTwinsStandForNoMoreThanTheirPrefix(t *testing.T) {
	p := &Prompt{Keys: []Key{1, 2, 3, 4}, Offsets: []uint32{0, 512, 1000, 1500}}
	p.Next = &Prompt{Keys: []Key{11, 12, 13, 14, 15}, Offsets: []uint32{0, 700, 800, 1500, 1600}}
	if got, want := p.twins(), []Key{11, 0, 12, 13}; !slices.Equal(got, want) {
		t.Errorf("twins %v, want %v", got, want)
	}
}

func TestMirrorFeedsADigest(t *testing.T) {
	d := NewDigest("a/e", TierGPU, 1, DefaultGeometry())
	m := NewMirror(150, 1, plenty, func(k Key, resident bool) {
		if resident {
			d.Add(k)
		} else {
			d.Remove(k)
		}
	})
	serve(m, turns(400), 0)
	serve(m, turns(404), 0)
	if d.keys != len(m.keys) || d.filter.leading(d.geometry, turns(404).Keys) != 2 ||
		d.filter.leading(d.geometry, turns(400).Keys) != 1 {
		t.Errorf("the digest has %d keys, the mirror %d", d.keys, len(m.keys))
	}
	m.SetCapacity(0)
	if d.keys != len(m.keys) {
		t.Errorf("without room: the digest has %d keys, the mirror %d", d.keys, len(m.keys))
	}
}

// BenchmarkMirror serves prompts of 250 keys whose first half is shared, at an engine of 2 million tokens.
func BenchmarkMirror(b *testing.B) {
	m := NewMirror(2_000_000, 16, plenty, nothing)
	prompts := make([]*Prompt, 64)
	for i := range prompts {
		prompts[i] = &Prompt{Keys: slices.Concat(randomKeys(1, 125), randomKeys(uint64(i+2), 125)), Bytes: 400_000}
		for j := range 250 {
			prompts[i].Offsets = append(prompts[i].Offsets, uint32(j*1600))
		}
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		serve(m, prompts[i%64], 500)
	}
}
