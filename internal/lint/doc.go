// Package lint holds the rules of this repository that no linter knows, as tests: which package may import which, that
// every package says what it is for, that names come from the project's word list, and that metric names and fuzz
// targets follow the house form. It has no code of its own; `go test ./internal/lint` runs it.
package lint
