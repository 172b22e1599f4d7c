package simengine

import (
	"math/rand/v2"
	"strings"
	"testing"
)

const english = "A router that sends every request of one conversation to the same engine saves most of the prefill work, " +
	"because the engine still holds the blocks of the earlier turns. When that engine is busy, however, " +
	"waiting for it may take longer than computing the prompt again somewhere else. The right choice " +
	"therefore depends on two numbers: how many tokens are already cached, and how many seconds of work are " +
	"queued in front of them. "

func TestTextSurvivesTokens(t *testing.T) {
	tok := newTokenizer()
	rng := rand.New(rand.NewPCG(1, 2))
	const letters = "abcdetaoin  ,.<|>{}\":0129ABé\n\t\x00\xff"
	for range 2000 {
		var b strings.Builder
		for range rng.IntN(60) {
			b.WriteByte(letters[rng.IntN(len(letters))])
		}
		ids := tok.encode(nil, b.String())
		if got := tok.decode(ids); got != b.String() {
			t.Fatalf("decode(encode(%q)) = %q", b.String(), got)
		}
	}
}

func TestEveryTokenHasOneText(t *testing.T) {
	tok := newTokenizer()
	seen := map[string]Token{}
	for id := range tok.size() {
		s := tok.text(id)
		if s == "" {
			t.Fatalf("token %d has no text", id)
		}
		if other, dup := seen[s]; dup && id < baseWord {
			t.Fatalf("tokens %d and %d are both %q", other, id, s)
		}
		seen[s] = id
	}
	if tok.size() > 1<<17 {
		t.Errorf("%d ids do not fit into 17 bits", tok.size())
	}
	if got := tok.text(tok.size()); got != "" {
		t.Errorf("text of an unknown token = %q, want none", got)
	}
}

func TestCommonPrefixSharesTokensButTheLast(t *testing.T) {
	tok := newTokenizer()
	text := strings.Repeat(english, 4)
	whole := tok.encode(nil, text)
	for cut := range len(text) {
		part := tok.encode(nil, text[:cut]+"#")
		shared := 0
		for shared < min(len(part), len(whole)) && part[shared] == whole[shared] {
			shared++
		}
		if kept := len(tok.decode(whole[:shared])); kept < cut-8 {
			t.Fatalf("cut at %d keeps only %d bytes of common tokens", cut, kept)
		}
	}
}

func TestEnglishHasAboutFourBytesAToken(t *testing.T) {
	mean := float64(len(english)) / float64(len(newTokenizer().encode(nil, english)))
	if mean < 3.6 || mean > 4.6 {
		t.Errorf("mean token length = %.2f bytes, want about 4", mean)
	}
}

func BenchmarkEncode400kB(b *testing.B) {
	tok := newTokenizer()
	text := strings.Repeat(english, 400_000/len(english))
	ids := tok.encode(nil, text)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		ids = tok.encode(ids[:0], text)
	}
}
