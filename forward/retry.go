package forward

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

const (
	// maxAttempts bounds the search for an engine. Engines that failed are not tried again; peers that only missed their accept
	// are, with more patience each round.
	maxAttempts = 8
	// maxDeaths is the most engines that may die or hang under one request: it may be what kills them.
	maxDeaths = 3

	// retryShare bounds the retries of a class as a share of its requests, unless the class says otherwise: that many are there
	// when one engine of five fails all it gets. When all engines fail because there is too much to do, more make it worse.
	retryShare = 0.2
	// retryFloor is how many a second a class may have at each ingress beside that: of few requests the share is none.
	retryFloor = 1

	// retryPause is the longest pause before the first retry of a request, and doubles with each. An engine that dies fails many
	// requests at once; the pauses differ, so the later ones are decided with the load that the earlier ones bring.
	retryPause = 20 * time.Millisecond
	// maxDoubled is how often: a stream that goes on elsewhere may pause a hundred times.
	maxDoubled = 4
)

// unsent reports whether an attempt ended before an engine had the request. Then another one is tried at once, beside the
// budget: it costs a message between agents, and no engine does more for it.
func unsent(err error) bool {
	_, bounced := errors.AsType[*bounce](err)
	return bounced || errors.Is(err, errMissed) || errors.Is(err, errUnreached)
}

// undone reports whether an attempt brought an engine no work: it was not sent, found nobody that listens, or looked for what
// is not there.
func undone(err error) bool {
	failed, _ := errors.AsType[*failure](err)
	return unsent(err) || errors.Is(err, errNotHere) || failed != nil && failed.Reason == "refused"
}

// deadly are the failures that a request may have caused.
var deadly = []string{"reset", "truncated", "bad_event", "stuck"}

// again reports whether another engine may be tried: nothing of an answer has gone out, somebody still waits, the budget allows
// it, and what must not be done twice was not done.
func (x *exchange) again(err error) bool {
	switch {
	case x.answer.started():
		return x.goesOn(err)
	case x.ctx.Err() != nil, errors.Is(err, errClient), errors.Is(err, errLateStatus):
		return false
	case errors.Is(err, errTryNext): // its lane has asked
		return true
	case x.once() && !unsent(err) && !errors.Is(err, errNotHere):
		return false
	case undone(err):
		return x.more()
	default:
		return x.retry()
	}
}

// once reports whether the request must not be done twice.
func (x *exchange) once() bool { return x.request.Stored || x.request.Background }

// more reports whether the request may have one more attempt.
func (x *exchange) more() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.attempts < x.limit()
}

// limit is the most engines to try. What continues a stored response is asked of all: only one of them has it.
func (x *exchange) limit() int {
	switch {
	case x.answer.skipNotFound:
		return maxLookUps
	case x.thread.breaks(): // its client has a part of the answer, and most attempts find an agent that is slow to accept
		return 4 * maxAttempts
	}
	return maxAttempts
}

// retry reports whether a request that an engine had may go to another one, and takes that from the budget of its class.
func (x *exchange) retry() bool {
	if x.class == nil { // a look-up
		return x.more()
	}
	if x.once() || !x.more() || x.tooDeadly() {
		return false
	}
	ok := false
	share := cmp.Or(x.class.RetryBudget, retryShare)
	x.g.classes.with(x.class.Name, func(s *classState) { ok = s.retries.take(time.Now(), share, retryFloor) })
	if ok {
		x.g.metrics.retries.WithLabelValues(x.class.Name).Inc()
	} else {
		x.g.metrics.retryBudget.WithLabelValues(x.class.Name).Inc()
	}
	return ok
}

// another returns what tells the lane of an attempt whether another engine may answer instead of id, whose answer is an error.
func (x *exchange) another(id engine.ID) func() bool {
	return func() bool { return x.answer.started() || (x.class == nil || x.others(id)) && x.retry() }
}

// countAttempt returns how many there are now.
func (x *exchange) countAttempt() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.attempts++
	return x.attempts
}

func (x *exchange) countDeath(reason string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if slices.Contains(deadly, reason) {
		x.deaths++
	}
}

func (x *exchange) tooDeadly() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.deaths >= maxDeaths
}

// advice says to the client what it may do when the answer broke off.
func (x *exchange) advice() string {
	switch {
	case x.once():
		return "an engine may have done the request all the same, and would do it twice if it were sent again"
	case x.tooDeadly():
		return "several engines failed with this request, so it may be the cause: do not send it again unchanged"
	default:
		return "send the request again"
	}
}

// backOff waits before a retry: for a random time, of twice the bound each time.
func (x *exchange) backOff() error {
	bound := retryPause << min(x.retries, maxDoubled)
	x.retries++
	timer := time.NewTimer(time.Duration(x.rng.Int64N(int64(bound))))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-x.ctx.Done():
		return context.Cause(x.ctx)
	}
}
