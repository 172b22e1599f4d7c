package workload

import (
	"strings"
	"testing"
	"time"
)

func TestReplayedPromptsShareTextAsFarAsBlocks(t *testing.T) {
	text := NewText(1)
	w, err := Replay("trace", &twoRequests, text, ReplayConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Sessions) != 2 {
		t.Fatalf("%d sessions, want 2", len(w.Sessions))
	}
	a, b := w.text(w.Sessions[0].Turns[0].User), w.text(w.Sessions[1].Turns[0].User)
	if len(a) != 4800 || len(b) != 2400 {
		t.Errorf("prompts have %d and %d bytes, want 4 a token: 4800 and 2400", len(a), len(b))
	}
	if a[:2048] != b[:2048] {
		t.Error("the common block has two texts")
	}
	if strings.HasPrefix(a[2048:], b[2048:2060]) {
		t.Error("different blocks have one text")
	}
}

func TestReplayCompressesTimeAndCutsAnswers(t *testing.T) {
	w, err := Replay("trace", &twoRequests, NewText(1), ReplayConfig{Compress: 2, MaxOutputTokens: 10})
	if err != nil {
		t.Fatal(err)
	}
	if got := w.Sessions[1].Start; got != 1500*time.Millisecond {
		t.Errorf("3 s compressed by 2 is %v", got)
	}
	if a, b := w.Sessions[0].Turns[0].MaxTokens, w.Sessions[1].Turns[0].MaxTokens; a != 10 || b != 7 {
		t.Errorf("answers of 50 and 7 tokens cut to 10 are %d and %d", a, b)
	}
}

func TestSampleTakesWholeConversations(t *testing.T) {
	trace, err := ConversationSlice()
	if err != nil {
		t.Fatal(err)
	}
	size := map[uint64]int{}
	for i := range trace.Requests {
		if id, ok := trace.Requests[i].secondBlock(); ok {
			size[id]++
		}
	}
	picked := sample(&trace, ReplayConfig{Requests: 200, MaxInputTokens: 10_000, Seed: 3})
	got := map[uint64]int{}
	for _, r := range picked {
		if r.InputTokens > 10_000 {
			t.Errorf("a prompt of %d tokens was taken", r.InputTokens)
		}
		if id, ok := r.secondBlock(); ok {
			got[id]++
		}
	}
	for id, n := range got {
		if n != size[id] {
			t.Errorf("conversation %d: %d of its %d requests", id, n, size[id])
		}
	}
	if len(picked) < 150 || len(picked) > 200 {
		t.Errorf("%d requests, want close to and at most 200", len(picked))
	}
}

func TestReplayNeedsBlocksAndSaneTime(t *testing.T) {
	if _, err := Replay("x", &Trace{}, NewText(1), ReplayConfig{}); err == nil {
		t.Error("a trace without blocks has no error")
	}
	if _, err := Replay("x", &twoRequests, NewText(1), ReplayConfig{Compress: -1}); err == nil {
		t.Error("negative compression has no error")
	}
}
