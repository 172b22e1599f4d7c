package main

import (
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/internal/simengine"
)

// simConfig is the config that the arguments of kvmesh simengine make.
func simConfig(t *testing.T, args ...string) (simengine.Config, error) {
	t.Helper()
	var c simengineCmd
	p, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Parse(args); err != nil {
		return simengine.Config{}, err
	}
	return c.config()
}

func TestSimengineWithoutFlagsIsTheDefaultEngine(t *testing.T) {
	got, err := simConfig(t)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(simengine.DefaultConfig(), got); diff != "" {
		t.Errorf("flags' defaults differ from those of the package (-package +flags):\n%s", diff)
	}
}

func TestSimengineFlags(t *testing.T) {
	got, err := simConfig(t, "--kind=sglang", "--offload-tokens=1000", "--retokenize-rate=0.5", "--event-buffer=9", "--scale-out",
		"--no-kv-replay-topic", "--fault-die-after-tokens=3")
	if err != nil {
		t.Fatal(err)
	}
	want := simengine.DefaultConfig()
	want.Kind, want.OffloadTokens, want.RetokenizeRate, want.EventBuffer, want.ScaleOut = "sglang", 1000, 0.5, 9, true
	want.KVEvents.ReplayTopic, want.Faults.DieAfterTokens = false, 3
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := simConfig(t, "--kind=ollama"); err == nil {
		t.Error("an unknown kind was accepted")
	}
}
