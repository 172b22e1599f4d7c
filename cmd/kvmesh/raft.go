package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/kvmesh/kvmesh/internal/node"
	"github.com/kvmesh/kvmesh/mesh/agreed"
)

type raftCmd struct {
	Members raftMembersCmd `cmd:"" help:"Show who decides, and whether a majority is there."`
	Recover raftRecoverCmd `cmd:"" help:"Begin again with one agent after a majority of the voters was lost for good. The agent must not run."`
}

type raftMembersCmd struct {
	agentFlags
}

// Run prints the voters.
func (c *raftMembersCmd) Run(ctx context.Context) error {
	var s node.Status
	if err := c.get(ctx, "/debug/mesh.json", &s); err != nil {
		return err
	}
	printAgreed(os.Stdout, &s.Agreed)
	printMembers(os.Stdout, &s.Agreed)
	return nil
}

func printMembers(out io.Writer, s *node.AgreedStatus) {
	if len(s.Members) == 0 {
		return
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MEMBER\tROLE\tREACHED\tRAFT ID")
	for _, m := range s.Members {
		role := "joins"
		switch {
		case m.Leader:
			role = "leader"
		case m.Voter:
			role = "voter"
		}
		fmt.Fprintf(w, "%s\t%s\t%t\t%s\n", m.Agent, role, m.Here, m.RaftID)
	}
	w.Flush()
}

// printAgreed says in a few lines what the mesh has agreed on and who decides.
func printAgreed(out io.Writer, s *node.AgreedStatus) {
	quorum := "no quorum: nothing can be changed"
	if s.Quorum {
		quorum = "leader " + s.Leader
	}
	if s.Index == 0 && !s.Quorum {
		fmt.Fprintln(out, "agreed state: none yet; this agent is a", s.Role)
	} else {
		fmt.Fprintf(out, "agreed state: index %d, this agent is a %s, %s\n", s.Index, s.Role, quorum)
	}
	p := s.Policy
	fmt.Fprintf(out, "policy: %s, %d classes", p.Source, p.Classes)
	if p.Index > 0 {
		fmt.Fprintf(out, ", index %d, by %s at %s", p.Index, cmp.Or(p.Author, "unknown"), p.Time.UTC().Format(time.RFC3339))
	}
	fmt.Fprintln(out)
	printChanges(out, s)
	for _, c := range s.Cordons {
		fmt.Fprintf(out, "cordoned: %s", cmp.Or(c.Engine, c.Agent))
		if c.Reason != "" {
			fmt.Fprintf(out, ", %s", c.Reason)
		}
		fmt.Fprintf(out, ", by %s since %s", cmp.Or(c.Author, "unknown"), c.Since.UTC().Format(time.RFC3339))
		if !c.Expiry.IsZero() {
			fmt.Fprintf(out, " until %s", c.Expiry.UTC().Format(time.RFC3339))
		}
		if c.Local {
			fmt.Fprint(out, " (this agent's own)")
		}
		fmt.Fprintln(out)
	}
	for _, r := range s.Revoked {
		fmt.Fprintf(out, "revoked: %s %s\n", r.Serial, r.Reason)
	}
}

type raftRecoverCmd struct {
	Data string `help:"Data folder of the agent whose status shows the highest epoch and index." required:"" placeholder:"DIR"`
	Name string `help:"Name of that agent; by default the host name." placeholder:"NAME"`
}

// Run makes the agent the only voter of its group.
func (c *raftRecoverCmd) Run() error {
	name := c.Name
	if name == "" {
		name, _ = os.Hostname()
	}
	folder := node.AgreedFolder(c.Data)
	if _, err := os.Stat(folder); err != nil {
		return fmt.Errorf("there is no agreed state in %s: %w", c.Data, err)
	}
	if err := agreed.RecoverAlone(folder, name); err != nil {
		return errors.Join(err, errors.New("the agent must not run meanwhile"))
	}
	fmt.Printf("%s is the only voter now. Move the folders %s of the other voters away, start this agent, then them: they join.\n", name, node.AgreedFolder("DATA"))
	return nil
}
