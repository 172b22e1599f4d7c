package simscale

import (
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestQuantilesAreThoseOfTheSortedAges(t *testing.T) {
	r, all, a := rand.New(rand.NewPCG(1, 2)), []time.Duration(nil), &ages{}
	for range 5000 {
		age := time.Duration(r.ExpFloat64() * float64(time.Second))
		all = append(all, age)
		a.add(age)
	}
	slices.Sort(all)
	for _, q := range []float64{0, 0.5, 0.99, 1} {
		want := all[min(int(q*5000), 4999)]
		if got := a.quantile(q); got < want || got > want+ageStep {
			t.Errorf("%v: got %v, want %v", q, got, want)
		}
	}
	if s := a.spread(); s.Max != all[4999].Seconds() {
		t.Errorf("got at most %v, want %v", s.Max, all[4999].Seconds())
	}
}

func TestStalenessIsTheAgeOfTheFirstChangeThatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := few()
		c.Changes = 10
		x := newChurn(&c, 1, 0)
		x.begin = time.Now()
		x.publish()
		time.Sleep(990 * time.Millisecond)
		if got := x.staleness(1, time.Now()); got.Round(time.Millisecond) != 890*time.Millisecond { // the first comes after 100 ms
			t.Errorf("version 1 after 990 ms: got %v", got)
		}
		x.publish()
		if got := x.staleness(2, time.Now()); got != 0 { // the tenth comes after 1 s
			t.Errorf("version 2 at once: got %v", got)
		}
		time.Sleep(110 * time.Millisecond)
		if got := x.staleness(2, time.Now()); got.Round(time.Millisecond) != 100*time.Millisecond {
			t.Errorf("version 2 after 110 ms: got %v", got)
		}
	})
}

func TestPiecesComeInOrderAndNotBeforeTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := few()
		c.Loss, c.Delay = 0.3, 10*time.Millisecond
		m := &model{Config: c, traffic: newTraffic()}
		near, far := m.newStreams(kindFeed)
		began := time.Now()
		go func() {
			for i := range 100 {
				_, _ = near.Write([]byte{byte(i)})
			}
			_ = near.CloseWrite()
		}()
		got, err := io.ReadAll(far)
		if err != nil || len(got) != 100 || !slices.IsSorted(got) {
			t.Errorf("got %v, %v", got, err)
		}
		if took := time.Since(began); took < c.Delay+resend {
			t.Errorf("100 pieces of which 30 are lost took %v", took)
		}
		near.Cancel(0)
		if _, err := far.Write([]byte{1}); err == nil {
			t.Error("a canceled stream takes more")
		}
	})
}
