package agreed

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// TestOlderAgentsKeepWhatTheyDoNotKnow has voters and watchers carry members of a later version through commands,
// snapshots, restarts and watches.
func TestOlderAgentsKeepWhatTheyDoNotKnow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.found(3)
		w := c.add("w", -1)
		c.await(5*time.Second, "state at the watcher", func() bool { return w.State().Index > 0 })
		for _, name := range names("v", 3) {
			c.restore(name, `{"later":{"n":12345678901234567890}}`)
		}
		for _, cmd := range laterCommands() {
			if r, err := w.Propose(t.Context(), cmd); err != nil || r.Refusal != "" {
				t.Fatalf("%s: %+v %v", cmd.Kind, r, err)
			}
		}
		for _, name := range names("v", 3) {
			if err := c.group(name).voter.Load().raft.Snapshot().Error(); err != nil {
				t.Fatal(err)
			}
			c.killAgent(name)
		}
		for _, name := range names("v", 3) {
			c.start(name)
		}
		c.await(30*time.Second, "a leader", func() bool { return c.leader() != "" })
		c.propose("v2", "last", "last")
		c.add("late", -1)
		c.await(5*time.Second, "policy everywhere", func() bool { return c.everywhere("last") })
		kept, lost := 0, 0
		for _, name := range c.running() {
			raw := string(c.group(name).current.Load().raw)
			for _, member := range laterMembers {
				if kept++; !strings.Contains(raw, member) {
					lost++
					t.Errorf("%s lost %s: it has\n%s", name, member, raw)
				}
			}
		}
		t.Logf("figure versions_members_kept %d members on %d agents", kept-lost, len(c.running()))
		t.Logf("figure versions_members_lost %d members", lost)
	})
}

// laterMembers are what laterCommands and the restored state bring, as it stands in the state.
var laterMembers = []string{
	`"later":{"n":12345678901234567890}`, `"style":"x"`, `"rack":7`, `"blocks":2`, `"salt":[1]`, `"ticket":"t"`,
}

func laterCommands() []Command {
	value := func(text string) jsontext.Value { return jsontext.Value(text) }
	return []Command{
		{ID: "1", Kind: KindPolicy, Policy: &Policy{Text: "a", Unknown: value(`{"style":"x"}`)}},
		{ID: "2", Kind: KindCordon, Cordon: &Cordon{Target: Target{Engine: "e"}, Unknown: value(`{"rack":7}`)}},
		{ID: "3", Kind: KindGeometry, Geometry: &Geometry{Bits: 1 << 20, Hashes: 5, Unknown: value(`{"blocks":2}`)}},
		{ID: "4", Kind: KindScheme, Model: "m", Scheme: &Scheme{Version: 2, Unknown: value(`{"salt":[1]}`)}},
		{ID: "5", Kind: KindRevoke, Revoked: &Revoked{Serial: "ab", Unknown: value(`{"ticket":"t"}`)}},
	}
}

// restore gives a voter its state with more members, as a snapshot of a later version's leader does.
func (c *cluster) restore(name, members string) {
	c.t.Helper()
	m := c.group(name).voter.Load().machine
	s := *m.state().state
	s.Unknown = jsontext.Value(members)
	h, err := hold(&s)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := m.Restore(io.NopCloser(bytes.NewReader(h.raw))); err != nil {
		c.t.Fatal(err)
	}
}
