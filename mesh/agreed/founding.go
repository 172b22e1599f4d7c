package agreed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/hashicorp/raft"
)

// Founding decides once who the first voters are. It is Paxos for one value: every agent with Expect is an acceptor, and
// Expect of them are a quorum, so that any two quorums share an acceptor as long as there are fewer than twice as many.

// ballot orders attempts to found a group.
type ballot struct {
	Round uint64 `json:"round"`
	ID    string `json:"id"` // raft id of who tries
}

func (b ballot) compare(c ballot) int {
	return cmp.Or(cmp.Compare(b.Round, c.Round), cmp.Compare(b.ID, c.ID))
}

// acceptor is what an agent must remember of foundings, on disk before it answers.
type acceptor struct {
	Promised ballot   `json:"promised"`          // no lower ballot is accepted any more
	Accepted ballot   `json:"accepted,omitzero"` // the last one that was, with Voters
	Voters   []server `json:"voters,omitzero"`
	Founded  bool     `json:"founded,omitzero"` // Voters were accepted by a quorum: they are the first voters for ever
}

const (
	maxFounding = 64 << 10
	// rankDelay times its place among the founders is how many periods a founder leaves the attempt to those before it.
	rankDelay = 3
	// asked at once.
	maxAsking = 16
)

func loadAcceptor(path string) (acceptor, error) {
	var a acceptor
	data, err := readBounded(path, maxFounding)
	if data == nil || err != nil {
		return a, err
	}
	if err := json.Unmarshal(data, &a); err != nil {
		return a, fmt.Errorf("%s is damaged: %w", path, err)
	}
	return a, nil
}

// answerTo returns the acceptor after question q, and what it answers.
func (a acceptor) answerTo(q question) (acceptor, answer) {
	switch {
	case q.Op == opFounded:
		a.Accepted, a.Voters, a.Founded = q.Ballot, q.Voters, true
	case q.Ballot.compare(a.Promised) < 0:
		return a, answer{Code: codeInvalid, Text: "a later attempt is under way", Promised: a.Promised}
	case q.Op == opAccept:
		a.Promised, a.Accepted, a.Voters = q.Ballot, q.Ballot, q.Voters
	default:
		a.Promised = q.Ballot
	}
	return a, answer{Promised: a.Promised, Accepted: a.Accepted, Voters: a.Voters}
}

// founding answers as an acceptor. An agent that knows a group takes no part in founding another.
func (g *Group) founding(q question) answer {
	if g.raftID() == "" || g.cfg.Expect == 0 || q.Expect != g.cfg.Expect || len(q.Voters) > MaxVoters {
		return answer{Code: codeInvalid, Text: fmt.Sprintf("%s founds groups of %d, not of %d", g.cfg.Name, g.cfg.Expect, q.Expect)}
	}
	if q.Op != opFounded && (g.State().Index > 0 || len(g.voter.Load().servers()) > 0) {
		return answer{Code: codeGroup, Text: "a group exists"}
	}
	g.mu.Lock()
	next, a := g.acceptor.answerTo(q)
	a.RaftID = g.id
	begin := next.Founded && !g.acceptor.Founded
	err := g.keepAcceptorLocked(next)
	g.mu.Unlock()
	if err != nil {
		return answer{Code: codeInvalid, Text: err.Error()}
	}
	if begin {
		g.log.Info("group founded", "voters", q.Voters)
		select {
		case g.restart <- struct{}{}: // the voter begins again, with the first configuration
		default:
		}
	}
	return a
}

// keepAcceptorLocked writes what the acceptor promises. It holds mu over the write, since no other question may be answered
// before it is on disk; State does not need mu.
func (g *Group) keepAcceptorLocked(next acceptor) error {
	data, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encode founding: %w", err)
	}
	if err := g.cfg.writeFile(filepath.Join(g.cfg.Folder, foundingFile), data); err != nil {
		return fmt.Errorf("write founding: %w", err)
	}
	g.acceptor = next
	return nil
}

