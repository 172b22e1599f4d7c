package forward

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// tokens is the payload of a TOKENS frame: ids of the prompt, or of the text that the next CONTENT frame brings.
type tokens struct {
	Flags tokenFlags
	IDs   []uint32
}

// tokenFlags say what the ids of a TOKENS frame are.
type tokenFlags byte

const (
	tokensPrompt   tokenFlags = 1 << iota // of the prompt
	tokensMore                            // of the prompt, and more of it follow
	tokensThought                         // the text ends within a thought
	tokensFinished                        // the text ends the answer
	tokensLost                            // some of the text has no ids, or is none: nobody else can go on
)

// maxTokens bounds the ids of one TOKENS frame: at most five bytes each.
const maxTokens = 64 << 10

func appendTokens(b []byte, t *tokens) []byte {
	b = append(b, byte(t.Flags))
	b = binary.AppendUvarint(b, uint64(len(t.IDs)))
	for _, id := range t.IDs {
		b = binary.AppendUvarint(b, uint64(id))
	}
	return b
}

// parseTokens appends the ids to those of t, whose memory it uses.
func parseTokens(b []byte, t *tokens) error {
	r := engine.NewReader(b)
	t.Flags = tokenFlags(r.Byte())
	n := r.Int(maxTokens)
	for i := 0; i < n && r.Err() == nil; i++ {
		t.IDs = append(t.IDs, uint32(r.Int(math.MaxUint32)))
	}
	if err := r.Err(); err != nil {
		return fmt.Errorf("parse tokens frame: %w", err)
	}
	return nil
}

// tap tells the ingress the ids of an answer's tokens, each with the text that the client gets of it.
type tap struct {
	held []uint32 // ids whose text has not gone out: half a character, or a mark that a parser swallows
	says bool     // text has come since the last that went out
	next tokens   // of what goes out next
	told bool     // the prompt's ids
}

// earlyPrompt is the longest list of a prompt's ids, in bytes of JSON, that is told before the first content: it is parsed in
// 0.1 ms. The first token does not wait for longer ones, for which another engine could not go on in the meantime.
const earlyPrompt = 64 << 10

// note takes in what an event says. Out reports whether something went out to the client with it.
func (t *tap) note(n openai.Noted, out bool) {
	t.held = append(t.held, n.IDs...)
	text := n.Text || n.Thought || n.Finished
	if n.Other || text && len(t.held) == 0 && !n.Finished || len(t.held) > maxTokens-len(t.next.IDs) {
		t.next.Flags |= tokensLost
	}
	if text {
		t.says = true
		t.set(tokensThought, n.Thought && !n.Text)
		t.set(tokensFinished, n.Finished)
	}
	if out && t.says {
		t.next.IDs, t.held, t.says = append(t.next.IDs, t.held...), t.held[:0], false
	}
}

func (t *tap) set(f tokenFlags, on bool) {
	if t.next.Flags &^= f; on {
		t.next.Flags |= f
	}
}

// flush tells to of the text that goes out next.
func (t *tap) flush(to receiver) error {
	err := to.tokens(&t.next)
	t.next.IDs = t.next.IDs[:0]
	return err
}

// tellPrompt tells to of the prompt.
func (t *tap) tellPrompt(ids []uint32, to receiver) error {
	for t.told = true; len(ids) > 0; {
		n := min(len(ids), maxTokens)
		part := tokens{tokensPrompt, ids[:n]}
		if ids = ids[n:]; len(ids) > 0 {
			part.Flags |= tokensMore
		}
		if err := to.tokens(&part); err != nil {
			return err
		}
	}
	return nil
}
