package simulate

import (
	"slices"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

func TestMeterCountsOnlyItsWindow(t *testing.T) {
	m := meter{from: 10 * time.Second, to: 20 * time.Second}
	m.set(4, 5*time.Second)
	m.set(2, 12*time.Second)
	m.add(-2, 15*time.Second)
	m.set(100, 25*time.Second)
	if got, want := m.mean(), (4*2+2*3)/10.0; got != want {
		t.Errorf("mean %v; want %v", got, want)
	}
}

func TestQuantilesAndSpread(t *testing.T) {
	values := []float64{1, 2, 3, 4}
	for q, want := range map[float64]float64{0: 1, 0.25: 1, 0.5: 2, 0.51: 3, 0.99: 4, 1: 4} {
		if got := quantile(values, q); got != want {
			t.Errorf("quantile %v is %v; want %v", q, got, want)
		}
	}
	if quantile(nil, 0.5) != 0 {
		t.Error("nothing has a median")
	}
	if middle, cov := variation([]float64{1, 3}); middle != 2 || cov != 0.5 {
		t.Errorf("mean %v and variation %v; want 2 and 0.5", middle, cov)
	}
}

func TestReaderGetsTheNewestHeartbeatThatCameThrough(t *testing.T) {
	var b beats
	for i := range 12 {
		b.add(time.Duration(i)*time.Second, engine.Load{Seq: uint64(i + 1)})
	}
	through := func(numbers ...uint64) func(uint64, time.Duration) bool {
		return func(n uint64, _ time.Duration) bool {
			return slices.Contains(numbers, n)
		}
	}
	for _, c := range []struct {
		name  string
		known uint64
		came  []uint64
		want  uint64
	}{
		{"the newest", 0, []uint64{12, 11}, 12},
		{"an older one when that is lost", 0, []uint64{11, 9}, 11},
		{"none that is known already", 11, []uint64{11, 9}, 0},
		{"none that is forgotten", 0, []uint64{4}, 0},
		{"the oldest that is kept", 0, []uint64{5}, 5},
	} {
		got, ok := b.newest(c.known, through(c.came...))
		if got != c.want || ok != (c.want > 0) {
			t.Errorf("%s: number %d; want %d", c.name, got, c.want)
		}
		if ok && b.number(got).load.Seq != got {
			t.Errorf("%s: load %d under number %d", c.name, b.number(got).load.Seq, got)
		}
	}
}

func TestExactIndexKnowsTheDeepestBlock(t *testing.T) {
	h := newHolders(3)
	for _, b := range []block{1, 2, 3} {
		h.add(b, 2)
	}
	h.add(1, 0)
	h.add(1, 0)
	h.add(9, 1)
	if got := h.overlap([]block{1, 2, 3, 4}); got[0] != 1 || got[1] != 0 || got[2] != 3 {
		t.Errorf("overlaps %v; want [1 0 3]", got)
	}
	h.remove(3, 2)
	h.remove(1, 0)
	if got := h.overlap([]block{1, 2, 3, 4}); got[0] != 0 || got[2] != 2 {
		t.Errorf("overlaps %v; want [0 0 2]", got)
	}
}
