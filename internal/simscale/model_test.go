package simscale

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvmesh/kvmesh/internal/spread"
)

// few is a mesh that takes a test no time.
func few() Config {
	c := DefaultConfig(8)
	c.Listeners, c.Keys, c.For = 2, 500, 20*time.Second
	return c
}

func run(t *testing.T, c Config) (r Result) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var err error
		if r, err = Run(t.Context(), c); err != nil {
			t.Error(err)
		}
	})
	return r
}

func within(t *testing.T, what string, got, least, most float64) {
	t.Helper()
	if got < least || got > most {
		t.Errorf("%s: got %v, want %v to %v", what, got, least, most)
	}
}

func TestListenersHearEverybody(t *testing.T) {
	c := few()
	r := run(t, c)
	others := float64(c.Agents - 1)
	digests, beats := spread.DigestPeriod(c.Agents).Seconds(), spread.HeartbeatPeriod(c.Agents).Seconds()
	if r.Unknown > 0 || r.BytesIn[kindPull] > 0 {
		t.Errorf("got %d unknown digests and %v bytes/s of pulls, want none", r.Unknown, r.BytesIn[kindPull])
	}
	within(t, "median staleness", r.Staleness.P50, digests/4, digests)
	within(t, "99 % of staleness", r.Staleness.P99, digests*0.9, digests*1.3)
	within(t, "mean age of heartbeats", r.HeartbeatAge.Mean, beats*0.4, beats*0.6)
	within(t, "99 % of heartbeats", r.HeartbeatAge.P99, beats*0.9, beats*1.1)
	within(t, "bytes of heartbeats", r.BytesIn[kindHeartbeat], others/beats*70, others/beats*100)
	within(t, "bytes of feeds", r.BytesIn[kindFeed], others/digests*290, others/digests*330) // of 25 keys that come and 25 that go
	sum := 0.0
	for kind, bytes := range r.BytesIn {
		if kind != wire {
			sum += bytes
		}
	}
	within(t, "sum of the kinds", sum, r.BytesIn[wire]*0.999, r.BytesIn[wire]*1.001)
	within(t, "what leaves", r.BytesOut[wire], r.BytesIn[wire]*0.99, r.BytesIn[wire]*1.01)
}

func TestLossDelaysFeedsAndTakesHeartbeats(t *testing.T) {
	c := few()
	whole := run(t, c)
	c.Loss = 0.3
	r := run(t, c)
	if r.Unknown > 0 || r.BytesIn[kindPull] > 0 {
		t.Errorf("got %d unknown digests and %v bytes/s of pulls, want none: feeds lose nothing", r.Unknown, r.BytesIn[kindPull])
	}
	within(t, "heartbeats that come", r.BytesIn[kindHeartbeat]/r.BytesOut[kindHeartbeat], 0.6, 0.8)
	within(t, "feeds that come", r.BytesIn[kindFeed]/r.BytesOut[kindFeed], 0.6, 0.8)
	within(t, "99 % of heartbeats", r.HeartbeatAge.P99, whole.HeartbeatAge.P99*1.5, whole.HeartbeatAge.P99*10)
	within(t, "99 % of staleness", r.Staleness.P99, whole.Staleness.P99, whole.Staleness.P99+2)
}

func TestEnginesMayShareADigest(t *testing.T) {
	c := few()
	c.Listeners, c.Distinct, c.Every = 1, 2, 4*time.Second
	r := run(t, c)
	if r.Unknown > 0 || r.BytesIn[kindPull] > 0 {
		t.Errorf("got %d unknown digests and %v bytes/s of pulls, want none", r.Unknown, r.BytesIn[kindPull])
	}
	within(t, "99 % of staleness", r.Staleness.P99, 0.4, 0.7)
	if len(r.Memory) < 5 || r.Memory[1].After-r.Memory[0].After < 3.9 {
		t.Errorf("got memory %v, want a sample each 4 s", r.Memory)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	synctest.Test(t, func(t *testing.T) {
		if _, err := Run(ctx, few()); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

func TestConfigNamesAllFaults(t *testing.T) {
	c := Config{Agents: 1, Listeners: 2, Changes: -1, Keys: -1, WarmUp: -1, Delay: -1, Loss: 1}
	err := c.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	if joined, ok := err.(interface{ Unwrap() []error }); !ok || len(joined.Unwrap()) != 10 {
		t.Errorf("got %v", err)
	}
	for _, good := range []Config{DefaultConfig(2), DefaultConfig(1000), HourConfig(1024)} {
		if err := good.Validate(); err != nil {
			t.Error(err)
		}
	}
}
