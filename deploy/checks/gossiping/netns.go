package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/deploy/checks/internal/lab"
)

// checkNamespaces runs agents on hosts of their own. What fake time cannot show is shown there: real packets, counted by the
// kernel, ports that are blocked, cables that are pulled.
func checkNamespaces(ctx context.Context, h *check.Harness) error { return lab.InNamespaces(ctx, h) }

// labSize is how many hosts there are, and how many of them are lost.
type labSize struct{ hosts, killed, unplugged int }

func sizeOf(h *check.Harness) labSize {
	if h.Short {
		return labSize{6, 1, 1}
	}
	return labSize{16, 5, 3}
}

func runLab(ctx context.Context, h *check.Harness) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	size := sizeOf(h)
	begin := time.Now()
	l, err := newHosts(ctx, h, size.hosts)
	if err != nil {
		return err
	}
	h.Say("%d agents on hosts of their own know each other after %.1f s", size.hosts, time.Since(begin).Seconds())
	lose := func(ctx context.Context) error { return l.lose(ctx, size) }
	steps := []func(context.Context) error{l.countBytes, l.blockPorts, lose, l.narrowPath}
	if h.Short {
		steps = []func(context.Context) error{l.countBytes, lose}
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// crossing is what an agent says that it sent and received, and what the kernel counted.
type crossing struct{ said, cable wire }

// wireBound is how far the agents' count of bytes may be from the kernel's, as a share.
const wireBound = 0.03

// countBytes compares what agents say that they sent and received with what the kernel counted at their cables.
func (l *hosts) countBytes(ctx context.Context) error {
	long := 20 * time.Second
	if l.h.Short {
		long = 6 * time.Second
	}
	// The agent is asked outside of the time in which its cable is looked at: the question crosses it too.
	begin := make([]crossing, len(l.all))
	for i, x := range l.all {
		said, err := x.wireBytes(ctx)
		if err != nil {
			return err
		}
		if begin[i].cable, err = x.crossed(ctx); err != nil {
			return err
		}
		begin[i].said = said
	}
	if err := sleep(ctx, long); err != nil {
		return err
	}
	var said, cable wire
	for i, x := range l.all {
		crossed, err := x.crossed(ctx)
		if err != nil {
			return err
		}
		own, err := x.wireBytes(ctx)
		if err != nil {
			return err
		}
		cable.add(crossed, begin[i].cable)
		said.add(own, begin[i].said)
	}
	perAgent := 1 / float64(len(l.all)) / long.Seconds() / kilo
	note := "of %d agents at rest for %v: they say %.2f kB/s each, the kernel %.2f"
	l.h.Figures.AtMost("wire_bytes_in_off", math.Abs(said.in/cable.in-1), wireBound, note, len(l.all), long, said.in*perAgent, cable.in*perAgent)
	l.h.Figures.AtMost("wire_bytes_out_off", math.Abs(said.out/cable.out-1), wireBound, note, len(l.all), long, said.out*perAgent, cable.out*perAgent)
	return nil
}

// How soon a blocked port is said, in seconds. A connection ends after 3 to 4 s of silence, and dials then fail for 5 s;
// memberlist pings one member a second.
const quicBound = 15

func (l *hosts) gossipBound() float64 { return 2*float64(len(l.all)) + 10 }

// blockPorts blocks UDP between two agents, one port at a time, and waits for it to be said.
func (l *hosts) blockPorts(ctx context.Context) error {
	a, b := l.all[0], l.all[1]
	for _, port := range []struct {
		name, number string
		bound        float64
	}{{"quic", "7081", quicBound}, {"gossip", "7082", l.gossipBound()}} {
		for _, on := range []bool{true, false} {
			if err := errors.Join(l.net.Refuse(ctx, on, a.number, b.number, port.number), l.net.Refuse(ctx, on, b.number, a.number, port.number)); err != nil {
				return err
			}
			begin := time.Now()
			says := func(x, of *host) bool {
				s, err := x.status(ctx)
				return err == nil && s.notes(of.name(), port.number)
			}
			err := check.Await(ctx, time.Minute, "a note of port "+port.number, func() bool { return says(a, b) == on && says(b, a) == on })
			name, word := port.name+"_port_blocked_said_s", "that "+port.number+"/udp is blocked between "+a.name()+" and "+b.name()
			if !on {
				name, word = port.name+"_port_open_said_s", "that it is open again"
			}
			if err != nil {
				l.h.Figures.Broken(name, err)
				continue
			}
			l.h.Figures.AtMost(name, time.Since(begin).Seconds(), port.bound, "until both say in a note, with peer and port, %s", word)
		}
	}
	return check.Await(ctx, time.Minute, "all agents to know all engines again", func() bool { return l.whole(ctx, l.all) })
}

const (
	// notNamed is when nothing may be decided for an agent that is gone.
	notNamed = 2 * time.Second
	// afterLoss is how long requests go on after a loss.
	afterLoss = 12 * time.Second
	beforeIt  = 4 * time.Second
)

// lose kills some agents and unplugs others at one moment, while requests come in through the rest.
func (l *hosts) lose(ctx context.Context, size labSize) error {
	rest, lost := l.all[:len(l.all)-size.killed-size.unplugged], l.all[len(l.all)-size.killed-size.unplugged:]
	t := newTraffic(ctx, rest)
	defer t.stop()
	if err := sleep(ctx, beforeIt); err != nil {
		return err
	}
	at := time.Now()
	for i, x := range lost {
		if i < size.killed {
			x.kill()
		} else if err := l.net.Plug(ctx, x.number, false); err != nil {
			return err
		}
	}
	took := time.Since(at)
	if err := sleep(ctx, afterLoss); err != nil {
		return err
	}
	r := t.stop()
	v, err := decidedAfter(ctx, rest, lost, at.Add(took+notNamed))
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%d agents killed and %d unplugged of %d, within %.2f s", size.killed, size.unplugged, len(l.all), took.Seconds())
	// An agent that is only silent, and that nobody asked yet, is asked once more before it is given up.
	l.h.Figures.Zero("lost_agents_chosen_after_2_s", float64(v.chosen), "of %d decisions after that; %d had one among their candidates, suspected; %s; first %s", v.decisions, v.weighed, what, cmp.Or(v.first, "none"))
	l.h.Figures.AtLeast("lost_agents_decisions", float64(v.decisions), 1, "decisions that were looked at")
	failed := r.failedWithout(lost)
	l.h.Figures.Zero("lost_agents_client_errors", float64(len(failed)), "of %d requests, besides %d whose answer had begun there; %s; %s", r.requests, len(r.failed)-len(failed), what, firstOf(failed))
	return nil
}

func firstOf(failed []failedRequest) string {
	if len(failed) == 0 {
		return "none"
	}
	return fmt.Sprintf("the first %v, at %q", failed[0].err, failed[0].engine)
}

// narrowMTU is what every IPv6 path carries.
const narrowMTU = "1280"

// narrowPath lets two agents begin behind a path that drops packets above 1,280 bytes without a word.
func (l *hosts) narrowPath(ctx context.Context) error {
	all := l.all[:4]
	for _, x := range all[:2] {
		x.agent.Kill()
		if err := errors.Join(l.net.Narrow(ctx, x.number, narrowMTU), x.startAgent()); err != nil {
			return err
		}
	}
	begin := time.Now()
	err := check.Await(ctx, time.Minute, "agents behind a narrow path to know all engines", func() bool { return l.whole(ctx, all) })
	if err != nil {
		l.h.Figures.Broken("narrow_path_joined_s", err)
		return nil
	}
	l.h.Figures.AtMost("narrow_path_joined_s", time.Since(begin).Seconds(), 30, "until two restarted agents behind %s B and two others know each other and their digests", narrowMTU)
	failed, last := 0, errors.New("none")
	const tries = 10
	for range tries {
		if _, err := ask(ctx, &http.Client{Timeout: 30 * time.Second}, all[0], strings.Repeat("a long prompt ", 10_000)); err != nil {
			failed, last = failed+1, err
		}
	}
	l.h.Figures.Zero("narrow_path_errors", float64(failed), "of %d prompts of 140 kB, each new and most on engines of other hosts; %v", tries, last)
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
