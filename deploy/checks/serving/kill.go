package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

const (
	killStreams = 50
	// killWaiting is how many streams without content the victim must have accepted at the moment of the kill.
	killWaiting = 10
	killBegun   = 2
	// streamPause is the time between two streams' starts: they come in while the first of them is in prefill, and each
	// ingress hears of the load that it made before it decides again.
	streamPause = 10 * time.Millisecond
	// notChosenBound: DESIGN section 12, a dead agent is no longer chosen within 2 s.
	notChosenBound = 2 * time.Second
	// hangBound is how long a stream that had begun on the victim may take to end with an error event: 3 s of silence,
	// and the machine's own delays.
	hangBound   = 5 * time.Second
	returnBound = 10 * time.Second
	// onTheWay is how long after the signal bytes may reach a client that had left the victim before it.
	onTheWay = 100 * time.Millisecond
)

// checkKill ends one of three agents by SIGKILL, and in a full run stops another by SIGSTOP, while streams run through the others.
func checkKill(ctx context.Context, h *harness) error {
	if err := silence(ctx, h, "kill", syscall.SIGKILL); err != nil || h.Short {
		return err
	}
	return silence(ctx, h, "stop", syscall.SIGSTOP)
}

// silencing is one run of the check: agents a and b take requests in, c falls silent.
type silencing struct {
	m       *testMesh
	prefix  string // of the figures' names
	signal  syscall.Signal
	victim  *agent
	client  *http.Client
	rng     *rand.Rand
	watch   *watch
	streams []*stream
	playing sync.WaitGroup

	at     time.Time     // of the signal
	before []streamState // of each stream, at that moment
	old    engineStatus  // of the victim's engine, as a saw it before
	marked string        // a system message that only the victim's engine has
}

func silence(ctx context.Context, h *harness, prefix string, signal syscall.Signal) error {
	m, err := startMesh(ctx, h, []string{"a", "b", "c"})
	if err != nil {
		return err
	}
	defer m.Close()
	k := &silencing{m: m, prefix: prefix, signal: signal, victim: m.Agents[2], client: newClient()}
	k.rng = rand.New(rand.NewPCG(5, uint64(signal)))
	k.watch = newWatch(m, k.ingresses())
	defer k.watch.stop()
	for _, step := range []func(context.Context) error{k.mark, k.begin, k.strike, k.end, k.comeBack} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("%s: %w", prefix, err)
		}
	}
	return nil
}

func (k *silencing) ingresses() []*agent { return k.m.Agents[:2] }

func (k *silencing) figure(name string) string { return k.prefix + "_" + name }

// mark finds a prompt that the victim's engine has and no other: it sends new ones until one went there.
func (k *silencing) mark(ctx context.Context) error {
	for range 50 {
		k.marked = prose(k.rng, overlapPromptBytes)
		header, _, err := chat{system: k.marked, user: "Begin.", maxTokens: 4}.ask(ctx, k.client, k.m.Agents[0].HTTP)
		if err != nil {
			return err
		}
		if header.Get("X-Kvmesh-Engine") == k.victim.EngineID() {
			return k.markKnown(ctx)
		}
	}
	return fmt.Errorf("none of 50 requests went to %s", k.victim.EngineID())
}

// markKnown waits until agent a knows that the victim's engine has the marked prompt.
func (k *silencing) markKnown(ctx context.Context) error {
	time.Sleep(overlapPause)
	overlap, err := k.overlapOfVictim(ctx, "Known?")
	if err == nil && overlap == 0 {
		err = fmt.Errorf("agent a knows of no overlap with a prompt that %s has", k.victim.EngineID())
	}
	return err
}

// overlapOfVictim sends the marked prompt through agent a and returns the overlap that its decision saw at the victim's
// engine; -1 when that engine was no candidate.
func (k *silencing) overlapOfVictim(ctx context.Context, question string) (int, error) {
	a := k.m.Agents[0]
	c := chat{id: k.prefix + "-marked-" + question, system: k.marked, user: question, maxTokens: 4}
	if _, _, err := c.ask(ctx, k.client, a.HTTP); err != nil {
		return 0, err
	}
	d, err := decisionOn(ctx, a, c.id)
	if err != nil {
		return 0, err
	}
	for _, candidate := range d.Candidates {
		if candidate.Engine == k.victim.EngineID() {
			return candidate.OverlapTokens, nil
		}
	}
	return -1, nil
}

