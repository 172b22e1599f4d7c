package forward

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// memSupply is engines with slots, that all answer to one model.
type memSupply struct {
	ask time.Duration // that it takes to find out whether an engine accepts

	mu    sync.Mutex
	slots []int // free ones, by engine
	lack  lack  // what there is when none is free
	heard chan struct{}
	asked int
}

func newMemSupply(slots ...int) *memSupply {
	return &memSupply{ask: time.Millisecond, slots: slots, lack: full, heard: make(chan struct{})}
}

func (s *memSupply) free(string) (engines int, why lack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.slots {
		if n > 0 {
			engines++
		}
	}
	return engines, s.lack
}

func (s *memSupply) news() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heard
}

// change makes a change that everybody hears of.
func (s *memSupply) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.heard)
	s.heard = make(chan struct{})
}

// take takes a slot of the first engine that has one. It reports which, and whether that one has more.
func (s *memSupply) take() (engine int, more, ok bool) {
	time.Sleep(s.ask)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	i := slices.IndexFunc(s.slots, func(n int) bool { return n > 0 })
	if i < 0 {
		return 0, false, false
	}
	s.slots[i]--
	return i, s.slots[i] > 0, true
}

// use waits in the room until it has a slot.
func (s *memSupply) use(ctx context.Context, r *waitRoom, p *place) (engine int, err error) {
	if err := r.enter(p, time.Now()); err != nil {
		return 0, err
	}
	defer p.leave(false, false)
	for {
		if err := p.await(ctx); err != nil {
			return 0, err
		}
		if i, more, ok := s.take(); ok {
			p.leave(true, more)
			return i, nil
		}
		p.comeBack(time.Now())
	}
}

// wants is a place for a request of a key.
func wants(key string) *place {
	return &place{
		tenant: tenant{key: key}, model: "m", class: DefaultClass, limit: bounds{math.MaxInt, math.MaxInt64},
		timeout: 10 * time.Second, cost: 100, bytes: 400,
	}
}

var roomy = bounds{1000, 1 << 30}

// isEmpty fails the test unless nothing is left in the room.
func (r *waitRoom) isEmpty(t *testing.T) {
	t.Helper()
	r.keepers.Wait()
	status := r.status(time.Now())
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all.requests != 0 || r.all.bytes != 0 || len(r.all.shares) != 0 || len(r.classes) != 0 || len(status) != 0 {
		t.Errorf("%d requests, %d bytes, %d tenants, %d classes are left", r.all.requests, r.all.bytes, len(r.all.shares), len(r.classes))
	}
	for name, q := range r.models {
		if q.present() != 0 || len(q.bands) != 0 || q.kept {
			t.Errorf("model %s: %d wait, %d have a turn, in %d bands", name, q.n, q.out, len(q.bands))
		}
	}
}

func reasonOf(err error) string {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r.reason
	}
	return fmt.Sprint(err)
}

func TestWaitRoomServesOneKeyInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newMemSupply(0)
		r := newWaitRoom(roomy, s)
		var mu sync.Mutex
		var order []int
		for i := range 5 {
			go func() {
				if _, err := s.use(t.Context(), r, wants("k")); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
			}()
			synctest.Wait()
		}
		for range 5 {
			s.change(func() { s.slots[0] = 1 })
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		if !slices.Equal(order, []int{0, 1, 2, 3, 4}) {
			t.Errorf("served in order %v", order)
		}
		r.isEmpty(t)
	})
}

// TestSlotsThatBecomeFreeAtOnceAreUsedAtOnce has an owner take 1 ms to accept.
func TestSlotsThatBecomeFreeAtOnceAreUsedAtOnce(t *testing.T) {
	for _, test := range []struct {
		name           string
		engines, slots int
		within         time.Duration
	}{
		{"of one engine", 1, 1, time.Millisecond},
		{"one of each of 64 engines", 64, 1, time.Millisecond},
		{"64 of one engine", 1, 64, 11 * time.Millisecond}, // a turn that finds room brings one more
		{"4 of each of 64 engines", 64, 4, 4 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newMemSupply(make([]int, test.engines)...)
				r := newWaitRoom(roomy, s)
				var last time.Time
				var mu sync.Mutex
				ctx, cancel := context.WithCancel(t.Context())
				served := 0
				for range 300 {
					go func() {
						if _, err := s.use(ctx, r, wants("k")); err == nil {
							mu.Lock()
							defer mu.Unlock()
							served++
							last = time.Now()
						}
					}()
				}
				time.Sleep(time.Second)
				start := time.Now()
				s.change(func() {
					for i := range s.slots {
						s.slots[i] = test.slots
					}
				})
				time.Sleep(time.Second)
				cancel()
				synctest.Wait()
				if want := test.engines * test.slots; served != want || last.Sub(start) > test.within {
					t.Errorf("%d served after %v, want %d after %v", served, last.Sub(start), want, test.within)
				}
				r.isEmpty(t)
			})
		})
	}
}

