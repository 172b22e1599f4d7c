package main

import "testing"

func TestOnlyTheEndOfFuzzingIsNoFinding(t *testing.T) {
	const end = "fuzz: elapsed: 10s, execs: 208217 (20126/sec)\n--- FAIL: FuzzReceive (10.10s)\n    context deadline exceeded\nFAIL\n"
	for out, want := range map[string]bool{
		end: true,
		"--- FAIL: FuzzReceive (3s)\n    --- FAIL: FuzzReceive (0s)\n        a bad frame\n    Failing input written to testdata/fuzz/FuzzReceive/1\n" + end: false,
		"    fuzzing process hung or terminated unexpectedly: exit status 2\n" + end:                                                                        false,
		"panic: index out of range\n" + end: false,
		"--- FAIL: FuzzReceive (0s)\n":      false,
	} {
		if got := outOfTime(out); got != want {
			t.Errorf("%q: %t, want %t", out, got, want)
		}
	}
}
