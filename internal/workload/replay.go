package workload

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// ReplayConfig says which part of a trace is played, and how fast.
type ReplayConfig struct {
	// Requests bounds how many requests are taken; 0 takes all. Whole conversations are drawn at random until the next
	// would exceed it: a random part of the requests would tear conversations apart and lose the reuse in them.
	Requests int
	// MaxInputTokens leaves out conversations with a longer prompt; 0 leaves out none.
	MaxInputTokens int
	// MaxOutputTokens cuts answers; 0 cuts none.
	MaxOutputTokens int
	// BytesPerToken is how much text stands for a token; 0 means the constant of that name. A tokenizer that makes more
	// tokens of made text than that needs less.
	BytesPerToken float64
	// Compress divides the trace's times: 24 plays 10 minutes in 25 s. 0 means 1.
	Compress float64
	Seed     uint64
}

// Replay returns a trace as text: each request a session of one turn, whose user message is the text of its blocks, so
// that prompts share text exactly as far as they shared blocks.
func Replay(name string, t *Trace, text *Text, c ReplayConfig) (Workload, error) {
	if t.BlockTokens <= 0 {
		return Workload{}, errors.New("replay trace: it has no blocks to make text from")
	}
	if c.Compress < 0 {
		return Workload{}, fmt.Errorf("replay trace: Compress (%v) must not be negative", c.Compress)
	}
	perToken := c.BytesPerToken
	if perToken == 0 {
		perToken = BytesPerToken
	}
	w := Workload{Name: name, Text: text}
	for i, r := range sample(t, c) {
		w.Sessions = append(w.Sessions, Session{
			ID:    strconv.Itoa(i),
			Class: name,
			Start: compress(r.At, c.Compress),
			Turns: []Turn{{User: r.passages(t.BlockTokens, perToken), MaxTokens: outputLimit(r.OutputTokens, c.MaxOutputTokens)}},
		})
	}
	w.sort()
	return w, nil
}

func compress(at time.Duration, by float64) time.Duration {
	if by == 0 {
		return at
	}
	return time.Duration(float64(at) / by)
}

func outputLimit(tokens, limit int) int {
	if limit > 0 {
		tokens = min(tokens, limit)
	}
	return max(tokens, 1)
}

// passages is the text of r's blocks, the last one cut to the prompt's length.
func (r *TraceRequest) passages(blockTokens int, bytesPerToken float64) []Passage {
	var out []Passage
	rest := r.InputTokens
	for id := range r.BlockIDs() {
		n := min(rest, blockTokens)
		out = append(out, Passage{ID: id, Bytes: int(float64(n) * bytesPerToken)})
		rest -= n
	}
	return out
}

// sample returns the requests of whole conversations, drawn in random order, that fit c.
func sample(t *Trace, c ReplayConfig) []*TraceRequest {
	all := conversations(t)
	rng := newRand(c.Seed, 1)
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	var out []*TraceRequest
	for _, conversation := range all {
		if c.Requests > 0 && len(out)+len(conversation) > c.Requests {
			break
		}
		if !tooLong(conversation, c.MaxInputTokens) {
			out = append(out, conversation...)
		}
	}
	return out
}

func tooLong(conversation []*TraceRequest, limit int) bool {
	for _, r := range conversation {
		if limit > 0 && r.InputTokens > limit {
			return true
		}
	}
	return false
}

// conversations groups requests by their second block, or by themselves when they have one: the first block is a
// system prompt common to most of Mooncake's users.
func conversations(t *Trace) [][]*TraceRequest {
	index := map[uint64]int{}
	var all [][]*TraceRequest
	for i := range t.Requests {
		r := &t.Requests[i]
		id, ok := r.secondBlock()
		at, known := index[id]
		if ok && known {
			all[at] = append(all[at], r)
			continue
		}
		if ok {
			index[id] = len(all)
		}
		all = append(all, []*TraceRequest{r})
	}
	return all
}

func (r *TraceRequest) secondBlock() (uint64, bool) {
	n := 0
	for id := range r.BlockIDs() {
		if n++; n == 2 {
			return id, true
		}
	}
	return 0, false
}
