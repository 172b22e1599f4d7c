package check

import (
	"maps"
	"testing"
)

func TestBestRunOfEachBenchmark(t *testing.T) {
	got, err := BestTimes("goos: linux\nBenchmarkA/engines=64/usual-2 \t 100\t 1200.5 ns/op\t 8 B/op\n" +
		"BenchmarkA/engines=64/usual-2 \t 100\t 900 ns/op\nBenchmarkA/engines=64/usual-2 \t 100\t 950 ns/op\nBenchmarkB \t 7\t 3 ns/op\nPASS\n")
	want := map[string]float64{"BenchmarkA/engines=64/usual": 900, "BenchmarkB": 3}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	if got, err := BestTimes("BenchmarkA 1 1.2.3 ns/op"); err == nil {
		t.Errorf("a time that is no number is %v", got)
	}
}
