package check

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTestsAreCounted(t *testing.T) {
	out := `go: downloading something
{"Action":"run","Package":"m/p","Test":"TestA"}
{"Action":"pass","Package":"m/p","Test":"TestA/case"}
{"Action":"pass","Package":"m/p","Test":"TestA"}
{"Action":"fail","Package":"m/p","Test":"TestB"}
{"Action":"skip","Package":"m/p","Test":"TestC"}
{"Action":"output","Package":"m/p","Test":"TestC","Output":"pass"}
{"Action":"pass","Package":"m/q"}
`
	got, err := ReadTests(out)
	if err != nil {
		t.Fatal(err)
	}
	want := TestResults{Passed: 2, Failed: 1, Skipped: 1, Names: []string{"p.TestA"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ReadTests (-want +got):\n%s", diff)
	}
	if missing := got.Missing([]string{"p.TestA", "p.TestB"}); !cmp.Equal(missing, []string{"p.TestB"}) {
		t.Errorf("missing = %v, want p.TestB", missing)
	}
}
