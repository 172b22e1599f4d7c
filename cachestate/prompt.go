package cachestate

import "slices"

// Prompt is what routing knows of a prompt. It holds no text. Scheme.Prompt fills it; the slices are overwritten when
// it is filled again.
type Prompt struct {
	// Keys are the prompt's keys from its start to its end, the root's first; at most MaxKeys.
	Keys []Key
	// Offsets are the content bytes between the end of the root and each key's boundary.
	// Invariant: Offsets, Odd and High are as long as Keys, and never fall. Two keys can share an offset.
	Offsets []uint32
	// Odd and High are, of the content up to each key's boundary, the bytes that are no ASCII letters or spaces, and those
	// from 0x80 on. They tell how dense a text is in tokens. Each end of a message counts as a few odd bytes.
	Odd, High []uint32
	// Bytes counts the content after the root, also what lies beyond the last key.
	Bytes int64
	// Sure is how many of the keys lie before the first message that a model wrote. Templates may render such a message,
	// and what follows it, in another way once the conversation has gone on. At most len(Keys).
	Sure int
	// Turn is what the prompt's last message is.
	Turn Turn
	// Next is the same prompt by the key scheme that is being changed to, within the window in which both are computed; else
	// nil. It has no Next of its own.
	Next *Prompt
	// Alike says of a Next that it is of the same walk: what lies before an offset is the same in both.
	Alike bool

	hasher *hasher // scratch of Scheme.Prompt, kept so that filling a Prompt again allocates nothing
}

// Last returns a prompt with the last key of p alone: what Density learns from.
func (p *Prompt) Last() *Prompt {
	i := len(p.Keys) - 1
	if i < 0 || len(p.Odd) != len(p.Keys) {
		return &Prompt{Bytes: p.Bytes}
	}
	return &Prompt{
		Keys: []Key{p.Keys[i]}, Offsets: []uint32{p.Offsets[i]}, Odd: []uint32{p.Odd[i]}, High: []uint32{p.High[i]}, Bytes: p.Bytes,
	}
}

// Turn is a kind of turn: templates treat the messages before them differently.
type Turn uint8

// The kinds of turn.
const (
	TurnUser  Turn = iota // a message of a user, or a plain prompt
	TurnTools             // the result of a tool: the model goes on with what it was doing
	numTurns
)

// Valid reports whether t is one of the kinds.
func (t Turn) Valid() bool { return t < numTurns }

// Clone returns a copy that shares nothing with p.
func (p *Prompt) Clone() *Prompt {
	return &Prompt{
		Keys: slices.Clone(p.Keys), Offsets: slices.Clone(p.Offsets), Odd: slices.Clone(p.Odd), High: slices.Clone(p.High),
		Bytes: p.Bytes, Sure: p.Sure, Turn: p.Turn, Next: p.Next.cloneNext(), Alike: p.Alike,
	}
}

func (p *Prompt) cloneNext() *Prompt {
	if p == nil {
		return nil
	}
	return p.Clone()
}

// Forms returns the prompt and, within a window, its Next.
func (p *Prompt) Forms() []*Prompt {
	if p.Next == nil {
		return []*Prompt{p}
	}
	return []*Prompt{p, p.Next}
}

// twins returns for each key of p the one of its Next that stands for about as much: the first that no key before it has
// and whose boundary does not lie behind; 0 where there is none.
func (p *Prompt) twins() []Key {
	if p.Next == nil {
		return nil
	}
	twins, j := make([]Key, len(p.Keys)), 0
	for i := range p.Keys {
		if j < min(len(p.Next.Keys), len(p.Next.Offsets)) && i < len(p.Offsets) && p.Next.Offsets[j] <= p.Offsets[i] {
			twins[i] = p.Next.Keys[j]
			j++
		}
	}
	return twins
}

// TotalTokens estimates the prompt's length in tokens at the given content bytes per token.
func (p *Prompt) TotalTokens(bytesPerToken float64) int {
	return int(tokensAt(p.Bytes, bytesPerToken))
}

// Tokens estimates how many tokens an engine that holds the first n keys need not compute. It is below TotalTokens,
// since engines compute at least the last token of a prompt to have something to sample from.
func (p *Prompt) Tokens(n int, bytesPerToken float64) int {
	n = min(n, len(p.Offsets))
	if n <= 0 {
		return 0
	}
	tokens := tokensAt(int64(p.Offsets[n-1]), bytesPerToken)
	return int(max(0, min(tokens, tokensAt(p.Bytes, bytesPerToken)-1)))
}

// tokensAt converts content bytes to whole tokens. A rate that cannot be (zero, negative, NaN) counts as one byte a
// token, which over-states sizes and so makes nobody believe in too much cache.
func tokensAt(bytes int64, bytesPerToken float64) int64 {
	if !(bytesPerToken > 0) {
		return bounded(bytes)
	}
	return bounded(int64(min(float64(bytes)/bytesPerToken, maxTokens)))
}

// maxTokens is more than any cache holds, and so little that the sums over thousands of requests do not overflow.
const maxTokens = 1 << 48

// bounded holds a number of tokens from elsewhere between 0 and maxTokens.
func bounded(tokens int64) int64 { return min(max(tokens, 0), maxTokens) }

func (p *Prompt) hasherFor() *hasher {
	if p.hasher == nil || p.hasher.prompt != p { // the second: p is a copy of a Prompt that owns the hasher
		p.hasher = newHasher(p)
	}
	return p.hasher
}
