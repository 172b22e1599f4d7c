package main

import (
	"fmt"
	"slices"
	"strings"
)

// diffContext is how many equal lines are shown around those that differ.
const diffContext = 3

// splitLines returns the lines of a text without their ends.
func splitLines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// maxDiff bounds the lines of either side: the table has their product of entries.
const maxDiff = 5000

// diffLines returns what has to change in a to make b: lines that begin with "-" and "+", with equal lines around them, and
// a line that says where, before each part. Nothing where they are equal.
func diffLines(a, b []string) []string {
	if len(a) > maxDiff || len(b) > maxDiff {
		return []string{fmt.Sprintf("more than %d lines: not compared", maxDiff)}
	}
	steps := editScript(a, b)
	var out []string
	shown := -1 // the last step that was shown
	for i, s := range steps {
		if s.sign == ' ' {
			continue
		}
		from := max(i-diffContext, shown+1)
		if from > shown+1 || shown < 0 {
			out = append(out, fmt.Sprintf("@@ line %d @@", steps[from].line))
		}
		for shown = from; shown < len(steps) && shown <= i+diffContext; shown++ {
			out = append(out, string(steps[shown].sign)+steps[shown].text)
		}
		shown--
	}
	return out
}

// step is one line of an edit script: kept, taken out or put in.
type step struct {
	sign byte
	text string
	line int // of b, from 1
}

// editScript keeps a longest common subsequence.
func editScript(a, b []string) []step {
	common := make([][]int32, len(a)+1) // of the rests from i and j on
	for i := range common {
		common[i] = make([]int32, len(b)+1)
	}
	for i, x := range slices.Backward(a) {
		for j, y := range slices.Backward(b) {
			if x == y {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var out []step
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			out = append(out, step{' ', a[i], j + 1})
			i, j = i+1, j+1
		case i < len(a) && (j == len(b) || common[i+1][j] >= common[i][j+1]):
			out = append(out, step{'-', a[i], j + 1})
			i++
		default:
			out = append(out, step{'+', b[j], j + 1})
			j++
		}
	}
	return out
}
