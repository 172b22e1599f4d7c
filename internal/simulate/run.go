package simulate

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"
)

// Run simulates every policy of c with the same arrivals, several at once, and returns their results in c's order. progress
// is told how much of a policy's time has passed, from 0 to 1; it is called by several goroutines.
func Run(ctx context.Context, c Config, progress func(policy string, share float64)) ([]Result, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}
	t, err := trafficOf(&c)
	if err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}
	results := make([]Result, len(c.Policies))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, name := range c.Policies {
		g.Go(func() (err error) {
			results[i], err = runOne(ctx, &c, t, name, func(share float64) { progress(name, share) })
			return err
		})
	}
	return results, g.Wait()
}

func runOne(ctx context.Context, c *Config, t *traffic, name string, progress func(float64)) (Result, error) {
	spec, err := specOf(name)
	if err != nil {
		return Result{}, err
	}
	start := time.Now()
	w := newWorld(c, t, spec)
	if err := w.run(ctx, progress); err != nil {
		return Result{}, err
	}
	progress(1)
	r := w.result.result()
	r.Policy, r.Wall = name, time.Since(start).Seconds()
	return r, nil
}
