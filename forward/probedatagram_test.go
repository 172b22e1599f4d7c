package forward

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// probing is what a probe of b by a took.
type probing struct {
	after     time.Duration
	datagrams int // of both
	streams   int
	open      int // questions, afterwards
}

// probeOnce has a probe b, in fake time, after prepare.
func probeOnce(t *testing.T, rtt time.Duration, prepare func(a, b *memAgent)) (got probing, report Report, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newMemMesh(t, "a", "b")
		a, b := m.agents["a"], m.agents["b"]
		prepare(a, b)
		start := time.Now()
		report, err = a.probe(t.Context(), "b", rtt)
		got = probing{time.Since(start), a.datagrams + b.datagrams, a.streams, len(a.questions.open)}
	})
	return got, report, err
}

func TestProbeGoesByDatagramAndByStreamWhereThatBringsNothing(t *testing.T) {
	lost := func(kind byte) func(b []byte) bool { return func(b []byte) bool { return b[1] == kind } }
	for _, tt := range []struct {
		name    string
		rtt     time.Duration
		prepare func(a, b *memAgent)
		want    probing
	}{
		{"nothing is lost", 0, func(*memAgent, *memAgent) {}, probing{datagrams: 2}},
		{"the question is lost", 0, func(a, _ *memAgent) { a.lose = lost(datagramAsk) }, probing{after: probeAgain, datagrams: 1, streams: 1}},
		{"the answer is lost", 0, func(_, b *memAgent) { b.lose = lost(datagramAnswer) }, probing{after: probeAgain, datagrams: 2, streams: 1}},
		{"lost on a long way", 60 * time.Millisecond, func(a, _ *memAgent) { a.lose = lost(datagramAsk) }, probing{after: 120 * time.Millisecond, datagrams: 1, streams: 1}},
		{"no datagram can be sent", 0, func(a, _ *memAgent) { a.blocked = true }, probing{streams: 1}},
		{"the answer does not fit", 0, func(_, b *memAgent) { addEngines(b, 40) }, probing{datagrams: 2, streams: 1}},
	} {
		got, report, err := probeOnce(t, tt.rtt, tt.prepare)
		if _, ok := report.loadOf("b/0"); err != nil || !ok || got != tt.want {
			t.Errorf("%s: %v, %+v, got %+v, want %+v", tt.name, err, report, got, tt.want)
		}
	}
}

// addEngines puts more engines beside an agent.
func addEngines(a *memAgent, n int) {
	for i := range n {
		name := fmt.Sprintf("engine number %d of many", i)
		a.Owner.engines[name] = LocalEngine{Name: name, Booker: a.book}
	}
}

func TestLostDatagramIsNoMiss(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		a.lose = func([]byte) bool { return true }
		a.book.refuse = "draining"
		for range 4 {
			a.post(t.Context(), chatBody)
			a.Wait()
		}
		if state := a.View.StateOf("b", time.Now()); state != Fresh || a.streams < 8 {
			t.Errorf("b is %v after %d streams, want it fresh, asked and probed by streams", state, a.streams)
		}
		_ = b
	})
}

func TestAnswersCountOnlyFromWhomWasAsked(t *testing.T) {
	var q questions
	number, answer := q.ask("b")
	other, _ := q.ask("c")
	if number == other {
		t.Fatal("two questions have one number")
	}
	for _, from := range []struct {
		agent  string
		number uint64
	}{{"c", number}, {"b", other}, {"b", number + 100}} {
		q.answer(from.agent, from.number, []byte("no"))
	}
	if len(answer) != 0 || len(q.open) != 2 {
		t.Errorf("%d answers came, %d questions are open; want none and both", len(answer), len(q.open))
	}
	q.answer("b", number, []byte("yes"))
	q.answer("b", number, []byte("again")) // a repeated packet
	if got := string(<-answer); got != "yes" || len(answer) != 0 {
		t.Errorf("got %q and %d more", got, len(answer))
	}
	q.drop(other)
	q.answer("c", other, []byte("late"))
	if len(q.open) != 0 {
		t.Errorf("%d questions are left open", len(q.open))
	}
}

func TestHeartbeatIsNoProbe(t *testing.T) {
	for _, period := range []time.Duration{time.Millisecond, 128 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, time.Minute} {
		if b := AppendReport(nil, Report{Period: period}); IsProbe(b) {
			t.Errorf("a heartbeat of period %v is taken for a probe: %x", period, b)
		}
	}
	if IsProbe(nil) {
		t.Error("nothing is taken for a probe")
	}
}

func FuzzProbe(f *testing.F) {
	answered := Report{Period: time.Second, Loads: []EngineLoad{{"0", engine.Load{Seq: 1, InFlight: 2}}}}
	f.Add(appendProbe(datagramAsk, 300))
	f.Add(AppendReport(appendProbe(datagramAnswer, 1), answered))
	f.Add(appendProbe(datagramAnswer, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		if !IsProbe(b) {
			return
		}
		m := newMemMesh(t, "a", "b")
		a := m.agents["a"]
		_, answer := a.questions.ask("b") // its number is 1
		err := a.ServeDatagram("b", b, time.Second)
		if len(answer) == 0 {
			return
		}
		got, parseErr := ParseReport(<-answer)
		if err != nil || parseErr == nil && len(got.Loads)+len(got.Doubts) > maxEngines {
			t.Errorf("%v: %d loads and %d doubts", err, len(got.Loads), len(got.Doubts))
		}
		if want := AppendReport(appendProbe(datagramAnswer, 1), answered); string(b) == string(want) && cmp.Diff(answered, got) != "" {
			t.Errorf("got %+v, want %+v", got, answered)
		}
	})
}
