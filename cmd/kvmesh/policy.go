package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/node"
	"github.com/kvmesh/kvmesh/internal/policy"
)

type policyCmd struct {
	Get      policyGetCmd      `cmd:"" help:"Print the policy in force."`
	Apply    policyApplyCmd    `cmd:"" help:"Put the policy in a file into force on all agents."`
	Diff     policyDiffCmd     `cmd:"" help:"Compare the policy in force with a file."`
	Validate policyValidateCmd `cmd:"" help:"Check a file; needs no agent."`
	History  policyHistoryCmd  `cmd:"" help:"List the policies that the mesh has agreed on, newest first."`
	Rollback policyRollbackCmd `cmd:"" help:"Put an earlier policy into force again."`
}

// loadPolicy reads and checks the policy in a file. Each fault is a line that begins with the file's name.
func loadPolicy(file string) (p forward.Policy, text string, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return p, "", err
	}
	parsed, err := policy.Parse(b)
	if err != nil {
		return p, "", fmt.Errorf("%s: %s", file, strings.ReplaceAll(err.Error(), "\n", "\n"+file+": "))
	}
	return *parsed, string(b), nil
}

type policyGetCmd struct {
	agentFlags
}

// policyHead begins the first line that get prints, before the index. Apply finds there what the file was made from.
const policyHead = "# kvmesh policy of index "

// Run prints the policy in force.
func (c *policyGetCmd) Run(ctx context.Context) error {
	var p node.PolicyAnswer
	if err := c.get(ctx, "/debug/policy", &p); err != nil {
		return err
	}
	if p.Trouble != "" {
		fmt.Fprintln(os.Stderr, "kvmesh:", p.Trouble)
	}
	if p.Source != node.SourceAgreed {
		fmt.Printf("# kvmesh policy: %s; the mesh has agreed on none\n", p.Source)
	} else {
		fmt.Printf("%s%d, by %s at %s\n", policyHead, p.Index, p.Author, p.Time.UTC().Format(time.RFC3339))
	}
	fmt.Print(p.Text)
	return nil
}

// basedOn cuts the line that get prints off text, and returns the index in it; 0 without one.
func basedOn(text string) (rest string, index uint64) {
	first, rest, _ := strings.Cut(text, "\n")
	number, ok := strings.CutPrefix(first, policyHead)
	if !ok {
		return text, 0
	}
	number, _, _ = strings.Cut(number, ",")
	index, _ = strconv.ParseUint(number, 10, 64)
	return rest, index
}

type policyApplyCmd struct {
	agentFlags
	DryRun bool   `help:"Change nothing; show which of the agent's last decisions would have been others."`
	Force  bool   `help:"Do not look whether another policy came into force since the file was made."`
	File   string `arg:"" help:"YAML file. If its first line is the one that kvmesh policy get prints, it is refused when another policy has come into force since."`
}

// Run has the mesh agree on the policy in the file.
func (c *policyApplyCmd) Run(ctx context.Context) error {
	_, text, err := loadPolicy(c.File)
	if err != nil {
		return err
	}
	text, index := basedOn(text)
	if strings.TrimSpace(text) == "" {
		text = "{}\n"
	}
	if c.DryRun {
		var answer node.TryAnswer
		if err := c.change(ctx, "/debug/policy/try", url.Values{}, text, &answer); err != nil {
			return err
		}
		printTry(os.Stdout, &answer)
		return nil
	}
	if index == 0 { // nobody else may come in between, at least
		var now node.PolicyAnswer
		if err := c.get(ctx, "/debug/policy", &now); err != nil {
			return err
		}
		if len(now.History) > 0 {
			index = now.History[0].Index
		}
	}
	query := url.Values{}
	if !c.Force {
		query.Set("based_on", strconv.FormatUint(index, 10))
	}
	var done node.ChangeAnswer
	if err := c.change(ctx, "/debug/policy", query, text, &done); err != nil {
		return err
	}
	fmt.Printf("in force: policy of index %d\n", done.Index)
	return nil
}

func printTry(out io.Writer, a *node.TryAnswer) {
	fmt.Fprintf(out, "%d of the last %d decisions of this agent would have been others", len(a.Changes), a.Decisions)
	if a.Unsure > 0 {
		fmt.Fprintf(out, " (of %d it cannot be said on which engine: that needs what only a decision looks at)", a.Unsure)
	}
	fmt.Fprintln(out)
	if len(a.Changes) == 0 {
		return
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TIME\tREQUEST\tMODEL\tCLASS\tSTRATEGY\tENGINE")
	for _, c := range a.Changes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", c.Time.Format(time.TimeOnly), c.ID, c.Model, became(c.Was.Class, c.Would.Class),
			became(string(c.Was.Strategy), string(c.Would.Strategy)), became(string(c.Was.Engine), string(c.Would.Engine)))
	}
	w.Flush()
}

func became(was, would string) string {
	switch would {
	case was:
		return was
	case "":
		return was + " -> ?"
	}
	return was + " -> " + would
}

type policyDiffCmd struct {
	agentFlags
	File string `arg:"" help:"YAML file."`
}

// Run prints what the file would change in the text of the policy in force.
func (c *policyDiffCmd) Run(ctx context.Context) error {
	_, text, err := loadPolicy(c.File)
	if err != nil {
		return err
	}
	var now node.PolicyAnswer
	if err := c.get(ctx, "/debug/policy", &now); err != nil {
		return err
	}
	text, _ = basedOn(text)
	lines := diffLines(splitLines(now.Text), splitLines(text))
	if len(lines) == 0 {
		fmt.Println("no difference")
	}
	for _, l := range lines {
		fmt.Println(l)
	}
	return nil
}

type policyValidateCmd struct {
	File string `arg:"" help:"YAML file."`
}

// Run checks the file.
func (c *policyValidateCmd) Run() error {
	p, _, err := loadPolicy(c.File)
	if err != nil {
		return err
	}
	fmt.Printf("%s is a good policy with %d classes\n", c.File, len(p.Classes))
	return nil
}

type policyHistoryCmd struct {
	agentFlags
}

// Run lists the policies.
func (c *policyHistoryCmd) Run(ctx context.Context) error {
	var p node.PolicyAnswer
	if err := c.get(ctx, "/debug/policy", &p); err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "INDEX\tTIME\tAUTHOR\tLINES\t")
	for _, old := range p.History {
		mark := ""
		if old.Index == p.Index {
			mark = "in force"
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%s\n", old.Index, old.Time.UTC().Format(time.RFC3339), old.Author, strings.Count(old.Text, "\n"), mark)
	}
	return w.Flush()
}

type policyRollbackCmd struct {
	agentFlags
	Index uint64 `arg:"" optional:"" help:"Index of the policy, as kvmesh policy history lists them; the one before the present one by default."`
}

// Run has the mesh go back.
func (c *policyRollbackCmd) Run(ctx context.Context) error {
	query := url.Values{}
	if c.Index > 0 {
		query.Set("to", strconv.FormatUint(c.Index, 10))
	}
	var done node.ChangeAnswer
	if err := c.change(ctx, "/debug/policy/rollback", query, "", &done); err != nil {
		return err
	}
	fmt.Printf("in force: policy of index %d\n", done.Index)
	return nil
}
