package kvevents

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// faults are what may happen to a stream, in commands of the scripts. They leave a replay that has everything.
var faults = []string{
	"send %d", "send %d", "send %d", "lose %d", "delay %d", "flush", "repeat", "clear", "restart",
	"cut %ds", "stall\nwait %ds\nunstall", "break-replay %d", "drop-replay %d", "wait %ds", "wait %d00ms", "wait %d0ms",
}

// lasting are faults after which something is lost for good.
var lasting = []string{"vanish %d", "overrun 0", "garbage", "no-batch", "mute", "unmute", "clear-idle"}

func randomScript(rng *rand.Rand, faults []string) []string {
	var script []string
	for range 5 + rng.IntN(30) {
		f := faults[rng.IntN(len(faults))]
		if strings.Contains(f, "%") {
			f = fmt.Sprintf(f, 1+rng.IntN(6))
		}
		script = append(script, strings.Split(f, "\n")...)
	}
	return script
}

// TestRandomFaultsLeaveNothingWrong plays random scripts: within 2 s of the first batch after the last fault nothing that
// is believed is wrong, and where replay has everything, everything is believed.
func TestRandomFaultsLeaveNothingWrong(t *testing.T) {
	seeds := 60
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		for mode, allowed := range map[string][]string{
			"replay": faults, "poor replay": append(lasting, faults...), "no replay": append(lasting, faults...),
		} {
			script := randomScript(rand.New(rand.NewPCG(uint64(seed), 1)), allowed)
			synctest.Test(t, func(t *testing.T) {
				p := newPublisher(t)
				p.topic = seed%2 == 0
				s := newStream(t, p, mode != "no replay")
				end := s.begin()
				defer end()
				for _, line := range append(script, "wait 8s", "flush", "send 1", "wait 2s") {
					s.run(line)
				}
				missing := len(s.holds) - s.right()
				if out := s.show(false); t.Failed() || mode == "replay" && missing > 0 {
					t.Fatalf("%s, seed %d: %s after\n%s", mode, seed, out, strings.Join(script, "\n"))
				}
			})
		}
	}
}

// right counts the blocks that are rightly believed, once all that has come is applied.
func (s *stream) right() int {
	synctest.Wait()
	n := 0
	for _, blocks := range s.held {
		for b := range blocks {
			if s.holds[b] {
				n++
			}
		}
	}
	return n
}

func TestNothingIsWrongWhileBusyThroughACut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPublisher(t)
		s := newStream(t, p, true)
		defer s.begin()()
		for i := range 6000 { // a minute of 100 steps a second
			switch i {
			case 1000:
				s.cut(10 * time.Second)
			case 4000:
				s.publisher.restart()
			}
			s.store(delivered)
			time.Sleep(10 * time.Millisecond)
		}
		if got, want := s.right(), len(p.holds); got != want {
			t.Errorf("%d of %d blocks are believed", got, want)
		}
		s.show(false)
	})
}
