package simcluster

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/node"
)

// expectation looks whether something is so. Limit is how long it may take to become so; 0 for now.
type expectation func(p *play, limit time.Duration) error

// expect reads "[within D] WHAT [as NAME]". The name goes before those of the figures.
func expect(p *parser, words []string) (action, error) {
	limit, as := time.Duration(0), ""
	if n := len(words); n > 2 && words[n-2] == "as" {
		words, as = words[:n-2], words[n-1]+"_"
	}
	if len(words) > 2 && words[0] == "within" {
		var err error
		if limit, err = time.ParseDuration(words[1]); err != nil || limit <= 0 {
			return nil, fmt.Errorf("%q is no time to wait", words[1])
		}
		words = words[2:]
	}
	look, err := p.expectation(words)
	return func(p *play) error {
		p.as = as
		return look(p, limit)
	}, err
}

func (p *parser) expectation(words []string) (expectation, error) {
	text := strings.Join(words, " ")
	switch {
	case text == "digests equal since the last change":
		return (*play).expectDigestsEqual, nil
	case text == "views equal":
		return becomes("views_equal", func(c *Cluster) []string { return append(c.Ghosts(), c.StaleDigests()...) }), nil
	case text == "no ghost":
		return becomes("no_ghost", (*Cluster).Ghosts), nil
	case text == "quiet":
		return becomes("quiet", (*Cluster).busy), nil
	case text == "first bytes":
		return (*play).expectFirstBytes, nil
	case text == "twins refused":
		return (*play).expectTwinsRefused, nil
	case text == "flat":
		return (*play).expectFlat, nil
	case text == "no stale digest used":
		return (*play).expectNoStaleDigestUsed, nil
	case strings.HasPrefix(text, "no client error"):
		return p.noClientError(words[3:])
	case strings.HasPrefix(text, "no decision for ") && len(words) > 5 && words[len(words)-2] == "after":
		return p.noDecision(words[3:len(words)-2], words[len(words)-1])
	default:
		return nil, fmt.Errorf("nobody knows how to expect %q", text)
	}
}

// becomes waits until there are no differences.
func becomes(name string, differences func(*Cluster) []string) expectation {
	return func(p *play, limit time.Duration) error {
		took, left := p.c.awaitNone(limit, func() []string { return differences(p.c) })
		if len(left) > 0 {
			return fmt.Errorf("%d differences, among them: %s", len(left), strings.Join(left[:min(len(left), 5)], "; "))
		}
		p.measured(name, took.Seconds(), "s")
		return nil
	}
}

// still is how long digests must not have changed before their last change is known: three digest periods of a small mesh.
const still = 1500 * time.Millisecond

// expectDigestsEqual waits until the owners' digests change no more, and for all views of them to be equal within limit
// after their last change.
func (p *play) expectDigestsEqual(limit time.Duration) error {
	var last string
	var changed, equal time.Time // equal: since when all are; zero when they are not
	for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		now, digests := time.Now(), p.c.ownDigests()
		if digests == "" {
			return errors.New("no digest holds anything")
		}
		if digests != last {
			last, changed, equal = digests, now, time.Time{}
		}
		stale := p.c.StaleDigests()
		if len(stale) > 0 {
			equal = time.Time{}
		} else if equal.IsZero() {
			equal = now
		}
		switch {
		case len(stale) > 0 && now.Sub(changed) > limit:
			return fmt.Errorf("%d digests differ, among them: %s", len(stale), strings.Join(stale[:min(len(stale), 5)], "; "))
		case now.Sub(begun) > limit+time.Minute:
			return errors.New("the owners' digests do not cease to change")
		case len(stale) == 0 && now.Sub(changed) > still:
			p.measured("digests_equal", equal.Sub(changed).Seconds(), "s")
			return nil
		}
	}
}

// busy returns one line for each agent whose counters are not zero.
func (c *Cluster) busy() (lines []string) {
	for i := range c.agents {
		if !c.Running(i) {
			continue
		}
		if n := c.Status(i).Counters; !idle(n) {
			lines = append(lines, fmt.Sprintf("%s: %+v", Name(i), n))
		}
	}
	return lines
}

