package forward

import (
	"container/list"
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// waitRoom holds the requests of models whose engines are all full: a queue for each model, under common bounds. For each
// queue in which somebody waits it looks for engines that have become free, and gives that many of those that wait a turn:
// they decide anew, and leave when an owner has accepted them, or come back to where they were. It is safe for concurrent use.
type waitRoom struct {
	limit   bounds
	supply  supply
	keepers sync.WaitGroup

	mu      sync.Mutex
	models  map[string]*modelQueue
	all     *tally
	classes map[string]*tally // of those that wait
	number  uint64            // of the last place
}

// supply is what a waitRoom knows of the engines.
type supply interface {
	// free returns how many engines can take a request for a model, and for none why that is.
	free(model string) (engines int, why lack)
	// news returns a channel that is closed when an engine may have become free.
	news() <-chan struct{}
}

// modelQueue holds what waits for one model. It is guarded by the room's lock.
type modelQueue struct {
	queue
	drain   drainRate
	out     int // places that have a turn
	kept    bool
	wake    chan struct{} // tells the keeper that something changed here; has room for one
	wave    uint64        // number of the last news of engines
	lost    int           // turns in this wave that found the engines full
	window  int           // turns at once for each free engine
	contest contest
	away    time.Time // since when all engines have been away; zero when they are not
}

// place is one request's place in the room. The first fields are the caller's.
type place struct {
	tenant
	model    string
	class    string
	limit    bounds        // of the class
	timeout  time.Duration // how long it may wait
	cost     int64         // tokens of its prompt, at least leastCost
	bytes    int64         // of its body
	accepted bool          // an owner had accepted it before: it is not refused any more

	room    *waitRoom
	queue   *modelQueue
	number  uint64 // of arrival
	entered time.Time
	until   time.Time
	state   placeState
	wave    uint64        // in which it had a turn in vain
	turn    chan struct{} // told of each turn
	gone    chan struct{} // closed when it is sent away
	fault   error         // why; set before gone is closed
	vain    time.Duration // how long it had waited then

	item           *list.Element // in its flow
	inAll, inClass *list.Element // in the tallies
}

type placeState uint8

const (
	placeLeft  placeState = iota // not in the room
	placeWaits                   // for its turn
	placeTurn                    // has its turn
)

func newWaitRoom(limit bounds, s supply) *waitRoom {
	return &waitRoom{limit: limit, supply: s, models: map[string]*modelQueue{}, all: newTally(), classes: map[string]*tally{}}
}

// busy reports whether requests for the model wait: a new one goes behind them.
func (r *waitRoom) busy(model string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.models[model]
	return q != nil && q.present() > 0
}

// len returns the number of requests that wait.
func (r *waitRoom) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all.requests
}

// present returns the number of requests that wait for a turn or have one.
func (q *modelQueue) present() int { return q.n + q.out }

// enter takes a place. It returns a *refusal when p is not let in; others may have to go for it.
func (r *waitRoom) enter(p *place, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queueLocked(p.model, now)
	q.drain.advance(now, q.present() > 0)
	p.room, p.queue = r, q
	if !p.accepted {
		if err := r.admitLocked(p, now); err != nil {
			return err
		}
	}
	r.number++
	p.number = r.number
	r.seatLocked(p, now)
	q.push(p)
	q.notify()
	return nil
}

// queueLocked returns the queue of a model. Those of models that nobody waits for are forgotten after a while.
func (r *waitRoom) queueLocked(model string, now time.Time) *modelQueue {
	q := r.models[model]
	if q != nil {
		return q
	}
	for name, old := range r.models {
		if old.present() == 0 && now.Sub(old.drain.at) > drainForgets {
			delete(r.models, name)
		}
	}
	q = &modelQueue{wake: make(chan struct{}, 1), wave: 1, window: 1, drain: drainRate{at: now}}
	r.models[model] = q
	return q
}

// seatLocked counts p among those that wait and sees to it that the queue has a keeper.
func (r *waitRoom) seatLocked(p *place, now time.Time) {
	q := p.queue
	p.state, p.entered, p.until = placeWaits, now, now.Add(p.timeout)
	p.turn, p.gone = make(chan struct{}, 1), make(chan struct{})
	c := r.classes[p.class]
	if c == nil {
		c = newTally()
		r.classes[p.class] = c
	}
	p.inAll, p.inClass = r.all.add(p), c.add(p)
	if !q.kept {
		q.kept = true
		r.keepers.Go(func() { r.keep(q, p.model) })
	}
}

// await blocks until it is the place's turn, or returns why it will not be.
func (p *place) await(ctx context.Context) error {
	timeout := time.NewTimer(time.Until(p.until))
	defer timeout.Stop()
	select {
	case <-p.turn:
		return nil
	case <-p.gone:
		return p.fault
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timeout.C:
		return p.room.late(p, time.Now())
	}
}

// comeBack is called when the turn has found every engine full, and for a request that an engine failed after the accept: it
// waits again, where it was.
func (p *place) comeBack(now time.Time) {
	r := p.room
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.state == placeTurn {
		p.queue.out--
		p.queue.lose()
		p.state, p.wave = placeWaits, p.queue.wave
	} else {
		p.queue = r.queueLocked(p.model, now) // the one before may be forgotten
		p.queue.drain.advance(now, p.queue.present() > 0)
		r.seatLocked(p, now)
	}
	p.queue.putBack(p)
	p.queue.notify()
}

