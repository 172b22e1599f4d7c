package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBenchmarksAreRead(t *testing.T) {
	out := `goos: linux
BenchmarkDecisionPath/engines=64-2         	    2000	    612345 ns/op	 653.12 MB/s	   18432 B/op	      42 allocs/op
BenchmarkDecisionPath/engines=64-2         	    2000	    598000.5 ns/op	 653.12 MB/s	   18440 B/op	      43 allocs/op
BenchmarkApply100Flips/engines=64          	  500000	      2100 ns/op	       0 B/op	       0 allocs/op
PASS
ok  	github.com/kvmesh/kvmesh/forward	3.1s
`
	want := map[string]benchResult{
		"BenchmarkDecisionPath/engines=64":  {ns: 598000.5, bytes: 18440, allocs: 43, runs: 2},
		"BenchmarkApply100Flips/engines=64": {ns: 2100, runs: 1},
	}
	if diff := cmp.Diff(want, readBench(out), cmp.AllowUnexported(benchResult{})); diff != "" {
		t.Errorf("readBench (-want +got):\n%s", diff)
	}
	failed := "--- FAIL: TestA (0.1s)\n    a_test.go:1: FAIL\nFAIL\nFAIL\tm/p\t0.2s\n"
	if diff := cmp.Diff([]string{"--- FAIL: TestA (0.1s)", "FAIL\tm/p\t0.2s"}, failures(failed)); diff != "" {
		t.Errorf("failures (-want +got):\n%s", diff)
	}
	if n := passedPackages(out); n != 1 {
		t.Errorf("passedPackages = %d, want 1", n)
	}
}

func TestBenchmarksOfOnePackageAreNamedOnce(t *testing.T) {
	if got, want := benchPattern("./cachestate"), "^(BenchmarkApply100Flips|BenchmarkOverlap|BenchmarkOverlapSpread)$"; got != want {
		t.Errorf("benchPattern = %s, want %s", got, want)
	}
}
