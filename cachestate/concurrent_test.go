package cachestate

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// sparse is a geometry in which the few keys of these tests have no false hit.
var sparse = Geometry{Bits: 1 << 14, Hashes: 5}

// untilStopped runs readers of their own goroutines until stop is called, which waits for them.
func untilStopped(readers int, read func()) (stop func()) {
	var stopped atomic.Bool
	var group sync.WaitGroup
	for range readers {
		group.Go(func() {
			for !stopped.Load() {
				read()
			}
		})
	}
	return func() {
		stopped.Store(true)
		group.Wait()
	}
}

// The index grows from one word a row to 32, and at every moment a reader finds all engines that were there before.
func TestIndexGrowsUnderReaders(t *testing.T) {
	x, keys := NewIndex(sparse, TierGPU), randomKeys(1, 40)
	depth := func(i int) int { return i % (len(keys) + 1) }
	var there atomic.Int64
	stop := untilStopped(2, func() {
		n := int(there.Load())
		for i, got := range x.Overlap(keys, nil, nil)[:n] {
			if int(got) != depth(i) {
				t.Errorf("with %d engines: engine %d has overlap %d, want %d", n, i, got, depth(i))
				return
			}
		}
	})
	defer stop()
	for _, engines := range []int{64, 256, 1024, 2048} {
		for i := int(there.Load()); i < engines; i++ {
			_, delta := published(engineName(i), 1, sparse, keys[:depth(i)]...)
			x.Apply(&delta)
			if n, ok := x.Slot(engineName(i)); !ok || n != i {
				t.Fatalf("engine %d: got slot %d, %v", i, n, ok)
			}
			there.Add(1)
		}
		if got := len(x.Overlap(keys, nil, nil)); got != engines {
			t.Errorf("%d engines: got room for %d", engines, got)
		}
	}
}

// Two engines have one slot in turns, and nobody finds in it what the other one held.
func TestSlotIsClearedBeforeItIsUsedAgainUnderReaders(t *testing.T) {
	const turns = 400
	x, prompts := NewIndex(sparse, TierGPU), [2][]Key{randomKeys(1, 40), randomKeys(2, 40)}
	ids := [2]engine.ID{"even/e", "odd/e"}
	var seen [2]atomic.Int64
	stop := untilStopped(2, func() {
		for mine := range prompts {
			before := x.Roster()
			out := x.Overlap(prompts[1-mine], nil, nil)
			if n, ok := before.Slot(ids[mine]); !ok || before != x.Roster() {
				continue
			} else if out[n] != 0 {
				t.Errorf("%s has an overlap of %d with what only the other engine held", ids[mine], out[n])
			}
			seen[mine].Add(1)
		}
	})
	for i := 0; i < turns || seen[0].Load() == 0 || seen[1].Load() == 0; i++ {
		id := ids[i%2]
		_, delta := published(id, 1, sparse, prompts[i%2]...)
		if got := x.Apply(&delta); got != Applied {
			t.Fatal(got)
		}
		if n, _ := x.Slot(id); n != 0 {
			t.Fatalf("%s: got slot %d, want the one slot", id, n)
		}
		x.Remove(id)
	}
	stop()
}

func TestReadersDoNotWaitForWriters(t *testing.T) {
	x, keys := NewIndex(sparse, TierGPU), randomKeys(1, 40)
	_, delta := published("a/e", 1, sparse, keys...)
	x.Apply(&delta)
	x.mu.Lock()
	defer x.mu.Unlock()
	if n, ok := x.Slot("a/e"); !ok || x.Overlap(keys, nil, nil)[n] != 40 || x.Roster().Len() != 1 {
		t.Errorf("got slot %d, %v, overlaps %v", n, ok, x.Overlap(keys, nil, nil))
	}
}

// DESIGN.md claims this size: a bit an engine and row, beside names and versions.
func TestIndexOf1024EnginesTakes16MiB(t *testing.T) {
	const rows, beside = 16 << 20, 1 << 20
	before := heap()
	x := NewIndex(DefaultGeometry(), TierGPU)
	for i := range 1024 {
		x.Apply(&Delta{Engine: engineName(i), Geometry: DefaultGeometry()})
	}
	if got := heap() - before; got < rows || got > rows+beside {
		t.Errorf("got %d bytes, want %d and at most %d beside", got, rows, beside)
	}
	runtime.KeepAlive(x)
}

// heap returns the bytes that are reachable.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what finalizers of the first one held
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
