package spread

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
)

func TestHeartbeatsFitTheirPackets(t *testing.T) {
	for _, count := range []int{0, 1, 2, 20, 40, MaxEngines} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			want := forward.Report{Period: time.Second}
			for i := range count {
				want.Loads = append(want.Loads, forward.EngineLoad{
					Name: fmt.Sprintf("%d%s", i, strings.Repeat("n", 60)),
					Load: engine.Load{Seq: 1<<62 + uint64(i), QueuedSeconds: 86400, InFlight: 1 << 20, Waiting: 1 << 20, KVUsage: 1, PrefillRate: 1e9, BytesPerToken: 64, AcceptRate: 1e6, BusyShare: 1, Flags: engine.Full},
				})
			}
			got := forward.Report{Period: time.Second}
			for _, b := range datagrams(want) {
				if len(b) > maxDatagram {
					t.Errorf("a datagram has %d bytes, the limit is %d", len(b), maxDatagram)
				}
				part, err := forward.ParseReport(b)
				if err != nil {
					t.Fatal(err)
				}
				if part.Period != want.Period {
					t.Errorf("period %v, want %v", part.Period, want.Period)
				}
				got.Loads = append(got.Loads, part.Loads...)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("datagrams do not hold the report (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOneHeartbeatOfAnEngineIsSmall(t *testing.T) {
	l := engine.Load{Seq: 1 << 60, QueuedSeconds: 12.5, InFlight: 40, Waiting: 9, KVUsage: .5, PrefillRate: 16000, BytesPerToken: 4.1, AcceptRate: 3.2, BusyShare: .7}
	b := datagrams(forward.Report{Period: time.Second, Loads: []forward.EngineLoad{{Name: "engine0", Load: l}}})
	if len(b) != 1 || len(b[0]) > 64 {
		t.Errorf("%d datagrams, the first of %d bytes; want one of at most 64", len(b), len(b[0]))
	}
}

func TestPeriodsGrowWithTheMesh(t *testing.T) {
	for _, tt := range []struct {
		agents            int
		heartbeat, digest time.Duration
	}{
		{1, 500 * time.Millisecond, 500 * time.Millisecond},
		{16, 500 * time.Millisecond, 500 * time.Millisecond},
		{17, time.Second, time.Second},
		{64, time.Second, time.Second},
		{65, time.Second, 2 * time.Second},
		{256, time.Second, 2 * time.Second},
		{1000, time.Second, 5 * time.Second},
	} {
		if h, d := HeartbeatPeriod(tt.agents), DigestPeriod(tt.agents); h != tt.heartbeat || d != tt.digest {
			t.Errorf("%d agents: periods %v and %v, want %v and %v", tt.agents, h, d, tt.heartbeat, tt.digest)
		}
	}
}

func TestDigestsFitTheirFrames(t *testing.T) {
	g := cachestate.DefaultGeometry()
	whole := cachestate.NewDigest("a/e", cachestate.TierGPU, 1, g).Full()
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range whole.Words {
		whole.Words[i] = rng.Uint64() // nothing that a shorter form would tell
	}
	for _, tt := range []struct{ deltas, frames int }{
		{0, 0}, {1, 1}, {200, 1}, {3 * MaxEngines, 4},
	} {
		var deltas []cachestate.Delta
		for i := range tt.deltas {
			whole.Engine, whole.Tier = engine.MakeID("a", fmt.Sprint(i/3)), cachestate.Tier(i%3)
			deltas = append(deltas, whole)
		}
		r := newFrameReader(bytes.NewReader(digestFrames(deltas)))
		frames, seen := 0, 0
		for {
			kind, b, err := r.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil || kind != frameDigests {
				t.Fatalf("frame %d is of kind %d: %v", frames, kind, err)
			}
			for frames++; len(b) > 0; seen++ {
				d, rest, err := cachestate.ParseDelta(b, "a", g)
				if err != nil || d.Engine != deltas[seen].Engine || d.Tier != deltas[seen].Tier {
					t.Fatalf("digest %d is %s in %v, %v", seen, d.Engine, d.Tier, err)
				}
				b = rest
			}
		}
		if seen != tt.deltas || frames != tt.frames {
			t.Errorf("%d of %d digests are told in %d frames, want %d", seen, tt.deltas, frames, tt.frames)
		}
	}
}

func TestSmallChangesOfScaleCanWait(t *testing.T) {
	base := engine.Engine{ID: "a/e", Residency: engine.ResidencyEvents, Evidence: engine.EvidenceUsage, Scale: 0.5, Models: []engine.Model{{Name: "m"}}}
	for name, tt := range map[string]struct {
		change func(*engine.Engine)
		want   bool
	}{
		"nothing":                  {func(*engine.Engine) {}, false},
		"a step up":                {func(e *engine.Engine) { e.Scale += 1. / 16 }, false},
		"two steps down":           {func(e *engine.Engine) { e.Scale -= 2. / 16 }, false},
		"three steps down":         {func(e *engine.Engine) { e.Scale -= 3. / 16 }, true},
		"true altogether":          {func(e *engine.Engine) { e.Scale = 0 }, true},
		"evidence":                 {func(e *engine.Engine) { e.Evidence = engine.EvidenceNone }, true},
		"residency":                {func(e *engine.Engine) { e.Residency = engine.ResidencyMirror }, true},
		"layout":                   {func(e *engine.Engine) { e.Unstable = true }, true},
		"generation":               {func(e *engine.Engine) { e.Generation++ }, true},
		"generation, with a scale": {func(e *engine.Engine) { e.Generation++; e.Scale += 1. / 16 }, true},
		"model":                    {func(e *engine.Engine) { e.Models = nil }, true},
	} {
		e := base
		tt.change(&e)
		if got := cannotWait([]engine.Engine{base}, []engine.Engine{e}); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if !cannotWait(nil, []engine.Engine{base}) || !cannotWait([]engine.Engine{base}, nil) || cannotWait(nil, nil) {
		t.Error("engines come and go unnoticed")
	}
}
