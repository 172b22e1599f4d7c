package agreed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hashicorp/raft"
)

// Propose has the voters decide on c, from any agent, and returns when it is in force here or c is refused; the error is
// then ErrRefused and the Result says why. It returns within WriteTimeout, with ErrNoQuorum where no leader could be
// reached; joined with ErrUncertain, c may still come into force. It fills c.ID where that is empty.
func (g *Group) Propose(ctx context.Context, c Command) (Result, error) {
	if c.ID == "" {
		c.ID = randomID()
	}
	raw, err := g.prepare(&c)
	if err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Timings.WriteTimeout)
	defer cancel()
	a, err := g.askLeader(ctx, question{Op: opPropose, Command: raw})
	if err != nil {
		return Result{}, fmt.Errorf("propose %s: %w", c.Kind, err)
	}
	g.awaitIndex(ctx, a.Result.Index)
	if a.Result.Refusal != "" {
		return a.Result, fmt.Errorf("%s %w: %s", c.Kind, ErrRefused, a.Result.Refusal)
	}
	return a.Result, nil
}

func (g *Group) prepare(c *Command) ([]byte, error) {
	if c.internal() {
		return nil, fmt.Errorf("%s command: only a leader proposes it", c.Kind)
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Kind == KindPolicy {
		if err := g.cfg.ValidatePolicy(c.Policy.Text); err != nil {
			return nil, fmt.Errorf("policy: %w", err)
		}
	}
	return encodeCommand(c)
}

// Read returns the state after every command whose Propose returned before Read was called, on whichever agent. It needs
// a quorum, as Propose does; State does not.
func (g *Group) Read(ctx context.Context) (*State, error) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Timings.WriteTimeout)
	defer cancel()
	a, err := g.askLeader(ctx, question{Op: opRead})
	if err != nil {
		return nil, fmt.Errorf("read agreed state: %w", err)
	}
	g.adopt(a.held)
	return a.held.state, nil
}

