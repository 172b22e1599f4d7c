package simcluster

import (
	"fmt"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/internal/node"
)

// StaleDigests compares every running agent's digests with those of their owners, and returns one line for each that
// differs; none when all are equal. Engines beside agents that do not run have no owner to compare with.
func (c *Cluster) StaleDigests() []string {
	return c.compare(func(owned, seen map[string]node.EngineStatus, tell func(string, ...any)) {
		for id, own := range owned {
			e, known := seen[id]
			if !known || e.Generation != own.Generation {
				tell("knows generation %d of %s, its owner is at %d", e.Generation, id, own.Generation)
				continue
			}
			if got, want := digestsOf(&e), digestsOf(&own); got != want {
				tell("has %s of %s, its owner has %s", got, id, want)
			}
		}
	})
}

// ownDigests says which digests the owners that run have published; "" when none holds a key.
func (c *Cluster) ownDigests() string {
	all, keys := "", 0
	for i := range c.config.Agents {
		if !c.Running(i) {
			continue
		}
		if e, ok := c.EngineOf(i, i); ok {
			all += digestsOf(&e)
			for _, d := range e.Digests {
				keys += d.Keys
			}
		}
	}
	if keys == 0 {
		return ""
	}
	return all
}

// compare calls look for every running agent with the engines as their running owners see them and as that agent does.
func (c *Cluster) compare(look func(owned, seen map[string]node.EngineStatus, tell func(string, ...any))) []string {
	owned, seen := map[string]node.EngineStatus{}, make([]map[string]node.EngineStatus, len(c.agents))
	for i := range c.agents {
		if !c.Running(i) {
			continue
		}
		seen[i] = map[string]node.EngineStatus{}
		for _, e := range c.Status(i).Engines {
			seen[i][string(e.Engine)] = e
			if e.Engine.Agent() == Name(i) {
				owned[string(e.Engine)] = e
			}
		}
	}
	var lines []string
	for i, s := range seen {
		if s != nil {
			look(owned, s, func(format string, args ...any) { lines = append(lines, Name(i)+" "+fmt.Sprintf(format, args...)) })
		}
	}
	return lines
}

// digestsOf says which digests of an engine somebody has, by tier, version and content.
func digestsOf(e *node.EngineStatus) string {
	var b strings.Builder
	for _, d := range e.Digests {
		fmt.Fprintf(&b, "[%s %d: %d keys, checksum %s]", d.Tier, d.Version, d.Keys, d.Checksum)
	}
	return b.String()
}

// Ghosts returns one line for each agent or engine that a running agent believes in and that is not so: one that does not
// run and seems to, one of an earlier life; and one for each that runs and is not seen. The digests are not looked at.
func (c *Cluster) Ghosts() []string {
	lines := c.compare(func(owned, seen map[string]node.EngineStatus, tell func(string, ...any)) {
		for id, e := range seen {
			own, runs := owned[id]
			switch {
			case !runs && e.State != "unreachable":
				tell("holds %s, whose agent does not run, for %s", id, e.State)
			case runs && e.Generation != own.Generation:
				tell("knows generation %d of %s, its owner is at %d", e.Generation, id, own.Generation)
			}
		}
		for id := range owned {
			if _, known := seen[id]; !known {
				tell("does not know %s", id)
			}
		}
	})
	for i := range c.agents {
		if c.Running(i) {
			lines = append(lines, c.ghostAgents(i)...)
		}
	}
	return lines
}

func (c *Cluster) ghostAgents(i int) (lines []string) {
	states := map[string]node.AgentStatus{}
	for _, a := range c.Status(i).Agents {
		states[a.Name] = a
	}
	for j := range c.agents {
		a, known := states[Name(j)]
		delete(states, Name(j))
		switch {
		case c.Running(j) && !a.Connected:
			lines = append(lines, fmt.Sprintf("%s is not connected to %s: %q", Name(i), Name(j), a.State))
		case c.Running(j) && a.Address != c.addr(j, portQUIC):
			lines = append(lines, fmt.Sprintf("%s sees %s at %s: it is at %s", Name(i), Name(j), a.Address, c.addr(j, portQUIC)))
		case !c.Running(j) && known && a.Connected:
			lines = append(lines, fmt.Sprintf("%s is connected to %s, which does not run", Name(i), Name(j)))
		}
	}
	for name := range states {
		lines = append(lines, fmt.Sprintf("%s knows %s: there was never such an agent", Name(i), name))
	}
	return lines
}

// awaitNone waits in fake time until differences returns none, looking 20 times a second, and returns how long it took. What
// is left after limit is returned too.
func (c *Cluster) awaitNone(limit time.Duration, differences func() []string) (took time.Duration, left []string) {
	start := time.Now()
	for {
		left = differences()
		if took = time.Since(start); len(left) == 0 || took >= limit {
			return took, left
		}
		time.Sleep(50 * time.Millisecond)
	}
}