// begin starts the streams and waits until enough of the streams wait on the victim's engine and
// some have begun there.
func (k *silencing) begin(ctx context.Context) error {
	s, err := meshStatus(ctx, k.m.Agents[0])
	if err != nil {
		return err
	}
	k.old, _ = s.engine(k.victim.EngineID())
	for i := range killStreams {
		s := &stream{agent: k.ingresses()[i%2]}
		s.chat = chat{
			id: fmt.Sprintf("%s-stream-%d", k.prefix, i), system: prose(k.rng, overlapPromptBytes), user: "Go on.", stream: true,
		}
		k.streams = append(k.streams, s)
		k.playing.Go(func() { s.play(ctx, k.client, func(int) {}) })
		time.Sleep(streamPause)
	}
	return check.Await(ctx, 20*time.Second, "streams on the victim's engine", func() bool {
		s, err := meshStatus(ctx, k.victim)
		e, _ := s.engine(k.victim.EngineID())
		return err == nil && k.begunOnVictim() >= killBegun && e.Waiting >= killWaiting
	})
}

// begunOnVictim counts the streams that have content from the victim's engine and go on.
func (k *silencing) begunOnVictim() int {
	n := 0
	for _, s := range k.streams {
		if v := s.state(); v.engine == k.victim.EngineID() && v.contents > 0 && !v.done {
			n++
		}
	}
	return n
}

// strike sends the signal, notes how far each stream was and starts the small requests.
func (k *silencing) strike(ctx context.Context) error {
	k.at = time.Now()
	if err := k.victim.Process.Signal(k.signal); err != nil {
		return err
	}
	k.watch.start(ctx)
	for _, s := range k.streams {
		k.before = append(k.before, s.state())
	}
	k.m.h.Say("%s: agent %s is %v, with %d streams begun on its engine", k.prefix, k.victim.Name, k.signal, k.begunOnVictim())
	return nil
}

// end waits for the end of all streams and measures how they ended.
func (k *silencing) end(ctx context.Context) error {
	ended := make(chan struct{})
	go func() { k.playing.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(60 * time.Second):
		return fmt.Errorf("%d streams hang", k.hanging())
	case <-ctx.Done():
		return ctx.Err()
	}
	k.watch.collect(ctx)
	k.waitingFigures()
	k.begunFigures()
	k.chosenFigures()
	return nil
}

func (k *silencing) hanging() int {
	n := 0
	for _, s := range k.streams {
		if s.state().ended.IsZero() {
			n++
		}
	}
	return n
}

// begun reports whether content of stream i had left its engine at the signal.
func (k *silencing) begun(i int) bool {
	v := k.streams[i].state()
	return v.contents > 0 && v.first.Before(k.at.Add(onTheWay))
}

// waitingFigures: streams without content must be answered completely, on whatever engine.
func (k *silencing) waitingFigures() {
	waiting, onVictim, failed := 0, 0, 0
	var why []string
	for i, s := range k.streams {
		if k.begun(i) {
			continue
		}
		waiting++
		if d, ok := k.watch.decision(s.id); ok && d.lost(k.victim.EngineID()) {
			onVictim++
		}
		if v := s.state(); !v.complete() {
			failed++
			why = append(why, fmt.Sprintf("%s: %v", s.id, v.err))
		}
	}
	f := k.m.h.Figures
	f.AtLeast(k.figure("waiting_streams_on_victim"), float64(onVictim), killWaiting,
		"of %d streams without content at the signal, those sent to %s", waiting, k.victim.EngineID())
	f.Zero(k.figure("waiting_streams_not_answered"), float64(failed), "of %d without content at the signal%s", waiting, list(why))
}