// noClientError reads "", "except streams begun at AGENTS" and "except streams begun across": what a partition parted.
func (p *parser) noClientError(words []string) (expectation, error) {
	if len(words) == 0 {
		return noClientError(nil), nil
	}
	rest, ok := strings.CutPrefix(strings.Join(words, " "), "except streams begun ")
	if !ok {
		return nil, errors.New("it takes: except streams begun at AGENTS, or across")
	}
	if rest == "across" {
		return noClientError(func(*reply) bool { return true }), nil
	}
	at, ok := strings.CutPrefix(rest, "at ")
	if !ok {
		return nil, errors.New("it takes: except streams begun at AGENTS, or across")
	}
	agents, err := p.agentsOf(strings.Fields(at)...)
	return noClientError(func(r *reply) bool { return slices.Contains(agents, r.owner) || slices.Contains(agents, r.agent) }), err
}

// noClientError looks at all requests since the last such look. A request may fail that excusable names when an agent that it
// needed was lost while it ran: after its answer had begun, or when its client's own agent ended.
func noClientError(excusable func(*reply) bool) expectation {
	return func(p *play, _ time.Duration) error {
		all, excused := p.load.all(), 0
		replies := all[p.judged:]
		p.judged = len(all)
		for _, r := range replies {
			switch {
			case r.problem == "":
			case excusable != nil && excusable(&r) && p.excuse(&r):
				excused++
			default:
				return fmt.Errorf("through %s, sent %v after the beginning, answer begun: %v, took %v, by agent %d: %s",
					Name(r.agent), r.sent.Sub(p.start), !r.began.IsZero(), r.ended.Sub(r.sent), r.owner, r.problem)
			}
		}
		if len(replies) == 0 {
			return errors.New("no request was answered since the last look")
		}
		p.counted("client_errors", 0)
		p.counted("streams_cut", excused)
		p.counted("requests", len(replies))
		return nil
	}
}

// excuse reports whether a loss hit a request.
func (p *play) excuse(r *reply) bool {
	return slices.ContainsFunc(p.losses, func(l loss) bool {
		switch {
		case l.at.Before(r.sent) || l.at.After(r.ended):
			return false
		case l.dead[r.agent]:
			return true
		default:
			return r.owner >= 0 && l.apart(r.agent, r.owner) && !r.began.IsZero() && r.began.Before(l.at.Add(time.Millisecond)) && r.err == nil
		}
	})
}

// expectFirstBytes looks how long the first bytes took of the requests since the last such look: of 95 in 100 of them not
// longer than limit.
func (p *play) expectFirstBytes(limit time.Duration) error {
	all := p.load.all()
	var took []time.Duration
	for _, r := range all[p.timed:] {
		if !r.began.IsZero() {
			took = append(took, r.began.Sub(r.sent))
		}
	}
	p.timed = len(all)
	if len(took) < 20 {
		return fmt.Errorf("%d answers are too few", len(took))
	}
	slices.Sort(took)
	p95 := took[len(took)*95/100]
	p.measured("first_bytes_p50", 1000*took[len(took)/2].Seconds(), "ms")
	p.measured("first_bytes_p95", 1000*p95.Seconds(), "ms")
	if p95 > limit {
		return fmt.Errorf("95 in 100 first bytes came within %v", p95)
	}
	return nil
}

// noDecision reads AGENTS and "2s".
func (p *parser) noDecision(who []string, after string) (expectation, error) {
	agents, err := p.agentsOf(who...)
	if err != nil {
		return nil, err
	}
	grace, err := time.ParseDuration(after)
	if err != nil {
		return nil, fmt.Errorf("%q is no time", after)
	}
	return func(p *play, _ time.Duration) error { return p.expectNoDecision(agents, grace) }, nil
}

// expectNoDecision looks at every request that an agent took in later than grace after the loss of one of agents: it may not
// have been tried there. That a decision lists one among those that it knows is only counted.
func (p *play) expectNoDecision(agents []int, grace time.Duration) error {
	seen, listed := 0, 0
	for _, j := range agents {
		lost, ok := p.lostAt[j]
		if !ok {
			return fmt.Errorf("%s is not lost", Name(j))
		}
		for i := range p.c.agents {
			if !p.c.Running(i) || slices.Contains(agents, i) {
				continue
			}
			n, among, err := p.decisions(i, j, lost.Add(grace))
			if err != nil {
				return err
			}
			seen, listed = seen+n, listed+among
		}
	}
	if seen == 0 {
		return errors.New("nothing was decided since")
	}
	p.counted("decisions", seen)
	p.counted("decisions_that_list_them", listed)
	return nil
}