// bootstrap writes the first configuration into an empty log of a first voter. raft.BootstrapCluster refuses after a crash
// between its two writes; that is no reason here, as the configuration is the same for ever.
func (g *Group) bootstrap(store *guard, snaps raft.SnapshotStore) error {
	g.mu.Lock()
	a, id := g.acceptor, g.id
	g.mu.Unlock()
	if !a.Founded || !slices.ContainsFunc(a.Voters, func(s server) bool { return s.ID == id }) {
		return nil
	}
	last, err := store.LastIndex()
	if err != nil || last > 0 {
		return err
	}
	if list, err := snaps.List(); err != nil || len(list) > 0 {
		return err
	}
	term, err := store.GetUint64([]byte("CurrentTerm")) // as raft names it
	if err != nil && !isMissing(err) {
		return err
	}
	if term == 0 {
		if err := store.SetUint64([]byte("CurrentTerm"), 1); err != nil {
			return err
		}
	}
	var c raft.Configuration
	for _, s := range a.Voters {
		c.Servers = append(c.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(s.ID), Address: raft.ServerAddress(s.Agent)})
	}
	return store.StoreLog(&raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(c)})
}

// foundAll tries to found a group until this agent knows one.
func (g *Group) foundAll() {
	for round := 0; g.ctx.Err() == nil && g.cfg.Expect > 0; round++ {
		if g.State().Index > 0 || len(g.voter.Load().servers()) > 0 {
			g.explain("")
			return
		}
		if err := g.found(round); err != nil {
			g.explain(err.Error())
		}
		g.sleep(g.cfg.Timings.Found)
	}
}

// explain says why there is no group yet.
func (g *Group) explain(why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.settled != why && why != "" {
		g.log.Info("no group is founded yet", "why", why)
	}
	g.settled = why
}

// found makes one attempt, if it is this agent's turn.
func (g *Group) found(round int) error {
	id := g.raftID()
	if id == "" {
		return errors.New("the data folder cannot be used")
	}
	all := g.cfg.Agents.Agents()
	founders, err := g.founders(all, id)
	if err != nil {
		return err
	}
	rank := slices.IndexFunc(founders, func(s server) bool { return s.ID == id })
	if round < rank*rankDelay {
		return errors.New("other agents try first")
	}
	ctx, cancel := context.WithTimeout(g.ctx, g.cfg.Timings.WriteTimeout)
	defer cancel()
	if err := g.nobodyKnowsAGroup(ctx, all); err != nil {
		return err
	}
	return g.attempt(ctx, founders)
}

// founders returns the agents that found a group together with this one, in the order of their raft ids.
func (g *Group) founders(all []Agent, id string) ([]server, error) {
	founders := []server{{ID: id, Agent: g.cfg.Name, Voter: true}}
	for _, a := range all {
		switch {
		case a.Expect == 0 || a.RaftID == "":
		case a.Expect != g.cfg.Expect:
			return nil, fmt.Errorf("bootstrap_expect is %d here and %d at %s: it must be the same everywhere", g.cfg.Expect, a.Expect, a.Name)
		default:
			founders = append(founders, server{ID: a.RaftID, Agent: a.Name, Voter: true})
		}
	}
	switch n := len(founders); {
	case n < g.cfg.Expect:
		return nil, fmt.Errorf("%d of the %d agents of bootstrap_expect are here", n, g.cfg.Expect)
	case n >= 2*g.cfg.Expect:
		return nil, fmt.Errorf("%d agents have bootstrap_expect %d: two groups could come to be, it must be more than half of %d", n, g.cfg.Expect, n)
	}
	slices.SortFunc(founders, func(a, b server) int { return cmp.Compare(a.ID, b.ID) })
	return founders, nil
}