// begunFigures: streams that had begun on the victim's engine end soon, with an error event; those elsewhere go on.
func (k *silencing) begunFigures() {
	begun, silent, elsewhere, broken := 0, 0, 0, 0
	var slowest time.Duration
	var why []string
	for i, was := range k.before {
		v := k.streams[i].state()
		switch {
		case was.done || !k.begun(i):
		case v.engine != k.victim.EngineID():
			elsewhere++
			if !v.complete() {
				broken++
			}
		case v.complete() && v.ended.Sub(k.at) < onTheWay:
		default:
			begun++
			slowest = max(slowest, v.ended.Sub(k.at))
			if !endedByEvent(v.err) {
				silent++
				why = append(why, fmt.Sprintf("%s: %v", k.streams[i].id, v.err))
			}
		}
	}
	f := k.m.h.Figures
	f.AtLeast(k.figure("begun_streams_on_victim"), float64(begun), killBegun, "streams with content from %s at the signal", k.victim.EngineID())
	f.Zero(k.figure("begun_streams_without_error_event"), float64(silent), "of %d%s", begun, list(why))
	f.AtMost(k.figure("begun_streams_ended_seconds_max"), slowest.Seconds(), hangBound.Seconds(), "from the signal to the error event")
	f.Zero(k.figure("begun_streams_elsewhere_broken"), float64(broken), "of %d on other engines", elsewhere)
}

// chosenFigures: how long after the signal somebody still chose the victim.
func (k *silencing) chosenFigures() {
	id := k.victim.EngineID()
	last, n := k.watch.lastChoice(id, k.at)
	sent, failed := k.watch.probeCounts()
	f := k.m.h.Figures
	f.AtMost(k.figure("last_choice_of_victim_seconds"), last.Seconds(), notChosenBound.Seconds(),
		"%d requests that came after the signal tried %s; a small request was sent every %v", n, id, probePeriod)
	f.Zero(k.figure("small_requests_failed"), float64(failed), "of %d%s", sent, list(k.watch.probeErrors()))
}

// comeBack starts the victim again, or wakes it, and measures when it is used again and what the others know of it.
func (k *silencing) comeBack(ctx context.Context) error {
	var err error
	if k.signal == syscall.SIGSTOP {
		err = k.victim.Process.Signal(syscall.SIGCONT)
	} else {
		<-k.victim.Process.Done
		err = k.m.StartAgent(k.victim)
	}
	if err != nil {
		return err
	}
	back := time.Now()
	f := k.m.h.Figures
	if k.signal == syscall.SIGKILL {
		if err := k.freshDigest(ctx); err != nil {
			return err
		}
	}
	err = check.Await(ctx, 2*returnBound, "a request on "+k.victim.EngineID(), func() bool {
		return k.watch.servedSince(k.victim.EngineID(), back)
	})
	if err != nil {
		return err
	}
	f.AtMost(k.figure("used_again_seconds"), k.watch.firstServed(k.victim.EngineID(), back).Seconds(), returnBound.Seconds(),
		"from its return to the first small request that its engine answered")
	return nil
}

// freshDigest looks at what agent a knows of the victim's engine right after the restart: another generation, an empty
// digest, and no overlap with the marked prompt.
func (k *silencing) freshDigest(ctx context.Context) error {
	var now engineStatus
	id := k.victim.EngineID()
	err := check.Await(ctx, 2*returnBound, "another generation of "+id, func() bool {
		s, err := meshStatus(ctx, k.m.Agents[0])
		if err != nil {
			return false
		}
		var ok bool
		now, ok = s.engine(id)
		return ok && now.Generation != k.old.Generation && now.State == "fresh" && now.LoadAge >= 0
	})
	if err != nil {
		return err
	}
	overlap, err := k.overlapOfVictim(ctx, "Forgotten?")
	if err != nil {
		return err
	}
	f := k.m.h.Figures
	f.AtMost(k.figure("digest_fill_after_restart"), now.DigestFill, 0.002,
		"generation %d was %d; fill was %.4f, and one prompt of %d bytes adds about 0.001", now.Generation, k.old.Generation, k.old.DigestFill, overlapPromptBytes)
	f.Zero(k.figure("old_digest_overlap"), float64(overlap), "tokens that agent a saw of a prompt that %s had before the restart", id)
	return nil
}

func endedByEvent(err error) bool {
	return err != nil && strings.Contains(err.Error(), errStreamError.Error())
}
