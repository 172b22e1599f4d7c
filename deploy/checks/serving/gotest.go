package main

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

// testResults counts tests and subtests by how they ended.
type testResults struct {
	passed, failed, skipped int
	names                   []string // top-level tests that passed, as package.Test
}

// readTests reads the output of go test -json.
func readTests(out string) (testResults, error) {
	var r testResults
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

func (r *testResults) add(e testEvent) {
	switch {
	case e.Action == "fail": // a package that does not build fails without a test
		r.failed++
	case e.Test == "":
	case e.Action == "skip":
		r.skipped++
	case e.Action == "pass":
		r.passed++
		if !strings.Contains(e.Test, "/") {
			r.names = append(r.names, e.Package[strings.LastIndexByte(e.Package, '/')+1:]+"."+e.Test)
		}
	}
}

// missing returns those of wanted that did not pass.
func (r *testResults) missing(wanted []string) []string {
	return slices.DeleteFunc(slices.Clone(wanted), func(name string) bool { return slices.Contains(r.names, name) })
}
