package mesh

import (
	"bytes"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// pieces cuts b as events come: most are small, and some follow each other at once.
func pieces(rng *rand.Rand, b []byte) [][]byte {
	var all [][]byte
	for len(b) > 0 {
		n := 1 + rng.IntN(300)
		if rng.IntN(20) == 0 {
			n = 1 + rng.IntN(4*gatherBelow)
		}
		n = min(n, len(b))
		all, b = append(all, b[:n]), b[n:]
	}
	return all
}

func TestPiecesOfManyStreamsArriveWholeAndInOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, _, _ := w.three()
		rng := rand.New(rand.NewPCG(1, 1))
		var wg sync.WaitGroup
		for i := range 16 {
			want := make([]byte, 10*streamWindow)
			for at := range want {
				want[at] = byte(rng.Uint32())
			}
			parts, slow := pieces(rng, want), i%2 == 0
			s, err := a.Open(t.Context(), "b", KindRequest)
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				for j, p := range parts {
					if n, err := s.Write(p); n != len(p) || err != nil {
						t.Errorf("stream %d: write %d of %d bytes: %d, %v", i, j, len(p), n, err)
						return
					}
					if j%10 == 0 {
						time.Sleep(time.Millisecond)
					}
				}
				if err := s.CloseWrite(); err != nil {
					t.Errorf("stream %d: %v", i, err)
				}
			})
			wg.Go(func() {
				defer s.Close()
				if slow { // its windows fill
					time.Sleep(5 * time.Second)
				}
				if got, err := io.ReadAll(s); err != nil || !bytes.Equal(got, want) {
					t.Errorf("stream %d: %d of %d bytes, equal %v, %v", i, len(got), len(want), bytes.Equal(got, want), err)
				}
			})
		}
		wg.Wait()
	})
}

func TestAStreamWhoseWindowIsFullHoldsUpNoPieces(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, _, _ := w.three()
		full, err := a.Open(t.Context(), "b", KindRequest)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			for {
				if _, err := full.Write(make([]byte, 200)); err != nil {
					ended <- err
					return
				}
			}
		}()
		time.Sleep(5 * time.Second)
		s, err := a.Open(t.Context(), "b", KindRequest)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		s.SetDeadline(time.Now().Add(time.Second))
		for range 3 {
			if _, err := s.Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(s, make([]byte, 5)); err != nil {
				t.Errorf("the echo did not come: %v", err)
			}
		}
		select {
		case err := <-ended:
			t.Errorf("a write to a full window did not wait: %v", err)
		default:
		}
		full.Cancel(16)
		if err := <-ended; err == nil {
			t.Error("a cancelled stream takes bytes")
		}
	})
}
