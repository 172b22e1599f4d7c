package mesh

import (
	"io"
	"testing"
	"time"
)

// flood opens n streams to b whose echo nobody reads, and writes to each until nothing more is taken.
func flood(t *testing.T, a *agent, n int) {
	for range n {
		s, err := a.Open(t.Context(), "b", KindRequest)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Cancel(16) })
		go func() { s.Write(make([]byte, 8*maxStreamWindow)) }()
	}
	time.Sleep(5 * time.Second)
}

func TestStreamsThatNobodyReadsHoldUpNoOther(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, _, _ := w.three()
		flood(t, a, 200)
		s, err := a.Open(t.Context(), "b", KindRequest)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		s.SetDeadline(time.Now().Add(time.Second))
		if _, err := s.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(s, make([]byte, 5)); err != nil {
			t.Errorf("the echo did not come: %v", err)
		}
	})
}

// Packets are 1 to 2 ms under way: half a second is some 35 MB/s in each direction.
func TestLongBodyPassesQuickly(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, _, _ := w.three()
		s, err := a.Open(t.Context(), "b", KindRequest)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		const size = 16 << 20
		start := time.Now()
		go func() {
			s.Write(make([]byte, size))
			s.CloseWrite()
		}()
		n, err := io.Copy(io.Discard, s)
		if took := time.Since(start); err != nil || n != size || took > 500*time.Millisecond {
			t.Errorf("%d bytes came back in %v, %v", n, took, err)
		}
	})
}
