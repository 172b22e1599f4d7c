package simengine

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The numbers are those of SGLang's own parity fixture (ENGINES 10.2).
func TestSGLangWireHashesAreThoseOfTheRealEngine(t *testing.T) {
	tests := []struct {
		page   int
		tokens []Token
		want   []int64
	}{
		{4, []Token{1, 2, 3, 4, 5}, []int64{-3488128144981237669}},
		{2, []Token{10, 20, 30, 40, 50, 60, 70, 80}, []int64{
			978178666101069530, -895308556211281782, -8033692805846017938, 835415944263129316,
		}},
		{1, []Token{7, 8, 9}, []int64{-1702009526849766914, 903318264012984157, -8265893088400908305}},
	}
	for _, tt := range tests {
		h := chainer{kind: KindSGLang, blockTokens: tt.page, wire: true}
		var got []int64
		for _, l := range h.chain(tt.tokens, "", "") {
			got = append(got, int64(l.wire))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("page %d: wire hashes (-want +got):\n%s", tt.page, diff)
		}
	}
}

func TestRealmAndSeedSeparateChains(t *testing.T) {
	tokens := []Token{1, 2, 3, 4}
	keys := map[uint64]bool{}
	for _, h := range []chainer{{kind: KindVLLM, blockTokens: 4}, {kind: KindVLLM, blockTokens: 4, seed: 1}} {
		for _, realm := range []string{"", "a"} {
			keys[h.chain(tokens, realm, "")[0].key] = true
		}
	}
	if len(keys) != 4 {
		t.Errorf("2 seeds × 2 realms give %d keys, want 4", len(keys))
	}
}

func TestSGLangHashesShowTheSaltButNotTheAdapter(t *testing.T) {
	h := chainer{kind: KindSGLang, blockTokens: 2, wire: true}
	plain, adapter := h.chain([]Token{1, 2}, "", "")[0], h.chain([]Token{1, 2}, "adapter", "")[0]
	salted := h.chain([]Token{1, 2}, "salt", "salt")[0]
	if plain.wire != adapter.wire || plain.key == adapter.key {
		t.Errorf("adapter: wire %x and %x, want equal; keys %x and %x, want other", plain.wire, adapter.wire, plain.key, adapter.key)
	}
	if plain.wire == salted.wire {
		t.Errorf("salted wire hash %x is the plain one", salted.wire)
	}
}
