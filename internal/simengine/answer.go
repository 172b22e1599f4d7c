package simengine

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"

	"github.com/cespare/xxhash/v2"
)

const (
	// wordsPerSentence gives answers the shape of text.
	wordsPerSentence = 12
	// thoughtTail is how many tokens end a thought: its mark and an empty line.
	thoughtTail = 3
)

// answerSpec says what limits an answer.
type answerSpec struct {
	choice   int  // index of the choice: each has its own text
	limit    int  // most tokens
	minimum  int  // min_tokens
	ignore   bool // ignore_eos: go on to the limit
	thinking bool // begin with a thought
}

// answerer writes answers: functions of the token context and nothing else. A context that ends in the beginning of an
// answer has the rest of it as its answer, whoever rendered the context, so that a broken answer can be checked to have been
// gone on with token by token.
type answerer struct {
	tok  *tokenizer
	mean int     // natural length in tokens
	odd  float64 // share of answers whose tokens are not those of their text
}

// answer returns the tokens of an answer, how many of them are the thought, and whether it ended by itself, in which case
// the last token is the end mark. It has at least one token.
func (a *answerer) answer(context []Token, spec answerSpec) (ids []Token, thought int, stopped bool) {
	for _, begun := range []struct {
		at       int
		thinking bool
	}{{a.textBegins(context), false}, {a.thoughtBegins(context), true}} {
		prompt, done := context[:max(begun.at, 0)], context[max(begun.at, 0):]
		if len(prompt) == 0 {
			continue
		}
		whole := spec
		whole.thinking, whole.limit = begun.thinking, spec.limit+len(done)
		if spec.minimum > 0 {
			whole.minimum += len(done)
		}
		ids, thought, stopped = a.whole(prompt, whole)
		if len(ids) > len(done) && slices.Equal(ids[:len(done)], done) {
			return ids[len(done):], max(thought-len(done), 0), stopped
		}
	}
	return a.whole(context, spec)
}

// textBegins returns where the answer that the context may end in begins; -1 when it ends in none. Of the words of an answer
// only the first has no space before it.
func (a *answerer) textBegins(context []Token) int {
	for i, id := range slices.Backward(context) {
		isWord := id >= baseWord && id < a.tok.baseSpec
		switch {
		case isWord && (id-baseWord)%2 == 0:
			return i
		case !isWord && id != '.' && id != ' ' && id != 'a': // the latter two are an odd word
			return -1
		}
	}
	return -1
}

// thoughtBegins returns where the thought begins that the last turn of the context has; -1 when it has none.
func (a *answerer) thoughtBegins(context []Token) int {
	think, start := a.tok.id(tokenThink), a.tok.id(tokenStart)
	for i, id := range slices.Backward(context) {
		switch id {
		case think:
			return i
		case start:
			return -1
		}
	}
	return -1
}

// whole returns the whole answer to a prompt, as answer does.
func (a *answerer) whole(prompt []Token, spec answerSpec) (ids []Token, thought int, stopped bool) {
	rng := rand.New(rand.NewPCG(hashTokens(prompt), uint64(spec.choice)))
	natural := max(a.mean/2+rng.IntN(a.mean+1), spec.minimum, 1)
	if natural = min(natural, spec.limit+1); spec.ignore {
		natural = spec.limit
	}
	odd := rng.Float64() < a.odd
	if spec.thinking {
		ids = append(ids, a.tok.id(tokenThink), '\n')
		ids = a.words(ids, rng, max(natural/2, 1), false)
		ids = append(ids, '\n', a.tok.id(tokenThinkEnd), '\n', '\n')
		thought = len(ids)
	}
	ids = a.words(ids, rng, max(natural-len(ids), 1), odd)
	if spec.ignore || len(ids)+1 > spec.limit {
		ids = ids[:min(len(ids), spec.limit)]
		return ids, min(thought, len(ids)), false
	}
	return append(ids, a.tok.id(tokenEnd)), thought, true
}

// words appends n tokens of text. An odd text has one word as two tokens that the tokenizer would make one of: a sampler
// chooses tokens one by one, and nothing holds it to those that the text is read as later.
func (a *answerer) words(ids []Token, rng *rand.Rand, n int, odd bool) []Token {
	start, oddAt := len(ids), -1
	if odd && n > 2 {
		oddAt = 1 + rng.IntN(n-2)
	}
	for len(ids)-start < n {
		at := len(ids) - start
		switch word := Token(baseWord + 2*rng.IntN(len(a.tok.list))); {
		case at == 0:
			ids = append(ids, word)
		case at == oddAt:
			ids = append(ids, ' ', 'a')
		case at%(wordsPerSentence+1) == wordsPerSentence:
			ids = append(ids, '.')
		default:
			ids = append(ids, word+1)
		}
	}
	return ids
}

func hashTokens(ids []Token) uint64 {
	b := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return xxhash.Sum64(b)
}
