package workload

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// SharedConfig describes many users of few applications: every request is a single question below one of several long
// system prompts, some far more popular than others.
type SharedConfig struct {
	Requests int
	Prompts  int           // number of system prompts
	Zipf     float64       // exponent of their popularity: 0 is even, 1 gives the k-th most popular 1/k of the first
	Span     time.Duration // requests come evenly at random within it
	System   Lengths       // tokens of a system prompt
	Question Lengths       // tokens of a user message
	Answer   Lengths       // limit of each answer, in tokens
	Seed     uint64
}

// Validate reports every field out of range.
func (c *SharedConfig) Validate() error {
	return errors.Join(
		atLeast("Requests", c.Requests, 1),
		atLeast("Prompts", c.Prompts, 1),
		atLeast("Zipf", c.Zipf, 0),
		atLeast("Span", c.Span, 0),
	)
}

// Shared makes questions below shared system prompts.
func Shared(name string, text *Text, c SharedConfig) (Workload, error) {
	if err := c.Validate(); err != nil {
		return Workload{}, fmt.Errorf("make shared-prompt workload: %w", err)
	}
	rng := newRand(c.Seed, 3)
	systems := prompts(c.Prompts, c.System, rng)
	popularity := newZipf(c.Prompts, c.Zipf)
	w := Workload{Name: name, Text: text}
	for i := range c.Requests {
		w.Sessions = append(w.Sessions, Session{
			ID:     strconv.Itoa(i),
			Class:  name,
			Start:  within(c.Span, rng),
			System: systems[popularity.draw(rng)],
			Turns:  []Turn{{User: c.Question.passage(rng), MaxTokens: c.Answer.draw(rng)}},
		})
	}
	w.sort()
	return w, nil
}
