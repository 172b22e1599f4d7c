package kvevents

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var verdictNames = map[verdict]string{
	apply: "apply", repeated: "repeated", late: "late", early: "early", restarted: "restarted",
}

func TestTracker(t *testing.T) {
	// A step is "NUMBER PAYLOAD" for a batch, which is taken when the verdict says so, or a call.
	tests := []struct{ name, give, want string }{
		{"in order", "0 a, 1 b, 2 c", "apply apply apply"},
		{"in order with equal payloads", "0 a, 1 a, 2 a", "apply apply apply"},
		{"repeated", "0 a, 1 b, 1 b, 0 a, 2 c", "apply apply repeated repeated apply"},
		{"missing", "0 a, 2 c, 1 b, 2 c", "apply early apply apply"},
		{"first batch missing", "3 d", "early"},
		{"lower with another payload", "0 a, 1 b, 2 c, 1 x", "apply apply apply restarted"},
		{"0 again", "0 a, 1 b, 0 x", "apply apply restarted"},
		{"given up and late", "0 a, skip 3, 3 d, 2 c, 1 b", "apply apply late late"},
		{"given up for ever", "0 a, skip 999, 999 z, 744 y, 743 x", "apply apply late restarted"},
		{"0 given up is a restart", "skip 2, 2 c, 0 a, 1 b", "apply restarted late"},
		{"doubt and the next", "0 a, suspect, 1 b, 3 d", "apply apply early"},
		{"doubt and a repetition", "0 a, suspect, 0 a, 1 b", "apply repeated apply"},
		{"doubt and a gap", "0 a, suspect, 2 c", "apply restarted"},
		{"doubt and a late batch", "0 a, skip 2, 2 c, suspect, 1 b", "apply apply restarted"},
		{"doubt before anything", "suspect, 5 f", "early"},
		{"doubt that is over", "0 a, suspect, trust, 2 c", "apply early"},
		{"another process", "0 a, 1 b, reset, 1 b, 0 a", "apply apply early apply"},
		{"too far back", "skip 99999, 99999 z, 83616 y, 83615 x", "apply restarted restarted"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var tr tracker
			var got []string
			for step := range strings.SplitSeq(tt.give, ", ") {
				var seq uint64
				var payload rune
				switch {
				case step == "suspect":
					tr.suspect()
				case step == "trust":
					tr.trust()
				case step == "reset":
					tr.reset()
				case strings.HasPrefix(step, "skip "):
					fmt.Sscanf(step, "skip %d", &seq)
					tr.skip(seq)
				default:
					fmt.Sscanf(step, "%d %c", &seq, &payload)
					v := tr.judge(seq, uint64(payload))
					if v == apply {
						tr.took(uint64(payload))
					}
					got = append(got, verdictNames[v])
				}
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("verdicts on %q (-want +got):\n%s", tt.give, diff)
			}
		})
	}
}

func TestTrackerRemembersAsLongAsItSays(t *testing.T) {
	var tr tracker
	const n = remembered + 1000
	for seq := range uint64(n) {
		tr.took(seq * 7)
	}
	for _, tt := range []struct {
		seq  uint64
		want verdict
	}{{n - 1, repeated}, {n - remembered, repeated}, {n - remembered - 1, restarted}, {0, restarted}} {
		if got := tr.judge(tt.seq, tt.seq*7); got != tt.want {
			t.Errorf("batch %d of %d once more: %s, want %s", tt.seq, n, verdictNames[got], verdictNames[tt.want])
		}
	}
	if seq, ok := tr.last(); seq != n-1 || !ok {
		t.Errorf("last is %d, %v", seq, ok)
	}
}

func TestHashOfNothingIsNoBatchGivenUp(t *testing.T) {
	var tr tracker
	tr.took(5)
	tr.took(givenUp)
	tr.took(6)
	if v := tr.judge(1, givenUp); v != repeated {
		t.Errorf("a batch whose hash is 0 is %s when it comes again", verdictNames[v])
	}
	if v := tr.judge(1, 7); v != restarted {
		t.Errorf("another batch in the place of one whose hash is 0 is %s", verdictNames[v])
	}
}

func TestHold(t *testing.T) {
	var h hold
	for _, seq := range []uint64{5, 3, 9, 3, 5} {
		h.add(message{seq: seq, payload: make([]byte, 10)})
	}
	var got []int
	for !h.empty() {
		if first, m := h.first(), h.pop(); first != m.seq || m.seq != []uint64{3, 5, 9}[len(got)] {
			t.Errorf("batch %d and %d come out at place %d", first, m.seq, len(got))
		}
		got = append(got, h.bytes)
	}
	if diff := cmp.Diff([]int{20, 10, 0}, got); diff != "" {
		t.Errorf("bytes that are left (-want +got):\n%s", diff)
	}
	for seq := range uint64(maxHeld) {
		if h.full() {
			t.Fatalf("full with %d batches", seq)
		}
		h.add(message{seq: seq})
	}
	if !h.full() {
		t.Errorf("not full with %d batches", maxHeld)
	}
	h.clear()
	h.add(message{payload: make([]byte, maxHeldBytes)})
	if !h.full() {
		t.Errorf("not full with %d bytes", maxHeldBytes)
	}
}

func TestPausesBetweenAttempts(t *testing.T) {
	tests := []struct{ pause, trouble, want time.Duration }{
		{0, 0, 100 * time.Millisecond},
		{100 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond},
		{400 * time.Millisecond, time.Second, 500 * time.Millisecond},
		{500 * time.Millisecond, 10 * time.Second, 500 * time.Millisecond},
		{500 * time.Millisecond, 15 * time.Second, 750 * time.Millisecond},
		{2 * time.Second, time.Minute, 3 * time.Second},
		{3 * time.Second, time.Hour, 5 * time.Second},
		{5 * time.Second, 100 * time.Hour, 5 * time.Second},
	}
	for _, tt := range tests {
		if got := nextPause(tt.pause, tt.trouble); got != tt.want {
			t.Errorf("after a pause of %v, %v into the trouble: %v, want %v", tt.pause, tt.trouble, got, tt.want)
		}
	}
}
