package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

const (
	agreedTests  = "./mesh/agreed"
	clusterTests = "./internal/simcluster"
)

// size returns long, or short in a short run.
func size(h *check.Harness, long, short int) int {
	if h.Short {
		return short
	}
	return long
}

// checkVersions has an older voter and an older watcher carry what only a newer version knows.
func checkVersions(ctx context.Context, h *check.Harness) error {
	tests := check.Tests{
		Package: agreedTests, Run: "^TestOlderAgentsKeepWhatTheyDoNotKnow$", Prefix: "versions_",
		Most:  map[string]float64{"versions_members_lost": 0},
		Least: map[string]float64{"versions_members_kept": 1},
	}
	return tests.Measure(ctx, h)
}

// checkLinear records histories of clients on agents that are cut off, killed and started again, and has porcupine look for
// an order that explains each.
func checkLinear(ctx context.Context, h *check.Harness) error {
	histories := size(h, 20, 2)
	tests := check.Tests{
		Package: agreedTests, Run: "^(TestALeaderInTheMinorityAcknowledgesNothing|TestHistoriesAreLinearizable)$",
		Flags: []string{fmt.Sprint("-histories=", histories)},
		Most: map[string]float64{
			"minority_acknowledged": 0, "minority_healed_histories": 1, "histories_not_linearizable": 0, "histories_not_judged": 0,
		},
		Least: map[string]float64{"histories_linearizable": float64(histories)},
	}
	return tests.Measure(ctx, h)
}

// checkCrash breaks the disk at each write in turn, and kills a process that writes.
func checkCrash(ctx context.Context, h *check.Harness) error {
	lives := size(h, 200, 10)
	tests := check.Tests{
		Package: agreedTests, Run: "^(TestADiskThatFailsAtAnyWriteLosesNothing|TestAKilledProcessLosesNothing)$",
		Flags: []string{fmt.Sprint("-kill-rounds=", lives)},
		Most:  map[string]float64{"disk_writes_lost": 0, "disk_starts_failed": 0, "kill_writes_lost": 0, "kill_starts_failed": 0},
		Least: map[string]float64{"disk_cuts": 1, "kill_lives": float64(lives), "kill_writes_acknowledged": float64(lives)},
	}
	return tests.Measure(ctx, h)
}

// checkSpread has 64 whole agents in fake time.
func checkSpread(ctx context.Context, h *check.Harness) error {
	tests := check.Tests{
		Package: clusterTests, Run: "^TestPolicyIsInForceOnAllWithin2s$", Long: true, Prefix: "agreed_",
		Most: map[string]float64{"agreed_in_force_on_64_agents": 2, "agreed_late_agent_ready_without_it": 0},
	}
	return tests.Measure(ctx, h)
}

// hitsBefore is the least share of cached tokens, in points, of which a loss would show.
const hitsBefore = 50

// checkGeometry has eight agents under load change the geometry of their digests, and compares the digests of both with
// those of a dumb twin.
func checkGeometry(ctx context.Context, h *check.Harness) error {
	twins := check.Tests{
		Package: "./cachestate", Run: "^TestDigestsOfBothGeometriesAgreeWithPlainTwin$", Flags: []string{"-rapid.checks=2000"}, Prefix: "twin_",
		Most: map[string]float64{"twin_digests_differ": 0}, Least: map[string]float64{"twin_digests_compared": 1},
	}
	change := check.Tests{
		Package: clusterTests, Run: "^TestGeometryChangesUnderLoad$", Long: true, Prefix: "geometry_change_",
		Most:  map[string]float64{"geometry_change_hits_lost": 2, "geometry_change_digests_differ": 0},
		Least: map[string]float64{"geometry_change_hits_before": hitsBefore},
	}
	return errors.Join(twins.Measure(ctx, h), change.Measure(ctx, h))
}

// checkScheme has eight agents under load change the scheme of their keys, until the window ends.
func checkScheme(ctx context.Context, h *check.Harness) error {
	tests := check.Tests{
		Package: clusterTests, Run: "^TestKeySchemeChangesUnderLoad$", Long: true, Prefix: "scheme_change_",
		Most:  map[string]float64{"scheme_change_hits_lost": 5},
		Least: map[string]float64{"scheme_change_hits_before": hitsBefore},
	}
	return tests.Measure(ctx, h)
}
