package book

import "testing"

func TestOnlyForeignTokensWait(t *testing.T) {
	tests := []struct {
		name            string
		waiting, tokens int // of the engine
		own, ownWaiting int
		ownTokens       int64
		wants           int
	}{
		{"all foreign", 3, 9000, 0, 0, 0, 9000},
		{"some ours", 3, 9000, 1, 1, 4000, 5000},
		{"all ours", 2, 9000, 2, 2, 8000, 0},
		{"ours are larger than it says", 2, 1000, 1, 1, 8000, 0},
		{"it does not say", 3, 0, 0, 0, 0, 0},
	}
	for _, tt := range tests {
		var f foreign
		r := Reading{Waiting: tt.waiting, WaitingTokens: tt.tokens}
		f.read(r, tt.own, tt.ownWaiting)
		f.readTokens(r, tt.ownTokens)
		if f.tokens != tt.wants {
			t.Errorf("%s: %d tokens wait, want %d", tt.name, f.tokens, tt.wants)
		}
		if f.miss(); f.tokens != tt.wants/2 {
			t.Errorf("%s: %d tokens after a missed reading, want %d", tt.name, f.tokens, tt.wants/2)
		}
	}
}
