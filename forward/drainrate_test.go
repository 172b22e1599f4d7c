package forward

import (
	"math"
	"testing"
	"time"
)

// drained lets d see a request leave every gap for a time in which some wait.
func drained(d *drainRate, gap, during time.Duration) {
	end := d.at.Add(during)
	for at := d.at.Add(gap); !at.After(end); at = at.Add(gap) {
		d.advance(at, true)
		d.note()
	}
	d.advance(end, true)
}

func TestDrainRateIsThatOfTheLastSeconds(t *testing.T) {
	d := drainRate{at: time.Unix(0, 0)}
	if _, known := d.perSecond(); known {
		t.Error("known before anybody waited")
	}
	near := func(want float64) {
		t.Helper()
		if got, known := d.perSecond(); !known || math.Abs(got/want-1) > 0.2 {
			t.Errorf("got %v, %v, want about %v", got, known, want)
		}
	}
	drained(&d, 10*time.Millisecond, 20*time.Second)
	near(100)
	drained(&d, 100*time.Millisecond, 20*time.Second)
	near(10)
	drained(&d, 4*time.Second, 5*time.Minute) // a slow one is known too, by the last requests
	near(0.25)
}

func TestDrainRateCountsOnlyTimeInWhichSomeWait(t *testing.T) {
	d := drainRate{at: time.Unix(0, 0)}
	for range 20 {
		drained(&d, 20*time.Millisecond, 2*time.Second)
		d.advance(d.at.Add(5*time.Second), false)
	}
	if got, _ := d.perSecond(); math.Abs(got-50) > 5 {
		t.Errorf("got %v, want about 50", got)
	}
	d.advance(d.at.Add(2*drainForgets), false)
	if got, known := d.perSecond(); known {
		t.Errorf("%v is known of long ago", got)
	}
}

func TestQueueThatStandsHasALowRate(t *testing.T) {
	d := drainRate{at: time.Unix(0, 0)}
	drained(&d, 10*time.Millisecond, 10*time.Second)
	for range 60 {
		d.advance(d.at.Add(time.Second), true)
	}
	if got, known := d.perSecond(); !known || got > 1 {
		t.Errorf("got %v, %v after a minute without any", got, known)
	}
}
