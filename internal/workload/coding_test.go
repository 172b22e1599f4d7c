package workload

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const codingLines = `{"id":"a","bs":64,"tool":1000,"sys":200,"r":[` +
	`{"t":0,"in":130,"out":5,"think":0,"api":1,"h":[1,2],"m":"x"},` +
	`{"t":9,"sub":[{"t":0,"in":64,"out":1,"think":0,"h":[9,1]}],"tool":1,"sys":1,"dur_ms":5},` +
	`{"t":9,"in":300,"out":0,"think":1.5,"h":[1,2,7,3]}]}
{"id":"b","bs":64,"tool":0,"sys":0,"r":[]}
`

func TestCodingSessionsAreReadWithoutTheirSubAgents(t *testing.T) {
	got, err := ReadCodingSessions(strings.NewReader(codingLines))
	if err != nil {
		t.Fatal(err)
	}
	want := []CodingSession{{
		BlockTokens: 64, SharedTokens: 1200, Kind: CodingKind{1000, 200},
		Turns: []CodingTurn{
			{InputTokens: 130, OutputTokens: 5, Blocks: []BlockRun{{1, 2}}},
			{InputTokens: 300, Think: 1500 * time.Millisecond, Blocks: []BlockRun{{1, 2}, {7, 3}}},
		},
	}, {BlockTokens: 64}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCodingSessionsNameTheLineThatIsWrong(t *testing.T) {
	good := `{"bs":64,"r":[{"in":1,"h":[1,1]}]}` + "\n"
	for bad, want := range map[string]string{
		`{`: "parse session", `{"bs":0}`: "bs 0", `{"bs":64,"tool":-1}`: "tool -1",
		`{"bs":64,"r":[{"in":0}]}`:                     "in 0",
		`{"bs":64,"r":[{"in":1,"out":-1}]}`:            "out -1",
		`{"bs":64,"r":[{"in":1,"think":-1}]}`:          "think -1",
		`{"bs":64,"r":[{"in":1,"h":[1]}]}`:             "pairs",
		`{"bs":64,"r":[{"in":1,"h":[1,99999999999]}]}`: "a run of 99999999999",
	} {
		_, err := ReadCodingSessions(strings.NewReader(good + bad))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: error %v; want one of line 2 with %q", bad, err, want)
		}
	}
}

func FuzzReadCodingSessions(f *testing.F) {
	f.Add([]byte(codingLines))
	f.Add([]byte(`{"bs":64,"r":[{"in":1,"h":[1,99999999999]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := ReadCodingSessions(strings.NewReader(string(b)))
		if err != nil {
			return
		}
		for _, s := range all {
			for _, turn := range s.Turns {
				if s.BlockTokens < 1 || turn.InputTokens < 1 || turn.OutputTokens < 0 || turn.Think < 0 {
					t.Errorf("session %+v", s)
				}
			}
		}
	})
}
