package agreed

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"time"
)

// bulletin is one frame of a watch. A state frame follows where State is set.
type bulletin struct {
	Mark  mark `json:"mark"`
	State bool `json:"state,omitzero"`
	News  news `json:"news"`
}

const (
	// silences is how many periods without news end a watch.
	silences = 3
	// leaderless is how many periods a watcher stays with an agent that knows no leader, before it tries another.
	leaderless = 1
)

// watchAll follows a voter for as long as this agent does not lead. An agent that raft speaks to, one of a few, watches the
// leader itself: two followers that watched each other would tell each other old news.
func (g *Group) watchAll() {
	for last := ""; g.ctx.Err() == nil; {
		moved := g.movement()
		if g.voter.Load().leads() {
			g.await(moved, g.cfg.Timings.KeepAlive)
			continue
		}
		agent := cmp.Or(g.ownLeader(), g.whomToWatch(last))
		if agent == "" { // most meshes without a group stay without one
			g.await(moved, g.cfg.Timings.Found)
			continue
		}
		if err := g.watch(agent); err != nil {
			g.log.Debug("watch ended", "peer", agent, "err", err)
		}
		g.loseLeader()
		last = agent
		g.sleep(g.cfg.Timings.Retry + rand.N(g.cfg.Timings.Retry))
	}
}

// loseLeader forgets who led, since nobody says so any more.
func (g *Group) loseLeader() {
	n := *g.known.Load()
	n.Leader = ""
	g.known.Store(&n)
}

// whomToWatch returns a voter that is alive by chance, but not last; else an agent with a data folder, else any.
func (g *Group) whomToWatch(last string) string {
	alive := map[string]Agent{}
	for _, a := range g.cfg.Agents.Agents() {
		alive[a.Name] = a
	}
	var voters, likely []string
	for _, s := range g.known.Load().Servers {
		if _, ok := alive[s.Agent]; ok && s.Voter {
			voters = append(voters, s.Agent)
		}
	}
	for _, a := range alive {
		if a.RaftID != "" {
			likely = append(likely, a.Name)
		}
	}
	for _, names := range [][]string{voters, likely, slices.Collect(maps.Keys(alive))} {
		if left := slices.DeleteFunc(names, func(n string) bool { return n == last }); len(left) > 0 {
			return left[rand.N(len(left))]
		}
	}
	return last
}

// watch follows one agent until its stream ends, it has nothing to say, or this agent's own raft has another leader.
func (g *Group) watch(agent string) error {
	ctx, cancel := context.WithTimeout(g.ctx, g.cfg.Timings.AttemptTimeout)
	conn, err := g.open(ctx, agent, streamWatch)
	cancel()
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(g.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	_ = conn.SetWriteDeadline(time.Now().Add(g.cfg.Timings.AttemptTimeout))
	if err := writeJSON(conn, g.current.Load().mark); err != nil {
		return err
	}
	r, led := bufio.NewReader(conn), time.Now()
	for g.ctx.Err() == nil && !g.voter.Load().leads() && cmp.Or(g.ownLeader(), agent) == agent {
		_ = conn.SetReadDeadline(time.Now().Add(silences * g.cfg.Timings.KeepAlive))
		b, err := g.readBulletin(r)
		if err != nil {
			return err
		}
		if b.News.Leader != "" {
			led = time.Now()
		}
		if time.Since(led) > leaderless*g.cfg.Timings.KeepAlive {
			return fmt.Errorf("%s knows no leader", agent)
		}
		if g.isBystander(agent, b.News) {
			return fmt.Errorf("%s is no voter", agent)
		}
	}
	return nil
}

// isBystander reports whether agent itself watches somebody: then the voters that it named are asked directly.
func (g *Group) isBystander(agent string, n news) bool {
	return n.Leader != "" && !slices.ContainsFunc(n.Servers, func(s server) bool { return s.Agent == agent && s.Voter })
}

func (g *Group) readBulletin(r *bufio.Reader) (bulletin, error) {
	var b bulletin
	if err := readJSON(r, maxAnswer, &b); err != nil {
		return b, err
	}
	if b.State {
		h, err := readState(r, b.Mark)
		if err != nil {
			return b, err
		}
		g.adopt(h)
	}
	// An agent that knows no leader may not know the voters either.
	was := g.known.Load()
	if len(b.News.Servers) == 0 {
		b.News.Servers = was.Servers
	}
	if b.News.Leader != was.Leader || !slices.Equal(b.News.Servers, was.Servers) {
		g.known.Store(&b.News)
		g.wake()
	}
	return b, nil
}

// serveWatch tells a watcher of every change until one of the two ends it. A slow watcher misses states in between.
func (g *Group) serveWatch(conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(g.cfg.Timings.AttemptTimeout))
	var theirs mark
	if err := readJSON(bufio.NewReader(conn), maxAnswer, &theirs); err != nil {
		return
	}
	for g.ctx.Err() == nil {
		moved := g.movement()
		h, n := g.current.Load(), g.latest()
		b := bulletin{Mark: h.mark, State: h.mark.newer(theirs), News: n}
		_ = conn.SetWriteDeadline(time.Now().Add(silences * g.cfg.Timings.KeepAlive))
		if err := writeJSON(conn, b); err != nil {
			return
		}
		if b.State {
			if err := writeFrame(conn, h.raw); err != nil {
				return
			}
			theirs = h.mark
		}
		g.awaitNews(moved, theirs, n)
	}
}

