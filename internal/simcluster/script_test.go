package simcluster

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestScripts(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.script")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".script"), func(t *testing.T) { RunScript(t, path) })
	}
}

func TestScriptsAreUnderstoodInBothForms(t *testing.T) {
	paths, _ := filepath.Glob("testdata/*.script")
	for _, path := range paths {
		for _, long := range []bool{false, true} {
			if _, err := readScript(path, long); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestLinesThatNobodyUnderstandsAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"":                                                     "x.script:0: nothing happens",
		"agents 3\n":                                           "x.script:1: nothing happens",
		"answers some":                                         "x.script:1: \"some\" is no number of tokens",
		"agents none":                                          "x.script:1: \"none\" is no number",
		"agents 3\n\ncolour red":                               "x.script:3: \"colour red\" says nothing of a cluster",
		"agents 3\n00:00.0 start all\nstop 1":                  "x.script:3: \"stop\" is no time",
		"agents 3\n00:61.0 start all":                          "x.script:2: \"00:61.0 start all\" says nothing",
		"agents 3\n00:00.0":                                    "x.script:2: what happens at 00:00.0",
		"agents 3\n00:00.0 dance 1":                            "x.script:2: nobody knows how to \"dance\"",
		"agents 3\n00:00.0 kill":                               "x.script:2: kill: nobody is named",
		"agents 3\n00:00.0 kill 3":                             "x.script:2: kill 3: \"3\" is none of the 3 agents",
		"agents 3\n00:00.0 kill 2-1":                           "x.script:2: kill 2-1: \"2-1\" is none",
		"agents 3\n00:00.0 heal 2":                             "x.script:2: heal 2: \"2\" is too much",
		"agents 3\n00:00.0 loss 120%":                          "x.script:2: loss 120%: it takes 0% to 100%",
		"agents 3\n00:00.0 reorder much":                       "x.script:2: reorder much: it takes the time",
		"agents 3\n00:00.0 load 20":                            "x.script:2: load 20: it takes N/s or off",
		"agents 3\n00:00.0 load 2/s through 7":                 "x.script:2: load 2/s through 7: \"7\" is none",
		"agents 3\n00:00.0 rate much":                          "x.script:2: rate much: it takes N kB/s",
		"agents 3\n00:00.0 churn 0/s":                          "x.script:2: churn 0/s: it takes N/s",
		"agents 3\n00:00.0 clock 1h":                           "x.script:2: clock 1h: it takes: -1h for",
		"agents 3\n00:00.0 clock x for 1":                      "x.script:2: clock x for 1: \"x\" is no time",
		"agents 3\n00:00.0 restart often":                      "x.script:2: restart often: it takes N times",
		"agents 3\n00:00.0 partition 0 / 9":                    "x.script:2: partition 0 / 9: \"9\" is none",
		"agents 3\n00:00.0 expect luck":                        "x.script:2: expect luck: nobody knows how to expect \"luck\"",
		"agents 3\n00:00.0 expect within x quiet":              "x.script:2: expect within x quiet: \"x\" is no time",
		"agents 3\n00:00.0 expect no client error except mine": "x.script:2: expect no client error except mine: it takes",
		"agents 3\n00:00.0 expect no decision for 1 after x":   "\"x\" is no time",
		"agents 3\n00:00.0 for 2 times every 00:10.0":          "x.script:2: the rounds have no end",
		"agents 3\n+1s for 2 times every 00:10.0":              "must be: MM:SS.s for N times",
		"agents 3\n00:00.0 start all\nend":                     "x.script:3: there is nothing to end",
	} {
		if _, err := parseScript("x.script", text, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestScriptHasAShortAndALongForm(t *testing.T) {
	const text = "agents 3|5\n00:00.0 start all # both\n00:05.0|01:05.0 for 1|2 times every 00:30.0\n00:10.0 kill 1|2-4\n+2s heal\nend\n"
	for long, want := range map[bool][]string{
		false: {"3 agents", "0s start all", "5s for 1 times every 00:30.0", "15s kill 1", "+2s heal"},
		true: {
			"5 agents", "0s start all", "1m5s for 2 times every 00:30.0",
			"1m15s kill 2-4", "+2s heal", "1m45s kill 2-4", "+2s heal",
		},
	} {
		s, err := parseScript("x.script", text, long)
		if err != nil {
			t.Fatal(err)
		}
		got := []string{strings.Replace("N agents", "N", string(rune('0'+s.config.Agents)), 1)}
		for _, st := range s.steps {
			at := st.at.String()
			if st.after {
				at = "+" + at
			}
			got = append(got, at+" "+st.text)
		}
		if !slices.Equal(got, want) {
			t.Errorf("long %v: %q, want %q", long, got, want)
		}
	}
}

// Every expectation can fail, and says where and why.
func TestExpectationThatDoesNotComeTrueFails(t *testing.T) {
	Test(t, Config{Agents: 3, Delay: lan}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		for _, part := range []struct{ text, want string }{
			{"+0s load 50/s\n+1s expect no ghost\n+0s expect quiet", "x.script:4: expect quiet: "},
			{"+0s load 50/s\n+100ms load off\n00:00.0 heal", "x.script:4: heal: "},
			{"+0s expect no client error", "no request was answered"},
			{"+0s expect within 1s first bytes", "0 answers are too few"},
			{"+0s load 50/s\n+1s load off\n+0s expect within 1ms first bytes", "95 in 100 first bytes came within"},
			{"+0s expect twins refused", "0 twins"},
			{"+0s expect flat", "nothing is marked"},
			{"+0s expect no decision for 2 after 0s", "agent2 is not lost"},
			{"+0s silence 2\n+0s expect no decision for 2 after 0s", "nothing was decided since"},
			{"+0s load 400/s through 0-1\n+0s silence 2\n+500ms load off\n+0s expect no decision for 2 after 0s", "tries agent2/engine"},
			{"+0s load 50/s through 0-1\n+1s load off\n+0s expect within 1s digests equal since the last change", "digests differ"},
			{"+0s expect within 1s no ghost", "is not connected to agent2"},
			{"+0s resume 2\n+0s expect within 15s views equal", ""},
			{"+0s load 400/s\n+500ms kill 1\n+0s load off\n+0s expect no client error except streams begun at 2", "through agent1"},
			{"+0s start 1\n+0s start 1", "whether agent1 runs: true"},
			{"+0s kill 0\n+0s expect no ghost", "holds agent0/engine, whose agent does not run, for"},
		} {
			s, err := parseScript("x.script", "agents 3\n"+part.text, false)
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.play(t.Context(), c)
			if part.want == "" && err != nil || part.want != "" && (err == nil || !strings.Contains(err.Error(), part.want)) {
				t.Errorf("%q: %v, want %q", part.text, err, part.want)
			}
		}
	})
}
