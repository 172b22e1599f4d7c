package main

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/internal/node"
)

type cordonCmd struct {
	agentFlags
	cordonFlags
}

// cordonFlags are what cordon and drain take.
type cordonFlags struct {
	Target string        `arg:"" name:"engine-or-agent" help:"An engine, AGENT/ENGINE, or an agent. An agent that is asked to cordon itself or an engine of its own does so also when the mesh has no quorum."`
	Reason string        `help:"Why, for those who see it." placeholder:"TEXT"`
	For    time.Duration `name:"for" help:"When it ends by itself; by default it does not." placeholder:"DURATION"`
	Force  bool          `help:"Also if no engine or agent of that name is known."`
}

// Run cordons.
func (c *cordonCmd) Run(ctx context.Context) error { return c.cordon(ctx, &c.agentFlags) }

func (c *cordonFlags) cordon(ctx context.Context, at *agentFlags) error {
	query := url.Values{"target": {c.Target}, "reason": {c.Reason}}
	if c.For != 0 {
		query.Set("for", c.For.String())
	}
	if c.Force {
		query.Set("force", "1")
	}
	var answer node.CordonAnswer
	if err := at.change(ctx, "/debug/cordon", query, "", &answer); err != nil {
		return err
	}
	ends := ""
	if c.For != 0 {
		ends = ", for " + c.For.String()
	}
	fmt.Printf("%s is cordoned%s\n", c.Target, ends)
	if answer.Note != "" {
		fmt.Println(answer.Note)
	}
	return nil
}

type uncordonCmd struct {
	agentFlags
	Target string `arg:"" name:"engine-or-agent" help:"An engine, AGENT/ENGINE, or an agent, as it was cordoned."`
}

// Run lifts a cordon.
func (c *uncordonCmd) Run(ctx context.Context) error {
	var answer node.CordonAnswer
	if err := c.change(ctx, "/debug/uncordon", url.Values{"target": {c.Target}}, "", &answer); err != nil {
		return err
	}
	fmt.Printf("%s is cordoned no more\n", c.Target)
	return nil
}

type drainCmd struct {
	agentFlags
	cordonFlags
	Timeout time.Duration `help:"How long to wait." default:"30m"`
}

// drainPoll is the period of looking: loads come about once a second.
const drainPoll = time.Second

// Run cordons and waits until the engines' owners say that they take nothing new and that nothing runs.
func (c *drainCmd) Run(ctx context.Context) error {
	if err := c.cordon(ctx, &c.agentFlags); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	for last := ""; ; {
		var s node.Status
		if err := c.get(ctx, "/debug/mesh.json", &s); err != nil {
			return err
		}
		words, done := drainProgress(&s, c.Target)
		if words != last {
			fmt.Println(words)
			last = words
		}
		if done {
			return nil
		}
		select {
		case <-time.After(drainPoll):
		case <-ctx.Done():
			return fmt.Errorf("%s is not drained, and stays cordoned: %w", c.Target, context.Cause(ctx))
		}
	}
}

// drainProgress says how far the engines of a target are, and whether nothing runs there any more.
func drainProgress(s *node.Status, target string) (words string, done bool) {
	var parts []string
	done = true
	for _, e := range s.Engines {
		if string(e.Engine) != target && e.Engine.Agent() != target {
			continue
		}
		running := max(e.InFlight, e.Waiting)
		switch e.State {
		case "draining", "down", "unreachable":
			done = done && (running == 0 || e.State != "draining")
		default:
			done = false
		}
		parts = append(parts, fmt.Sprintf("%s is %s, %d requests run", e.Engine, e.State, running))
	}
	words = cmp.Or(strings.Join(parts, "; "), "no engine of "+target+" is known")
	if done {
		words += ": drained"
	}
	return words, done
}

type revokeCmd struct {
	agentFlags
	Serial string `arg:"" help:"Serial number as openssl x509 -serial prints it, or kvmesh cert when it makes a certificate."`
	Reason string `help:"Why, for those who see it." placeholder:"TEXT"`
}

// Run has the mesh refuse a certificate for good.
func (c *revokeCmd) Run(ctx context.Context) error {
	var done node.ChangeAnswer
	query := url.Values{"serial": {c.Serial}, "reason": {c.Reason}}
	if err := c.change(ctx, "/debug/revoke", query, "", &done); err != nil {
		return err
	}
	fmt.Printf("revoked %s on every agent; replace the gossip key too, if whoever had the certificate had that: kvmesh gossip-key rotate\n", c.Serial)
	return nil
}
