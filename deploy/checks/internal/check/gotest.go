package check

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// testEvent is one line of go test -json.
type testEvent struct {
	Action  string
	Package string
	Test    string
}

// TestResults counts tests and subtests by how they ended.
type TestResults struct {
	Passed, Failed, Skipped int
	Names                   []string // top-level tests that passed, as package.Test
}

// ReadTests reads the output of go test -json.
func ReadTests(out string) (TestResults, error) {
	var r TestResults
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "{") {
			continue // a line of the go command itself
		}
		var e testEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			return r, fmt.Errorf("read go test -json: %w", err)
		}
		r.add(e)
	}
	return r, nil
}

func (r *TestResults) add(e testEvent) {
	switch {
	case e.Action == "fail": // a package that does not build fails without a test
		r.Failed++
	case e.Test == "":
	case e.Action == "skip":
		r.Skipped++
	case e.Action == "pass":
		r.Passed++
		if !strings.Contains(e.Test, "/") {
			r.Names = append(r.Names, e.Package[strings.LastIndexByte(e.Package, '/')+1:]+"."+e.Test)
		}
	}
}

// Missing returns those of wanted that did not pass.
func (r *TestResults) Missing(wanted []string) []string {
	return slices.DeleteFunc(slices.Clone(wanted), func(name string) bool { return slices.Contains(r.Names, name) })
}
