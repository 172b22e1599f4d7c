package forward

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestWaitRoomIsFirstInFirstOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newWaitRoom(10, time.Minute)
		free := make(chan struct{})
		var order []int
		for i := range 5 {
			p, err := r.enter("m")
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				if err := p.await(t.Context(), free); err != nil {
					t.Error(err)
				}
				order = append(order, i) // only the first in line runs
				p.leave()
			}()
		}
		synctest.Wait()
		close(free)
		synctest.Wait()
		for i, got := range order {
			if got != i {
				t.Fatalf("got order %v", order)
			}
		}
		if len(order) != 5 || r.busy("m") || r.len() != 0 {
			t.Errorf("%d served, %d still wait", len(order), r.len())
		}
	})
}

func TestWaitRoomBoundsNumberAndTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newWaitRoom(1, 10*time.Second)
		p, err := r.enter("m")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.enter("other"); !errors.Is(err, errQueueFull) {
			t.Errorf("second in a room for one: %v", err)
		}
		start := time.Now()
		for err == nil {
			err = p.await(t.Context(), nil)
		}
		if !errors.Is(err, errQueueTime) || time.Since(start) != 10*time.Second {
			t.Errorf("got %v after %v, want errQueueTime after 10s", err, time.Since(start))
		}
		p.leave()
		p.leave()
		if _, err := r.enter("other"); err != nil {
			t.Errorf("after leaving: %v", err)
		}
	})
}

func TestWaiterThatGoesAwayLetsTheNextIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newWaitRoom(10, time.Minute)
		first, _ := r.enter("m")
		second, _ := r.enter("m")
		gone, cancel := context.WithCancelCause(t.Context())
		cancel(errClient)
		if err := first.await(gone, nil); !errors.Is(err, errClient) {
			t.Errorf("got %v, want the cause", err)
		}
		first.leave()
		if err := second.await(t.Context(), closedChan); err != nil {
			t.Error(err)
		}
	})
}
