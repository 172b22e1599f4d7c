package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/kvmesh/kvmesh/internal/simengine"
)

const (
	// engineCommand makes this program a simulated engine: with settings that kvmesh simengine has no flags for.
	engineCommand = "engine"
	// model is what the simulated engines serve.
	model = "sim-model"
)

// settings are those of a simulated engine that the checks use; zero values are the engine's own defaults.
type settings struct {
	Listen         string
	Kind           string
	Template       string
	BlockTokens    int
	CapacityTokens int64
	Speed          float64
	PrefillRate    float64
	AnswerTokens   int
	RetokenizeRate float64
	Groups         []simengine.Group
	Seed           uint64

	Events      string // tcp://HOST:PORT; "" for none
	Replay      string
	BufferSteps int
}

// config returns the engine's configuration.
func (s *settings) config() simengine.Config {
	c := simengine.DefaultConfig()
	set(&c.Kind, s.Kind)
	set(&c.Template, s.Template)
	set(&c.BlockTokens, s.BlockTokens)
	set(&c.CapacityTokens, s.CapacityTokens)
	set(&c.Speed, s.Speed)
	set(&c.PrefillRate, s.PrefillRate)
	set(&c.AnswerTokens, s.AnswerTokens)
	set(&c.KVEvents.BufferSteps, s.BufferSteps)
	c.Model, c.RetokenizeRate, c.Groups, c.Seed = model, s.RetokenizeRate, s.Groups, s.Seed
	c.KVEvents.Endpoint, c.KVEvents.ReplayEndpoint = s.Events, s.Replay
	return c
}

// set keeps *to where v is zero.
func set[T comparable](to *T, v T) {
	var zero T
	if v != zero {
		*to = v
	}
}

// serveEngine serves the engine of some settings until the process is told to stop.
func serveEngine(text string) error {
	var s settings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	e, err := simengine.New(s.config())
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Listen)
	if err != nil {
		return err
	}
	return e.Serve(ctx, l)
}
