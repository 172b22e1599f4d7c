package main

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// testMix is a few conversations without the trace.
func testMix(chats int) *mix {
	return &mix{writer: newWriter(1, 0.2, 8), rng: rand.New(rand.NewPCG(1, 1)), chats: chats, streams: 0.5, talking: map[uint64]bool{}}
}

func TestConversationsGoOnFromTheirAnswers(t *testing.T) {
	m, turns := testMix(20), 0
	for c := m.take(); c != nil; c = m.take() {
		for _, msg := range c.Messages[:len(c.Messages)-1] {
			if msg.Role == "assistant" && msg.Content != "answer" {
				t.Fatalf("assistant message %q, want the answer as it came", msg.Content)
			}
		}
		if last := c.Messages[len(c.Messages)-1].Role; last != "user" && last != "tool" {
			t.Fatalf("the last message is of %q", last)
		}
		m.put(c, &answer{content: "answer"})
		turns++
	}
	if m.begun != 20 || turns <= 20 || turns != m.sent || m.left() {
		t.Errorf("%d conversations, %d turns, %d sent, more left: %v; want 20, more than that, as many, none", m.begun, turns, m.sent, m.left())
	}
}

func TestRecordedConversationsDoNotOverlap(t *testing.T) {
	m := testMix(0)
	m.trace = []traced{{"a1", 1}, {"a2", 1}, {"b1", 2}}
	first, second := m.take(), m.take()
	if first.Messages[0].Content != "a1" || second.Messages[0].Content != "b1" {
		t.Fatalf("took %q and %q, want a1 and b1", first.Messages[0].Content, second.Messages[0].Content)
	}
	if c := m.take(); c != nil {
		t.Errorf("took %q while the one before is not answered", c.Messages[0].Content)
	}
	m.put(first, nil)
	if c := m.take(); c == nil || c.Messages[0].Content != "a2" {
		t.Errorf("took %v after the answer, want a2", c)
	}
}

func TestVariantPartsWhereAKeyEnds(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for range 20 {
		r := testMix(1).take().request
		r.Messages[len(r.Messages)-1].Content = strings.Repeat("many words ", 200)
		at := randomPlace(&r, rng)
		back := at.boundary(0, &r, "rest")
		if back.message != at.message || back.at > at.at {
			t.Fatalf("boundary of %+v is %+v", at, back)
		}
		shared := func(p place) int {
			v, n := p.variant(&r, "rest"), 0
			a, b := keysOf(0, &r), keysOf(0, &v)
			for n < min(len(a), len(b)) && a[n] == b[n] {
				n++
			}
			return n
		}
		if shared(back) != shared(at) {
			t.Errorf("at %+v %d keys are shared, at %+v %d", at, shared(at), back, shared(back))
		}
		if back.at > 0 && shared(place{back.message, back.at - 1}) == shared(back) {
			t.Errorf("%+v is not the first place that shares %d keys", back, shared(back))
		}
	}
}

func TestVerdicts(t *testing.T) {
	tests := []struct {
		name   string
		e      estimate
		hit    int
		marked bool
		want   string
	}{
		{"right", estimate{Overlap: 160, Exact: true}, 160, false, "right"},
		{"right in whole blocks", estimate{Overlap: 170, Exact: true}, 160, false, "right"},
		{"too high", estimate{Overlap: 176, Exact: true}, 160, true, "wrong"},
		{"one block too high between known points", estimate{Overlap: 176}, 160, false, "right"},
		{"two blocks too high between known points", estimate{Overlap: 192}, 160, false, "wrong"},
		{"a part of the only block, reckoned", estimate{Overlap: 10}, 16, false, "right"},
		{"nothing reckoned", estimate{}, 16, false, "low"},
		{"empty", estimate{Exact: true}, 160, false, "low"},
		{"empty and marked", estimate{Exact: true}, 160, true, "lower"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var v verdict
			v.add(tt.e, truth{Hit: tt.hit}, tt.marked)
			got := map[string]int{"right": v.right, "wrong": v.wrong, "low": v.low, "lower": v.lower}
			if got[tt.want] != 1 || v.right+v.wrong+v.low+v.lower != 1 {
				t.Errorf("verdict %+v, want %s", v, tt.want)
			}
		})
	}
}

func TestSpreadCountsInBlocksAndShares(t *testing.T) {
	var s spread
	s.add(16, estimate{Overlap: 96}, truth{Prompt: 400, Hit: 64})  // 2 blocks of slack 1
	s.add(16, estimate{Overlap: 0}, truth{Prompt: 4000, Hit: 160}) // 2 times 80 tokens too low
	s.add(16, estimate{Overlap: 60}, truth{Prompt: 400, Hit: 48})  // less than one block
	if s.past != 2 || s.many != 1 || s.sum != 2+2+0.75 || s.over != 2.75 {
		t.Errorf("spread %+v, want past 2, many 1, sum 4.75, over 2.75", s)
	}
}

func TestStreamIsReadToItsEnd(t *testing.T) {
	text := `data: {"choices":[{"index":0,"delta":{"reasoning":"why"}}]}` + "\n\n" +
		`data: {"choices":[{"index":1,"delta":{"content":"other"}}]}` + "\n\n" +
		`data: {"choices":[{"index":0,"delta":{"content":"yes"}}]}` + "\n\n" +
		`data: {"choices":[],"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}` + "\n\n" + "data: [DONE]\n\n"
	a, err := readStream(strings.NewReader(text), time.Now())
	if err != nil || a.content != "yes" || a.reasoning != "why" || a.prompt != 9 || a.cached != 4 || string(a.raw) != text {
		t.Errorf("answer %+v, error %v", a, err)
	}
	for _, broken := range []string{strings.TrimSuffix(text, "data: [DONE]\n\n"), `data: {"error":{"message":"x"}}` + "\n\n"} {
		if _, err := readStream(strings.NewReader(broken), time.Now()); err == nil {
			t.Errorf("a stream that ends with %q is taken for whole", broken[max(0, len(broken)-40):])
		}
	}
}