// leave gives the place up and returns how long it was held. It may be called on nil and more than once; later calls, and those
// after it was sent away, return false. Taken says that an owner has accepted the request, more that its engine can take another one.
func (p *place) leave(taken, more bool) (waited time.Duration, was bool) {
	if p == nil || p.room == nil {
		return 0, false
	}
	p.room.mu.Lock()
	defer p.room.mu.Unlock()
	if p.state == placeLeft {
		waited, p.vain = p.vain, 0
		return waited, false
	}
	now, had := time.Now(), p.state == placeTurn
	p.room.dropLocked(p, now)
	switch {
	case taken:
		p.queue.gain(more)
		p.accepted = true
	case had:
		p.queue.refund(p)
	}
	p.queue.notify()
	return now.Sub(p.entered), true
}

// dropLocked takes the place out, whatever it was doing.
func (r *waitRoom) dropLocked(p *place, now time.Time) {
	q := p.queue
	q.drain.advance(now, true)
	if p.state == placeTurn {
		q.out--
	} else {
		q.remove(p)
	}
	p.state = placeLeft
	r.all.remove(p, p.inAll)
	c := r.classes[p.class]
	if c.remove(p, p.inClass); c.requests == 0 {
		delete(r.classes, p.class)
	}
}

// dismissLocked sends away one that waits.
func (r *waitRoom) dismissLocked(p *place, fault error, now time.Time) {
	r.dropLocked(p, now)
	p.fault, p.vain = fault, now.Sub(p.entered)
	close(p.gone)
}

// notify tells the keeper that something changed in the queue.
func (q *modelQueue) notify() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// What a keeper goes by when several agents want the same slot, or several slots are free at once.
const (
	keeperPeriod = 100 * time.Millisecond // looks without news: what is silent becomes unreachable, what is own becomes free
	maxWindow    = 64
	maxLost      = 8 // turns in vain until there is news: what looks free is not
)

// gain notes that a turn found an engine: where there is room for more, twice as many try at once.
func (q *modelQueue) gain(more bool) {
	q.drain.note()
	q.contest.won()
	if more {
		q.window = min(q.window+1, maxWindow)
		q.newWave()
	}
}

// lose notes that a turn found every engine full: somebody else was faster.
func (q *modelQueue) lose() {
	q.lost++
	q.window = 1
	q.contest.lost()
}

func (q *modelQueue) newWave() {
	q.wave++
	q.lost = 0
}

// freed says that a request of this agent has ended, so that its slot is known here before it is elsewhere.
func (r *waitRoom) freed(model string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.models[model]; q != nil && q.kept {
		q.newWave()
		q.notify()
	}
}

// keep gives turns while somebody waits. When there is news of an engine it lets a moment pass, so that not all agents take
// for free what one of them will have.
func (r *waitRoom) keep(q *modelQueue, model string) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		news := r.supply.news()
		engines, why := r.supply.free(model)
		if r.give(q, engines, why, time.Now()) {
			return
		}
		timer.Reset(keeperPeriod/2 + rand.N(keeperPeriod))
		select {
		case <-q.wake:
		case <-news:
			r.holdBack(q, model, timer)
		case <-timer.C:
			r.change(func() { q.newWave() })
		}
	}
}

// holdBack waits for a moment when an engine is free, unless a slot of this agent's own becomes free.
func (r *waitRoom) holdBack(q *modelQueue, model string, timer *time.Timer) {
	var delay time.Duration
	r.change(func() {
		q.newWave()
		delay = q.contest.delay()
	})
	if engines, _ := r.supply.free(model); engines == 0 || delay == 0 {
		return
	}
	timer.Reset(delay)
	select {
	case <-q.wake:
		q.notify() // whatever it was, the keeper looks at once
	case <-timer.C:
		if engines, _ := r.supply.free(model); engines == 0 {
			r.change(q.contest.late)
		}
	}
}

func (r *waitRoom) change(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// give gives as many turns as there may be, or sends all away when no engine is left to wait for. It reports when nobody waits
// any more, with which the keeper's time is over.
func (r *waitRoom) give(q *modelQueue, engines int, why lack, now time.Time) (done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q.present() == 0 {
		q.kept = false
		return true
	}
	if engines == 0 {
		q.window = 1
		for hopeless := q.hopeless(why, now); hopeless && q.n > 0; {
			r.dismissLocked(q.one(), errNoEngine, now)
		}
		return false
	}
	q.away = time.Time{}
	fresh := func(p *place) bool { return p.wave != q.wave }
	for q.out < engines*q.window && q.lost < maxLost {
		p := q.take(fresh)
		if p == nil {
			break
		}
		p.state = placeTurn
		q.out++
		p.turn <- struct{}{}
	}
	return false
}

// hopeless reports whether there is no engine to wait for: none, or all have been away for as long as a peer may be silent.
func (q *modelQueue) hopeless(why lack, now time.Time) bool {
	if why != away {
		q.away = time.Time{}
		return why == none
	}
	if q.away.IsZero() {
		q.away = now
	}
	return now.Sub(q.away) >= silenceOfDead
}