// TestIngressesThatWantTheSameSlotDoNotHerd has eight of them hear of each slot at the same time.
func TestIngressesThatWantTheSameSlotDoNotHerd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newMemSupply(0, 0, 0, 0)
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		served := make([]int, 8)
		rooms := make([]*waitRoom, len(served))
		for i := range rooms {
			rooms[i] = newWaitRoom(roomy, s)
			for range 20 {
				go func() {
					for {
						p := wants("k")
						p.timeout = time.Hour
						if _, err := s.use(ctx, rooms[i], p); err != nil {
							return
						}
						mu.Lock()
						served[i]++ // the slots are not given back here, so that all hear of them at once
						mu.Unlock()
					}
				}()
			}
		}
		const slots = 4000
		for n := range slots {
			s.change(func() { s.slots[n%len(s.slots)]++ })
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(time.Second)
		cancel()
		synctest.Wait()
		total := 0
		for _, n := range served {
			total += n
		}
		if total != slots || s.asked > 4*slots {
			t.Errorf("%d of %d slots used, asked for %d times", total, slots, s.asked)
		}
		if least := slices.Min(served); least < slots/len(served)*3/4 {
			t.Errorf("the ingresses had %v", served)
		}
		for _, r := range rooms {
			r.isEmpty(t)
		}
	})
}

func TestWaitRoomBoundsNumberAndTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newWaitRoom(bounds{1, 1 << 20}, newMemSupply(0))
		p := wants("k")
		if err := r.enter(p, time.Now()); err != nil {
			t.Fatal(err)
		}
		if err := r.enter(wants("k"), time.Now()); reasonOf(err) != refusedRequests {
			t.Errorf("second in a room for one: %v", reasonOf(err))
		}
		start := time.Now()
		if err := p.await(t.Context()); reasonOf(err) != refusedTimeout || time.Since(start) != 10*time.Second {
			t.Errorf("got %v after %v", reasonOf(err), time.Since(start))
		}
		p.leave(false, false)
		p.leave(false, false)
		large := wants("k")
		large.bytes = 2 << 20
		if err := r.enter(large, time.Now()); reasonOf(err) != refusedBytes {
			t.Errorf("too many bytes: %v", reasonOf(err))
		}
		small := wants("k")
		small.limit.bytes = 399
		if err := r.enter(small, time.Now()); reasonOf(err) != refusedBytes {
			t.Errorf("too many bytes for its class: %v", reasonOf(err))
		}
		r.isEmpty(t)
	})
}

func TestKeyThatHoldsTheMostMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newWaitRoom(bounds{10, 1 << 20}, newMemSupply(0))
		var places []*place
		for range 10 {
			p := wants("heavy")
			if err := r.enter(p, time.Now()); err != nil {
				t.Fatal(err)
			}
			places = append(places, p)
		}
		time.Sleep(time.Millisecond)
		light := wants("light")
		if err := r.enter(light, time.Now()); err != nil {
			t.Fatalf("a key that has nothing was refused: %v", err)
		}
		if err := places[9].await(t.Context()); reasonOf(err) != refusedDisplaced {
			t.Errorf("the newest of the heaviest key: %v", err)
		}
		if waited, was := places[9].leave(false, false); waited != time.Millisecond || was {
			t.Errorf("it had waited %v, and was there: %t", waited, was)
		}
		if err := r.enter(wants("heavy"), time.Now()); reasonOf(err) != refusedRequests {
			t.Errorf("one more of the heaviest: %v", err)
		}
		for _, p := range append(places, light) {
			p.leave(false, false)
		}
		r.isEmpty(t)
	})
}

