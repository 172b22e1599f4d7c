package forward

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// TestCandidatesShowWhetherTheyAreVerified: the page marks candidates whose overlap nothing checks.
func TestCandidatesShowWhetherTheyAreVerified(t *testing.T) {
	for _, tt := range []struct {
		residency engine.Residency
		evidence  engine.Evidence
		want      bool
	}{
		{engine.ResidencyMirror, engine.EvidenceNone, true},
		{engine.ResidencyEvents, engine.EvidenceNone, true},
		{engine.ResidencyEvents, engine.EvidenceCounters, false},
		{engine.ResidencyMirror, engine.EvidenceUsage, false},
		{engine.ResidencyNone, engine.EvidenceNone, false}, // claims nothing
	} {
		v, _, now := testView(t)
		e := described("b/0", 1)
		e.Residency, e.Evidence = tt.residency, tt.evidence
		v.Announce("b", []engine.Engine{e}, now)
		infos := candidateInfos(&Question{}, v.Candidates(nil, "m", now))
		text, err := json.Marshal(infos)
		if err != nil || len(infos) != 1 || strings.Contains(string(text), `"unverified":true`) != tt.want {
			t.Errorf("%v by %v: %s, %v; want unverified %v", tt.residency, tt.evidence, text, err, tt.want)
		}
	}
}