// awaitNews returns when there is something to tell, and at the latest after KeepAlive.
func (g *Group) awaitNews(moved <-chan struct{}, theirs mark, told news) {
	until := time.Now().Add(g.cfg.Timings.KeepAlive)
	for g.ctx.Err() == nil && time.Now().Before(until) {
		g.await(moved, time.Until(until))
		moved = g.movement()
		n := g.latest()
		if g.current.Load().mark.newer(theirs) || n.Leader != told.Leader || !slices.Equal(n.Servers, told.Servers) {
			return
		}
	}
}

// offer is a state that a neighbour has.
type offer struct {
	from string
	mark mark
}

// Advertise returns what this agent's state is, for push/pull: some 100 bytes, given to the neighbour's Offer.
func (g *Group) Advertise() []byte {
	h := g.current.Load()
	if h.mark.Index == 0 {
		return nil
	}
	b, err := canonical(h.mark)
	if err != nil {
		return nil // a mark of our own can be encoded
	}
	return b
}

// Offer tells what a neighbour's Advertise returned. If that is newer, the state is fetched in the background and taken
// when it has the hash that was announced. Offer never waits; with a fetch under way already it forgets, as push/pull
// comes again.
func (g *Group) Offer(from string, advertised []byte) error {
	if len(advertised) == 0 {
		return nil
	}
	m, err := parseMark(advertised)
	if err != nil {
		return fmt.Errorf("read offer of %s: %w", from, err)
	}
	if m.newer(g.current.Load().mark) {
		select {
		case g.fetches <- offer{from, m}:
		default:
		}
	}
	return nil
}

// fetchAll fetches what was offered, one at a time.
func (g *Group) fetchAll() {
	for {
		select {
		case o := <-g.fetches:
			if err := g.fetch(o); err != nil {
				g.log.Debug("state not fetched", "peer", o.from, "err", err)
			}
		case <-g.ctx.Done():
			return
		}
	}
}

// fetch takes the offered state, or a newer one that the neighbour has by now, whose answer names the hash then.
func (g *Group) fetch(o offer) error {
	if !o.mark.newer(g.current.Load().mark) {
		return nil
	}
	a, err := g.ask(g.ctx, o.from, question{Op: opFetch})
	if err != nil {
		return err
	}
	if a.held == nil || o.mark.newer(a.held.mark) || (a.held.mark.Index == o.mark.Index && a.held.mark != o.mark) {
		return fmt.Errorf("%s has not the state that it offered", o.from)
	}
	g.adopt(a.held)
	return nil
}