// TestBoundsOfClassAndAgentTakeEachPlaceOnce: a newcomer meets the bound of its class in requests and that of all in bytes.
func TestBoundsOfClassAndAgentTakeEachPlaceOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newWaitRoom(bounds{10, 150}, newMemSupply(0))
		enter := func(key string, bytes int64) (*place, error) {
			p := wants(key)
			p.bytes, p.limit.requests = bytes, 3
			return p, r.enter(p, time.Now())
		}
		var places []*place
		for _, bytes := range []int64{100, 10, 10} {
			p, err := enter("heavy", bytes)
			if err != nil {
				t.Fatal(err)
			}
			places = append(places, p)
		}
		light, err := enter("light", 45)
		if err != nil || r.len() != 2 {
			t.Errorf("got %v, %d wait; want the two small ones gone", err, r.len())
		}
		for _, p := range places[1:] {
			if err := p.await(t.Context()); reasonOf(err) != refusedDisplaced {
				t.Errorf("one that had to go: %v", err)
			}
		}
		if _, err := enter("third", 60); reasonOf(err) != refusedBytes {
			t.Errorf("one that there is no room for: %v", err)
		}
		places[0].leave(false, false)
		light.leave(false, false)
		r.isEmpty(t)
	})
}

// TestRequestThatWouldWaitTooLongIsRefusedAtOnce fills a queue that is worked off at ten a second.
func TestRequestThatWouldWaitTooLongIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newMemSupply(0)
		r := newWaitRoom(roomy, s)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for ctx.Err() == nil {
				time.Sleep(100 * time.Millisecond)
				s.change(func() { s.slots[0] = 1 })
			}
		}()
		var mu sync.Mutex
		var refused, late, served int
		for range 900 { // thirty a second
			go func() {
				start := time.Now()
				_, err := s.use(ctx, r, wants("k"))
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					served++
				case reasonOf(err) == refusedWait:
					refused++
					r, _ := errors.AsType[*refusal](err)
					if time.Since(start) > 0 || r.after < leastRetry || r.after > mostRetry {
						t.Errorf("refused after %v, to come again after %v", time.Since(start), r.after)
					}
				case reasonOf(err) == refusedTimeout:
					late++
				}
			}()
			time.Sleep(time.Second / 30)
			synctest.Wait()
		}
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if served < 300 || refused < 450 || late > 10 {
			t.Errorf("%d served, %d refused at once, %d too late", served, refused, late)
		}
		other := wants("another key")
		if _, err := s.use(ctx, r, other); err != nil {
			t.Errorf("a key that holds nothing: %v", err)
		}
		cancel()
		time.Sleep(time.Second)
		r.isEmpty(t)
	})
}

func TestRefusalSaysWhenThereIsRoom(t *testing.T) {
	q := &modelQueue{drain: drainRate{left: 99, waited: 10}} // ten a second
	fill(&q.queue, 100, tenant{key: "k"}, 100)
	for _, test := range []struct {
		reason      string
		least       float64
		lower, most time.Duration
	}{
		{refusedRequests, 0, time.Second, 10 * time.Second},
		{refusedWait, 5, 5 * time.Second, 10 * time.Second},
		{refusedWait, 300, mostRetry, mostRetry},
	} {
		for range 100 {
			if r := q.refusal(test.reason, test.least, wants("k")); r.after < test.lower || r.after > test.most {
				t.Errorf("%s: come again after %v, want %v to %v", test.reason, r.after, test.lower, test.most)
			}
		}
	}
	r := newWaitRoom(roomy, newMemSupply(0))
	r.models["m"] = q
	p := wants("k")
	p.queue = q
	if err, _ := errors.AsType[*refusal](r.admitLocked(p, time.Now())); err == nil || err.after < 5*time.Second {
		t.Errorf("a request that would wait for 10 s: %+v", err)
	}
}

func TestMeshThatIsFullIsToldFromOneWithoutEngines(t *testing.T) {
	for _, test := range []struct {
		lack lack
		want time.Duration
	}{{none, 0}, {away, silenceOfDead}} {
		synctest.Test(t, func(t *testing.T) {
			s := newMemSupply(0)
			r := newWaitRoom(roomy, s)
			errs := make(chan error, 20)
			for range 20 {
				go func() {
					_, err := s.use(t.Context(), r, wants("k"))
					errs <- err
				}()
			}
			time.Sleep(time.Second)
			start := time.Now()
			s.change(func() { s.lack = test.lack })
			for range 20 {
				if err := <-errs; !errors.Is(err, errNoEngine) {
					t.Errorf("got %v", err)
				}
			}
			if took := time.Since(start); took < test.want || took > test.want+2*keeperPeriod {
				t.Errorf("told after %v, want %v", took, test.want)
			}
			synctest.Wait()
			r.isEmpty(t)
		})
	}
}