// awaitIndex waits until what was decided is in force here too, so that whoever proposed it sees it.
func (g *Group) awaitIndex(ctx context.Context, index uint64) {
	for {
		changed := g.Changed()
		if g.State().Index >= index {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// askLeader looks for the leader and asks it, again and again until ctx ends.
func (g *Group) askLeader(ctx context.Context, q question) (answer, error) {
	uncertain := false
	var last error
	for hint, silent := "", ""; ; {
		moved := g.movement()
		agent := g.whomToAsk(hint, silent)
		a, err := g.askOnce(ctx, agent, q)
		hint, silent = a.News.Leader, ""
		if err != nil {
			silent = agent
		}
		switch {
		case err != nil:
			uncertain, last = uncertain || !errors.Is(err, errNotSent), err
		case a.Code == codeNewer:
			return a, ErrNewerVersion
		case a.Code == codeInvalid:
			return a, errors.New(a.Text)
		case a.Code == "":
			return a, nil
		default:
			uncertain, last = uncertain || a.Code == codeUncertain, errors.New(a.Text)
		}
		if err := g.pause(ctx, moved, hint != ""); err != nil {
			return a, g.noQuorum(uncertain && q.Op == opPropose, last, err)
		}
	}
}

// pause waits before the next attempt: less with a hint to follow, and less when who leads has moved.
func (g *Group) pause(ctx context.Context, moved <-chan struct{}, hinted bool) error {
	limit := g.cfg.Timings.Retry
	if !hinted {
		limit += rand.N(limit)
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err()
	case <-moved:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	case <-g.ctx.Done():
		return ErrStopped
	}
}

func (g *Group) noQuorum(uncertain bool, last, end error) error {
	if errors.Is(end, ErrStopped) || errors.Is(end, context.Canceled) {
		return errors.Join(end, last)
	}
	if uncertain {
		return fmt.Errorf("%w; %w (%w)", ErrNoQuorum, ErrUncertain, last)
	}
	return fmt.Errorf("%w (%w)", ErrNoQuorum, last)
}

var errNotSent = errors.New("no voter is known or can be reached")

// whomToAsk returns the agent that leads, as the hint or the news have it; empty where that is unknown, or did not answer.
func (g *Group) whomToAsk(hint, silent string) string {
	if hint == "" {
		hint = g.latest().Leader
	}
	if hint == silent {
		return ""
	}
	return hint
}

// askOnce asks agent q; without one it asks somebody else who leads.
func (g *Group) askOnce(ctx context.Context, agent string, q question) (answer, error) {
	if agent != "" {
		return g.askWhileItLeads(ctx, agent, q)
	}
	agent = g.anyVoter()
	if agent == "" {
		return answer{}, errNotSent
	}
	a, err := g.ask(ctx, agent, question{Op: opAsk})
	if err != nil {
		return answer{}, fmt.Errorf("%w: %w", errNotSent, err)
	}
	a.Code, a.Text = codeNotLeader, agent+" was asked and knows no leader"
	return a, nil
}

// askWhileItLeads asks agent q, and gives up as soon as another agent becomes the leader: one that was killed does not answer,
// and the next leads before the attempt is over.
func (g *Group) askWhileItLeads(ctx context.Context, agent string, q question) (answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	before := g.latest().Leader
	g.tasks.spawn(func() {
		for {
			moved := g.movement()
			if now := g.latest().Leader; now != "" && now != before && now != agent {
				cancel()
			}
			select {
			case <-moved:
			case <-ctx.Done():
				return
			}
		}
	})
	return g.ask(ctx, agent, q)
}

// anyVoter returns an agent that may know the voters: one of them, or one with a data folder, by chance.
func (g *Group) anyVoter() string {
	var names []string
	for _, s := range g.latest().Servers {
		if s.Agent != g.cfg.Name {
			names = append(names, s.Agent)
		}
	}
	if len(names) == 0 {
		for _, a := range g.cfg.Agents.Agents() {
			if a.RaftID != "" {
				names = append(names, a.Name)
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	return names[rand.N(len(names))]
}

// lead applies an encoded command as the leader.
func (g *Group) lead(ctx context.Context, raw []byte) answer {
	v := g.voter.Load()
	if !v.leads() {
		return g.notLeader()
	}
	c, err := decodeCommand(raw)
	if err != nil {
		return answer{Code: codeInvalid, Text: err.Error()}
	}
	if c.newerThan(v.machine.state().state.Version) {
		return answer{Code: codeNewer, Text: ErrNewerVersion.Error()}
	}
	if _, err := g.prepare(c); err != nil {
		return answer{Code: codeInvalid, Text: err.Error()}
	}
	return g.decide(ctx, v, c)
}

// decide puts a command into the log at this leader's time and waits for what comes of it.
func (g *Group) decide(ctx context.Context, v *voter, c *Command) answer {
	c.Time = time.Now().UTC().Truncate(time.Millisecond)
	raw, err := encodeCommand(c)
	if err != nil {
		return answer{Code: codeInvalid, Text: err.Error()}
	}
	var f raft.ApplyFuture
	err = v.ask(ctx, func() raft.Future { f = v.raft.Apply(raw, g.cfg.Timings.AttemptTimeout); return f })
	if err != nil {
		if errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrLeadershipTransferInProgress) || errors.Is(err, raft.ErrEnqueueTimeout) {
			return g.notLeader()
		}
		return answer{Code: codeUncertain, Text: err.Error()}
	}
	switch r := f.Response().(type) {
	case Result:
		return answer{Result: r}
	case error:
		return answer{Code: codeInvalid, Text: r.Error()}
	}
	return answer{Code: codeUncertain, Text: "raft gave no result"}
}

// readHere returns the state of a leader that has just proved to be one, by an entry of its own.
func (g *Group) readHere(ctx context.Context) answer {
	v := g.voter.Load()
	if !v.leads() {
		return g.notLeader()
	}
	if err := v.barrier(ctx, g.cfg.Timings.AttemptTimeout); err != nil {
		return answer{Code: codeNotLeader, Text: err.Error()}
	}
	h := v.machine.state()
	return answer{Mark: h.mark, State: true, held: h}
}

func (g *Group) notLeader() answer {
	n := g.latest()
	if n.Leader == g.cfg.Name {
		n.Leader = "" // it has just ceased to be
	}
	return answer{Code: codeNotLeader, Text: g.cfg.Name + " does not lead", News: n}
}
