package book

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// stage plays a script of testdata: lines of a time since the beginning, a verb with its arguments, and after "->" what is to come
// of it, which is the standing where nothing is said otherwise.
//
//	book NAME PREFILL [whole] [forced]   the reason of the refusal, or nothing
//	content|more|answer|fail|end NAME    first content; more of it; an end that was good, failed, or nobody waited for
//	truth NAME PREFILL                   the prompt turned out to take that, at the speed that is known
//	counts [grown], blind                the engine is read, and tells how much it has computed, or nothing of it
//	alive, down, up, look
//	stream N PREFILL TOOK                N requests, one after the other, each answered after TOOK
type stage struct {
	*rig
	t     *testing.T
	begin time.Time
	given []string
}

func newStage(t *testing.T) *stage {
	c := usual()
	c.Judge = true
	s := &stage{rig: newRig(c), t: t}
	s.begin = s.now
	s.SetDown(true, s.now)
	s.SetDown(false, s.now)
	s.Counts(true, false, s.now)
	s.speeds.measured = true
	return s
}

// pass lets time pass as an owner does: it looks whenever the book asks for it.
func (s *stage) pass(to time.Time) {
	for {
		s.look()
		at, ok := s.JudgeAt(s.now)
		if wake, waits := s.Wake(); waits && (!ok || wake.Before(at)) {
			at, ok = wake, true
		}
		if !ok || !at.Before(to) {
			break
		}
		s.now = at
	}
	s.now = to
	s.look()
}

func (s *stage) look() {
	for _, e := range s.Judge(s.now) {
		s.given = append(s.given, e.Value.(string))
		s.End(e, s.now)
		s.Failed(e, s.now)
	}
	s.handed()
}

// word is the standing, with what was given up since the last time.
func (s *stage) word() string {
	st := s.Standing(s.now)
	out := "good"
	switch {
	case st.Ejected && s.now.Before(st.Until):
		out = fmt.Sprintf("ejected for %s, %v left", st.Cause, st.Until.Sub(s.now))
	case st.Ejected:
		out = "on trial"
	case st.Returning:
		out = fmt.Sprint("returning, ", s.standing.young, " taken")
	case st.Quiet:
		out = "quiet"
	}
	if flagged := s.Flags(s.now)&engine.Ejected != 0; flagged != (out != "good") {
		out += fmt.Sprintf(", flag %t", flagged)
	}
	if s.Hung(s.now) {
		out += ", hung"
	}
	if len(s.given) > 0 {
		out += ", gave up " + strings.Join(s.given, " ")
		s.given = nil
	}
	return out
}

func (s *stage) prefill(word string) int {
	d, err := time.ParseDuration(word)
	if err != nil {
		s.t.Fatal(err)
	}
	return int(d.Seconds() * second)
}

func (s *stage) accept(name string, args []string) string {
	ask := Ask{QueuedAtProbe: -1, Forced: slices.Contains(args, "forced")}
	if reason := s.Refusal(ask, s.now); reason != "" {
		return string(reason)
	}
	s.book(name, Work{New: s.prefill(args[0]), Whole: slices.Contains(args, "whole")})
	s.look()
	return s.word()
}

func (s *stage) do(verb string, args []string) string {
	entry := func() *Entry { return s.entries[args[0]] }
	switch verb {
	case "book":
		return s.accept(args[0], args[1:])
	case "content":
		s.content(args[0])
	case "more":
		s.More(entry(), s.now)
	case "answer":
		s.end(args[0])
		s.Answered(entry(), s.now)
	case "fail":
		s.end(args[0])
		s.Failed(entry(), s.now)
	case "end":
		s.end(args[0])
	case "truth":
		s.LearnPrefill(entry(), Work{New: s.prefill(args[1])}, 0, true)
	case "counts", "blind":
		s.Counts(verb == "counts", len(args) > 0, s.now)
	case "alive":
		s.Alive(s.now)
	case "down", "up":
		s.SetDown(verb == "down", s.now)
	case "stream":
		s.stream(args)
	case "look":
	default:
		s.t.Fatalf("verb %q is not known", verb)
	}
	s.look()
	return s.word()
}

func (s *stage) stream(args []string) {
	n, _ := strconv.Atoi(args[0])
	took, err := time.ParseDuration(args[2])
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range n {
		name := "s" + strconv.Itoa(i)
		s.accept(name, []string{args[1]})
		s.pass(s.now.Add(took))
		s.content(name)
		s.end(name)
		s.Answered(s.entries[name], s.now)
	}
}

func TestStandingByScript(t *testing.T) {
	files, err := filepath.Glob("testdata/*.script")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".script"), func(t *testing.T) {
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			s := newStage(t)
			lines := bufio.NewScanner(f)
			for n := 1; lines.Scan(); n++ {
				s.line(file, n, lines.Text())
			}
		})
	}
}

func (s *stage) line(file string, n int, line string) {
	s.t.Helper()
	if line == "" || strings.HasPrefix(line, "#") {
		return
	}
	command, want, _ := strings.Cut(line, "->")
	words := strings.Fields(command)
	at, err := time.ParseDuration(words[0])
	if err != nil {
		s.t.Fatal(err)
	}
	s.pass(s.begin.Add(at))
	if got := s.do(words[1], words[2:]); got != strings.TrimSpace(want) {
		s.t.Errorf("%s:%d: %q: got %q, want %q", file, n, strings.TrimSpace(command), got, strings.TrimSpace(want))
	}
}

func TestNothingIsLeftOfRequestsThatEnded(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	for range 50 {
		s := newStage(t)
		for n := range 300 {
			s.pass(s.now.Add(time.Duration(rng.IntN(3000)) * time.Millisecond))
			s.at(rng, n)
			if st := &s.standing; st.young < 0 || st.trial != nil && st.state != standingEjected {
				t.Fatalf("standing %+v", st)
			}
		}
		for name := range s.entries {
			s.end(name)
		}
		if st := &s.standing; len(s.silence.mute) != 0 || st.young != 0 || st.trial != nil {
			t.Fatalf("%d wait for content, standing %+v", len(s.silence.mute), st)
		}
	}
}

// at does something to a request, or books the next one.
func (s *stage) at(rng *rand.Rand, n int) {
	args := []string{fmt.Sprint(n), fmt.Sprint(rng.IntN(2000), "ms")}
	if rng.IntN(4) == 0 {
		args = append(args, "whole")
	}
	if rng.IntN(4) == 0 {
		args = append(args, "forced")
	}
	verb := []string{"book", "book", "content", "more", "answer", "fail", "end", "down", "up", "counts"}[rng.IntN(10)]
	if at := fmt.Sprint(rng.IntN(n + 1)); verb == "book" {
		s.do(verb, args)
	} else if s.entries[at] != nil {
		s.do(verb, []string{at})
	}
}
