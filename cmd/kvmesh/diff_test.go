package main

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestDiffShowsWhatChangesAndWhatIsAround(t *testing.T) {
	a := strings.Split("one two three four five six seven eight nine ten eleven twelve", " ")
	b := slices.Replace(slices.Clone(a), 1, 2, "2")
	b = append(b, "thirteen")
	got := strings.Join(diffLines(a, b), "|")
	if want := "@@ line 1 @@| one|-two|+2| three| four| five|@@ line 10 @@| ten| eleven| twelve|+thirteen"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := diffLines(a, a); len(got) > 0 {
		t.Errorf("of equal texts: %q", got)
	}
	if got := strings.Join(diffLines(nil, []string{"x"}), "|"); got != "@@ line 1 @@|+x" {
		t.Errorf("from nothing: %s", got)
	}
}

func TestEditScriptMakesOneTextOfTheOther(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	text := func() []string {
		var lines []string
		for range rng.IntN(12) {
			lines = append(lines, string(rune('a'+rng.IntN(4))))
		}
		return lines
	}
	for range 2000 {
		a, b := text(), text()
		var was, is []string
		for _, s := range editScript(a, b) {
			if s.sign != '+' {
				was = append(was, s.text)
			}
			if s.sign != '-' {
				is = append(is, s.text)
			}
		}
		if !slices.Equal(was, a) || !slices.Equal(is, b) {
			t.Fatalf("%q and %q: the script is of %q and %q", a, b, was, is)
		}
	}
}
