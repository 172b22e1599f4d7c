package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/deploy/checks/internal/lab"
)

// checkCalm compares what a mesh in which nothing breaks answers with what an engine answers by itself.
func checkCalm(ctx context.Context, h *check.Harness) error {
	m, err := lab.Start(ctx, h, lab.Config{
		Names:       []string{"a", "b", "c", "d"},
		EngineFlags: func(string) []string { return []string{"--speed", "10", "--answer-tokens", "64"} },
	})
	if err != nil {
		return err
	}
	defer m.Close()
	const requests, atOnce = 200, 32
	client := newClient()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var wrong []error
	slots := make(chan struct{}, atOnce)
	for i := range requests {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := sameAnswer(ctx, client, m.Agents[i%len(m.Agents)], m.Agents[0], i); err != nil {
				mu.Lock()
				wrong = append(wrong, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	h.Figures.Zero("calm_answers_wrong", float64(len(wrong)), "of %d chats and completions, %d at once, each against the engine's own; %v", requests, atOnce, first(wrong))
	client.CloseIdleConnections()
	return m.AwaitRest(ctx, 10*time.Second)
}

// sameAnswer asks an agent and then the engine beside another one.
func sameAnswer(ctx context.Context, client *http.Client, by, engine *lab.Agent, i int) error {
	text := fmt.Sprintf("%d of %d: go on.", i, rand.Uint64())
	r := chat("You are terse.", text, 100)
	if i%2 == 1 {
		r = completion(text, 100)
	}
	got, err := r.send(ctx, client, by.HTTP)
	want, engineErr := r.send(ctx, client, engine.Engine)
	if err := errors.Join(err, engineErr); err != nil {
		return err
	}
	if why := got.differs(want); why != "" {
		return fmt.Errorf("the answer of %s by %s differs %s", got.engine, by.Name, why)
	}
	return nil
}

// first returns the first error in words.
func first(errs []error) string {
	if len(errs) == 0 {
		return "none"
	}
	return "the first: " + errs[0].Error()
}