func TestAcceptedRequestComesBackToTheFrontOfAFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newMemSupply(1)
		r := newWaitRoom(bounds{2, 1 << 20}, s)
		first := wants("k")
		if _, err := s.use(t.Context(), r, first); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := r.enter(wants("k"), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		first.comeBack(time.Now()) // its engine failed
		s.change(func() { s.slots[0] = 1 })
		if err := first.await(t.Context()); err != nil {
			t.Errorf("the accepted request: %v", err)
		}
		direct := wants("k") // accepted without having waited, then failed
		direct.accepted = true
		if err := r.enter(direct, time.Now()); err != nil {
			t.Errorf("the accepted request that had not waited: %v", err)
		}
		for _, sh := range r.all.shares {
			for e := sh.places.Front(); e != nil; e = sh.places.Front() {
				e.Value.(*place).leave(false, false)
			}
		}
		r.isEmpty(t)
	})
}

func TestKeyDoesNotPayForATurnThatIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newMemSupply(1)
		r := newWaitRoom(roomy, s)
		var places []*place
		for _, key := range []string{"a", "a", "b"} {
			p := wants(key)
			p.cost = quantum
			if err := r.enter(p, time.Now()); err != nil {
				t.Fatal(err)
			}
			places = append(places, p)
		}
		for _, p := range places {
			if err := p.await(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if waiting := r.models["m"].n; p == places[1] && waiting != 1 {
				t.Errorf("%d wait: b had its turn before the second of a", waiting)
			}
			p.leave(false, false)
		}
		synctest.Wait()
		r.isEmpty(t)
	})
}

// TestTurnInVainLetsTheOthersTry has an engine look free that one of the requests cannot use.
func TestTurnInVainLetsTheOthersTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newMemSupply(1)
		r := newWaitRoom(roomy, s)
		picky, other := wants("k"), wants("k")
		if err := r.enter(picky, time.Now()); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		go func() {
			for picky.await(t.Context()) == nil {
				picky.comeBack(time.Now())
			}
			picky.leave(false, false)
		}()
		if _, err := s.use(t.Context(), r, other); err != nil || time.Since(start) > keeperPeriod {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		r.isEmpty(t)
	})
}

// TestNothingIsLeftOfRequestsThatGoAtAnyMoment cancels many of them, at the very moments when slots become free too.
func TestNothingIsLeftOfRequestsThatGoAtAnyMoment(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			s := newMemSupply(0, 0, 0)
			s.ask = time.Duration(rng.IntN(2)) * time.Millisecond
			r := newWaitRoom(bounds{100, 40_000}, s)
			var used, wasted int
			var mu sync.Mutex
			var wg sync.WaitGroup
			for range 400 {
				p := wants(fmt.Sprint(rng.IntN(5)))
				p.priority, p.cost = rng.IntN(3), 1+rng.Int64N(2000)
				after := time.Duration(rng.IntN(200)) * time.Millisecond
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), after)
					defer cancel()
					if _, err := s.use(ctx, r, p); err == nil {
						mu.Lock()
						used++
						mu.Unlock()
					}
				})
				if rng.IntN(4) == 0 {
					time.Sleep(time.Millisecond)
				}
				if rng.IntN(3) == 0 {
					s.change(func() { s.slots[rng.IntN(3)]++ })
					wasted++
				}
			}
			wg.Wait()
			r.isEmpty(t)
			for _, n := range s.slots {
				wasted -= n
			}
			if used != wasted {
				t.Errorf("seed %d: %d requests used %d slots", seed, used, wasted)
			}
		})
	}
}

func BenchmarkEnterAndLeaveAmong10000(b *testing.B) {
	for _, keys := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("%dkeys", keys), func(b *testing.B) {
			r := newWaitRoom(bounds{1 << 20, 1 << 40}, newMemSupply(0))
			places := make([]*place, 10_000)
			for i := range places {
				places[i] = wants(fmt.Sprint(i % keys))
				if err := r.enter(places[i], time.Now()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				p := places[i%len(places)]
				p.leave(false, false)
				if err := r.enter(p, time.Now()); err != nil && reasonOf(err) != refusedWait {
					b.Fatal(err)
				}
			}
			for _, p := range places {
				p.leave(false, false)
			}
			r.keepers.Wait()
		})
	}
}

func BenchmarkRefuseWhere10000Wait(b *testing.B) {
	for _, keys := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("%dkeys", keys), func(b *testing.B) {
			r := newWaitRoom(bounds{10_000, 1 << 40}, newMemSupply(0))
			places := make([]*place, 10_000)
			for i := range places {
				places[i] = wants(fmt.Sprint(i % keys))
				places[i].accepted = true // so that none is refused
				if err := r.enter(places[i], time.Now()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				if r.enter(wants("0"), time.Now()) == nil {
					b.Fatal("let in")
				}
			}
			for _, p := range places {
				p.leave(false, false)
			}
			r.keepers.Wait()
		})
	}
}
