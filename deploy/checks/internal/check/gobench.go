package check

import (
	"bufio"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// benchLine is a line of go test -bench: the name without the number of cores, and the nanoseconds.
var benchLine = regexp.MustCompile(`^(Benchmark\S+?)(?:-\d+)?\s+\d+\s+([\d.]+) ns/op`)

// BestTimes returns of each benchmark in the output of go test -bench the nanoseconds of its best run.
func BestTimes(out string) (map[string]float64, error) {
	best := map[string]float64{}
	for lines := bufio.NewScanner(strings.NewReader(out)); lines.Scan(); {
		m := benchLine.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		ns, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return nil, fmt.Errorf("read a benchmark's line: %w", err)
		}
		if was, ok := best[m[1]]; !ok || ns < was {
			best[m[1]] = ns
		}
	}
	return best, nil
}
