package mesh

import (
	"context"
	"io"
	"slices"
	"sync"
	"testing"
	"time"
)

// roundTrips returns how long 50 streams of a kind took to bring a byte back, in order.
func roundTrips(t *testing.T, a *agent, kind Kind) []time.Duration {
	t.Helper()
	var all []time.Duration
	for range 50 {
		start := time.Now()
		s, err := a.Open(t.Context(), "b", kind)
		if err != nil {
			t.Fatal(err)
		}
		s.Write([]byte{1})
		if _, err := io.ReadFull(s, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		all = append(all, time.Since(start))
		s.Close()
		time.Sleep(10 * time.Millisecond)
	}
	slices.Sort(all)
	return all
}

// bulk keeps as many streams of a kind busy with digests that are sent and come back, until ctx ends.
func bulk(ctx context.Context, wg *sync.WaitGroup, a *agent, kind Kind, streams int) {
	digests := make([]byte, 64<<10)
	for range streams {
		wg.Go(func() {
			s, err := a.Open(ctx, "b", kind)
			if err != nil {
				return
			}
			defer context.AfterFunc(ctx, func() { s.Cancel(16) })()
			wg.Go(func() { io.Copy(io.Discard, s) })
			for err == nil {
				_, err = s.Write(digests)
			}
		})
	}
}

// On a link that bulk fills, probes and requests wait for the packets that are on the wire already and for no others: not for
// the hundreds of streams whose turn it would be.
func TestBulkDelaysNeitherProbesNorRequests(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, _, _ := w.three()
		w.net.SetRate(2 << 20)
		rest := roundTrips(t, a, KindProbe)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		bulk(ctx, &wg, a, KindDigestPull, 100)
		bulk(ctx, &wg, a, KindFeed, 100)
		time.Sleep(2 * time.Second)
		onTheWire := 2 * linkQueue // there and back
		for _, kind := range []Kind{KindProbe, KindRequest, KindControl} {
			busy := roundTrips(t, a, kind)
			t.Logf("%v: half of the round trips %v, nine in ten %v; at rest %v and %v", kind, busy[25], busy[45], rest[25], rest[45])
			// A lost packet's repetition waits behind whatever is on the wire by then.
			if slow := busy[45] - rest[45]; slow > onTheWire+20*time.Millisecond {
				t.Errorf("%v: one in ten took %v longer than at rest, with %v on the wire", kind, slow, onTheWire)
			}
		}
		cancel()
		wg.Wait()
	})
}
