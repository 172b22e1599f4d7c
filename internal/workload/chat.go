package workload

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"
)

// ChatConfig describes conversations of several turns. Each turn's prompt is the one before, its answer and a new user
// message, so that all but the first can be served from cache by the engine that served the turn before.
type ChatConfig struct {
	Sessions           int
	MinTurns, MaxTurns int           // turns are drawn evenly between them
	Span               time.Duration // sessions begin evenly at random within it
	Think              time.Duration // mean pause between an answer and the next turn, at least a fifth of it
	SystemPrompts      int           // sessions share this many system prompts, evenly; 0 for none
	System             Lengths       // tokens of a system prompt
	First              Lengths       // tokens of the first user message: a pasted document, a long question
	Next               Lengths       // tokens of later user messages
	Answer             Lengths       // limit of each answer, in tokens
	Seed               uint64
}

// Validate reports every field out of range.
func (c *ChatConfig) Validate() error {
	return errors.Join(
		atLeast("Sessions", c.Sessions, 1),
		atLeast("MinTurns", c.MinTurns, 1),
		atLeast("MaxTurns", c.MaxTurns, c.MinTurns),
		atLeast("SystemPrompts", c.SystemPrompts, 0),
		atLeast("Span", c.Span, 0),
		atLeast("Think", c.Think, 0),
	)
}

// Chat makes multi-turn conversations.
func Chat(name string, text *Text, c ChatConfig) (Workload, error) {
	if err := c.Validate(); err != nil {
		return Workload{}, fmt.Errorf("make chat workload: %w", err)
	}
	rng := newRand(c.Seed, 2)
	systems := prompts(c.SystemPrompts, c.System, rng)
	w := Workload{Name: name, Text: text}
	for i := range c.Sessions {
		s := Session{ID: strconv.Itoa(i), Class: name, Start: within(c.Span, rng), Turns: c.turns(rng)}
		if len(systems) > 0 {
			s.System = systems[rng.IntN(len(systems))]
		}
		w.Sessions = append(w.Sessions, s)
	}
	w.sort()
	return w, nil
}

func (c *ChatConfig) turns(rng *rand.Rand) []Turn {
	turns := make([]Turn, c.MinTurns+rng.IntN(c.MaxTurns-c.MinTurns+1))
	for i := range turns {
		length := c.Next
		if i == 0 {
			length = c.First
		}
		turns[i] = Turn{Think: think(c.Think, rng), User: length.passage(rng), MaxTokens: c.Answer.draw(rng)}
	}
	return turns
}

func prompts(n int, length Lengths, rng *rand.Rand) [][]Passage {
	out := make([][]Passage, n)
	for i := range out {
		out[i] = length.passage(rng)
	}
	return out
}

func atLeast[T int | time.Duration | float64](name string, v, least T) error {
	if v < least {
		return fmt.Errorf("%s (%v) must be at least %v", name, v, least)
	}
	return nil
}
