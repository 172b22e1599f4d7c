package workload

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func chatConfig() ChatConfig {
	return ChatConfig{
		Sessions: 20, MinTurns: 2, MaxTurns: 4, Span: time.Minute, Think: time.Second, SystemPrompts: 3,
		System: Lengths{Median: 100}, First: Lengths{Median: 300, Sigma: 0.5}, Next: Lengths{Median: 20}, Seed: 1,
		Answer: Lengths{Median: 10},
	}
}

func TestChatOfOneSeedIsTheSameTwice(t *testing.T) {
	make := func(seed uint64) Workload {
		c := chatConfig()
		c.Seed = seed
		w, err := Chat("chat", NewText(1), c)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	opt := cmpopts.IgnoreUnexported(Text{})
	if diff := cmp.Diff(make(1), make(1), opt); diff != "" {
		t.Errorf("one seed, two workloads:\n%s", diff)
	}
	if cmp.Equal(make(1), make(2), opt) {
		t.Error("two seeds, one workload")
	}
}

func TestChatTurnExtendsTheOneBefore(t *testing.T) {
	w, err := Chat("chat", NewText(1), chatConfig())
	if err != nil {
		t.Fatal(err)
	}
	s := &w.Sessions[0]
	one, two := w.messages(s, 0, nil), w.messages(s, 1, []string{"answer"})
	if diff := cmp.Diff(one, two[:len(one)]); diff != "" {
		t.Errorf("turn 1 does not begin with turn 0:\n%s", diff)
	}
	if got := two[len(one)]; got != (message{"assistant", "answer"}) {
		t.Errorf("after the first prompt comes %+v, want the answer", got)
	}
}

func TestSessionsComeInOrderWithinTheirSpan(t *testing.T) {
	w, err := Chat("chat", NewText(1), chatConfig())
	if err != nil {
		t.Fatal(err)
	}
	var before time.Duration
	for _, s := range w.Sessions {
		if s.Start < before || s.Start >= time.Minute {
			t.Errorf("session %s starts at %v after %v", s.ID, s.Start, before)
		}
		before = s.Start
	}
}

func TestSharedPromptsFollowZipf(t *testing.T) {
	w, err := Shared("shared", NewText(1), SharedConfig{
		Requests: 4000, Prompts: 4, Zipf: 1, Span: time.Minute,
		System: Lengths{Median: 100}, Question: Lengths{Median: 5}, Answer: Lengths{Median: 5}, Seed: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	count := map[uint64]int{}
	most := 0
	for _, s := range w.Sessions {
		count[s.System[0].ID]++
		most = max(most, count[s.System[0].ID])
	}
	if len(count) != 4 {
		t.Errorf("%d system prompts, want 4", len(count))
	}
	if want := 4000 / (1 + 1./2 + 1./3 + 1./4); math.Abs(float64(most)-want) > 150 {
		t.Errorf("the most popular prompt has %d requests, want about %.0f", most, want)
	}
}

func TestInvalidGeneratorsReportEveryFault(t *testing.T) {
	c := ChatConfig{Sessions: 0, MinTurns: 3, MaxTurns: 2, Think: -1}
	err := c.Validate()
	for _, field := range []string{"Sessions", "MaxTurns", "Think"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error %v does not name %s", err, field)
		}
	}
	if _, err := Shared("x", NewText(1), SharedConfig{}); err == nil {
		t.Error("an empty SharedConfig has no error")
	}
}

func TestLengthsKeepTheirMedianAndBound(t *testing.T) {
	rng := newRand(1, 1)
	l := Lengths{Median: 100, Sigma: 0.8, Max: 400}
	below := 0
	for range 10_000 {
		n := l.draw(rng)
		if n < 1 || n > 400 {
			t.Fatalf("drew %d, outside 1 to 400", n)
		}
		if n < 100 {
			below++
		}
	}
	if below < 4700 || below > 5300 {
		t.Errorf("%d of 10000 draws are below the median", below)
	}
	if n := (Lengths{}).draw(rng); n != 1 {
		t.Errorf("the zero value draws %d, want 1", n)
	}
}

func TestThinkKeepsItsMean(t *testing.T) {
	rng := newRand(1, 1)
	var sum time.Duration
	for range 10_000 {
		d := think(10*time.Second, rng)
		if d < 2*time.Second {
			t.Fatalf("thought for %v, less than a fifth of the mean", d)
		}
		sum += d
	}
	if mean := sum / 10_000; mean < 9700*time.Millisecond || mean > 10300*time.Millisecond {
		t.Errorf("mean think time is %v, want 10 s", mean)
	}
}

func TestMergeKeepsSessionsApartAndInOrder(t *testing.T) {
	text := NewText(1)
	a := Workload{Name: "a", Text: text, Sessions: []Session{{ID: "0", Start: 2, Turns: make([]Turn, 2)}}}
	b := Workload{Name: "b", Text: text, Sessions: []Session{{ID: "0", Start: 1, Turns: make([]Turn, 1)}}}
	m := Merge("both", a, b)
	if m.Sessions[0].ID != "b-0" || m.Sessions[1].ID != "a-0" || m.Requests() != 3 {
		t.Errorf("Merge = %+v", m)
	}
	if a.Sessions[0].ID != "0" {
		t.Error("Merge changed its part")
	}
}