// decisions returns how many decisions agent i has made since a moment, and how many of them list the engine beside agent j.
// It is an error when one has tried it.
func (p *play) decisions(i, j int, since time.Time) (seen, listed int, err error) {
	events, err := p.c.Decisions(p.ctx, i)
	if err != nil {
		return 0, 0, err
	}
	for _, e := range events {
		if e.Time.Before(since) {
			continue
		}
		seen++
		if slices.ContainsFunc(e.Attempts, func(a forward.Attempt) bool { return string(a.Engine) == EngineID(j) }) {
			return 0, 0, fmt.Errorf("%s tries %s %v after it may: %+v", Name(i), EngineID(j), e.Time.Sub(since), e)
		}
		if slices.ContainsFunc(e.Candidates, func(k forward.CandidateInfo) bool { return string(k.Engine) == EngineID(j) }) {
			listed++
		}
	}
	return seen, listed, nil
}

// staleTokens is by how much a claim may be above what an engine had: keys stand for more than a token each, and another
// request may be about to fill what a digest tells already.
const staleTokens = 256

// expectNoStaleDigestUsed looks at all requests.
func (p *play) expectNoStaleDigestUsed(time.Duration) error {
	worst := 0
	for _, r := range p.load.all() {
		worst = max(worst, r.claimed)
	}
	p.measured("overclaimed", float64(worst), "tokens")
	if worst > staleTokens {
		return fmt.Errorf("%d tokens more were claimed than an engine had", worst)
	}
	return nil
}

// expectTwinsRefused waits until every twin was refused by a peer, and looks whether it got in somewhere.
func (p *play) expectTwinsRefused(limit time.Duration) error {
	took, left := p.c.awaitNone(limit, func() (lines []string) {
		for _, n := range p.twins {
			if s := n.Status(); !slices.ContainsFunc(s.Refusals, func(r node.RefusalStatus) bool { return r.ByPeer }) {
				lines = append(lines, "the twin of "+s.Agent+" was refused by nobody")
			}
		}
		return lines
	})
	for _, n := range p.twins {
		for _, a := range n.Status().Agents {
			if a.State != "own" && a.Connected {
				left = append(left, "the twin of "+n.Status().Agent+" is connected to "+a.Name)
			}
		}
	}
	if len(left) > 0 || len(p.twins) == 0 {
		return fmt.Errorf("%d twins: %s", len(p.twins), strings.Join(left, "; "))
	}
	p.measured("twins_refused", took.Seconds(), "s")
	return nil
}

// usage is what a leak would let grow.
type usage struct {
	goroutines int
	heap       uint64
}

// mark notes what is used at rest.
func (p *play) mark() error {
	p.marked = p.rest()
	return nil
}

// rest waits until what was used for requests has been given back, and returns what is used then.
func (p *play) rest() usage {
	p.c.client.transport.CloseIdleConnections()
	time.Sleep(settled)
	runtime.GC()
	runtime.GC() // the second takes what the first found to be pooled
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return usage{runtime.NumGoroutine(), m.HeapAlloc}
}

// What may have grown at rest and is no leak: a connection that is dialed again, tables that grow in steps.
const (
	flatGoroutines = 16
	flatHeap       = 4 << 20
)

// expectFlat compares with what was marked.
func (p *play) expectFlat(time.Duration) error {
	if p.marked == (usage{}) {
		return errors.New("nothing is marked to compare with")
	}
	now := p.rest()
	more := now.goroutines - p.marked.goroutines
	heap := float64(now.heap) - float64(p.marked.heap)
	p.measured("goroutines_more", float64(more), "goroutines")
	p.measured("heap_more", heap/(1<<20), "MiB")
	if more > flatGoroutines {
		return fmt.Errorf("%d goroutines became %d", p.marked.goroutines, now.goroutines)
	}
	if heap > flatHeap {
		return fmt.Errorf("the heap grew by %.1f MiB", heap/(1<<20))
	}
	return nil
}