// nobodyKnowsAGroup asks all agents, founders or not. Who does not answer cannot be asked; founders among those are
// covered by the quorum.
func (g *Group) nobodyKnowsAGroup(ctx context.Context, all []Agent) error {
	names := make([]string, 0, len(all))
	for _, a := range all {
		if a.HasState {
			return fmt.Errorf("%s has an agreed state: a group exists", a.Name)
		}
		names = append(names, a.Name)
	}
	for name, a := range g.askEach(ctx, names, question{Op: opAsk}) {
		if a.Mark.Index > 0 || len(a.Servers) > 0 || a.News.Leader != "" {
			return fmt.Errorf("%s knows a group", name)
		}
	}
	return nil
}

// askEach asks several agents at once, and returns the answers of those that gave one.
func (g *Group) askEach(ctx context.Context, names []string, q question) map[string]answer {
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots, answers := make(chan struct{}, maxAsking), map[string]answer{}
	for _, name := range names {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if a, err := g.ask(ctx, name, q); err == nil {
				mu.Lock()
				defer mu.Unlock()
				answers[name] = a
			}
		})
	}
	wg.Wait()
	return answers
}

// attempt is one ballot: a quorum promises, and accepts either what one of them has accepted before, or those who promised.
func (g *Group) attempt(ctx context.Context, founders []server) error {
	g.mu.Lock()
	b := ballot{Round: g.acceptor.Promised.Round + 1, ID: g.id}
	g.mu.Unlock()
	q := question{Op: opPrepare, Expect: g.cfg.Expect, Ballot: b}
	promises, err := g.quorum(ctx, founders, q)
	if err != nil {
		return err
	}
	q.Op, q.Voters = opAccept, choose(founders, promises)
	if _, err := g.quorum(ctx, founders, q); err != nil {
		return err
	}
	q.Op = opFounded
	g.askEach(ctx, agentsOf(founders), q) // who misses it is told by raft, or tries again and finds what was accepted
	return nil
}

func agentsOf(servers []server) []string {
	names := make([]string, 0, len(servers))
	for _, s := range servers {
		names = append(names, s.Agent)
	}
	return names
}

// quorum asks all founders and returns the yeses, if they are enough. This agent's own must be among them: what is on its
// disk keeps it from using a ballot twice.
func (g *Group) quorum(ctx context.Context, founders []server, q question) (map[string]answer, error) {
	answers, yes := g.askEach(ctx, agentsOf(founders), q), map[string]answer{}
	var no error
	for _, f := range founders {
		switch a, ok := answers[f.Agent]; {
		case !ok:
		case a.Code == codeGroup:
			return nil, fmt.Errorf("%s knows a group", f.Agent)
		case a.Code != "" || a.RaftID != f.ID:
			g.seeBallot(a.Promised)
			no = fmt.Errorf("%s: %s", f.Agent, a.Text)
		default:
			yes[f.Agent] = a
		}
	}
	if _, ok := yes[g.cfg.Name]; !ok || len(yes) < q.Expect {
		return nil, errors.Join(fmt.Errorf("%d of %d agents agree to found a group", len(yes), q.Expect), no)
	}
	return yes, nil
}

// seeBallot makes the next attempt of this agent a later one than b.
func (g *Group) seeBallot(b ballot) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if b.Round > g.acceptor.Promised.Round {
		g.acceptor.Promised = ballot{Round: b.Round}
	}
}

// choose returns the value of the highest ballot that was accepted, or else those who promised, at most MaxVoters.
func choose(founders []server, promises map[string]answer) []server {
	var best answer
	for _, a := range promises {
		if len(a.Voters) > 0 && (best.Voters == nil || a.Accepted.compare(best.Accepted) > 0) {
			best = a
		}
	}
	if best.Voters != nil {
		return best.Voters
	}
	var voters []server
	for _, f := range founders {
		if _, ok := promises[f.Agent]; ok && len(voters) < MaxVoters {
			voters = append(voters, f)
		}
	}
	return voters
}
