package node

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
)

const (
	// drainLinger is how long nothing must have run before a draining agent ends. Clients that have just had an answer send
	// their next request on the same connection within that time; they are told to close it with the next answer.
	drainLinger = time.Second
	drainLook   = 20 * time.Millisecond

	// cutGrace is how long what is told of cut requests is on its way at least, cutLimit how long at most until it has gone
	// out: a client that does not read would hold it for ever.
	cutGrace = 200 * time.Millisecond
	cutLimit = time.Second
)

// ErrCut says that Hurry has cut requests.
var ErrCut = errors.New("requests were cut before they had ended")

// Hurry ends a drain at once: what still runs is cut, its clients are told, and Run returns within four seconds, with ErrCut
// when something was cut. It does nothing to a Node that does not drain until it does.
func (n *Node) Hurry() { n.hurryUp() }

// drain makes this agent unready, tells the peers that its engines take nothing new, takes no new connection after
// Config.DrainGrace, and waits for what runs: requests of its own clients and of peers.
//
// Connections that are open then stay open, and their next request is served by other engines; the answer says that the
// connection ends. Closing an idle one from here meets, now and then, a request that its client just sends.
func (n *Node) drain() error {
	begun := time.Now()
	n.draining.Store(true)
	n.cordonDraining()
	n.log.Info("agent drains", "deadline", n.config.DrainTimeout)
	ctx, cancel := context.WithTimeout(n.hurry, n.config.DrainTimeout)
	defer cancel()
	tick := time.NewTicker(drainLook)
	defer tick.Stop()
	for open, busy := true, begun; ctx.Err() == nil; {
		now := time.Now()
		if n.runs() > 0 {
			busy = now
		}
		if open && now.Sub(begun) >= n.config.DrainGrace {
			open = false
			n.closePort()
			n.cordonDraining()
		}
		if !open && now.Sub(busy) >= drainLinger {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return n.cut()
}

// closePort takes no new connection of clients any more.
func (n *Node) closePort() {
	n.closed.Store(true)
	_ = n.http.Close()
}

// cut ends what still runs.
func (n *Node) cut() error {
	n.closePort()
	if n.runs() == 0 {
		return nil
	}
	active, _ := n.ingress.Active()
	n.log.Warn("drain ends: requests are cut", "requests", active, "peer_streams", n.serving.Load())
	n.ingress.Cut()
	time.Sleep(cutGrace)
	for by := time.Now().Add(cutLimit - cutGrace); n.runs() > 0 && time.Now().Before(by); {
		time.Sleep(drainLook)
	}
	if n.hurry.Err() == nil {
		return nil // they had the time that was configured
	}
	return ErrCut
}

// runs returns the number of requests that run: of this agent's clients, and of peers on its engines.
func (n *Node) runs() int {
	active, _ := n.ingress.Active()
	return active + int(n.serving.Load())
}

// cordonDraining cordons the engines beside this agent. One whose models no other engine has goes on until no new connection
// is taken: its requests would only be refused.
func (n *Node) cordonDraining() {
	n.agreement.applyCordons(time.Now())
	n.teller.Changed()
}

// takesNothing reports whether an engine beside this agent is cordoned since the agent drains.
func (n *Node) takesNothing(e engine.Engine) bool {
	return n.draining.Load() && (n.closed.Load() || n.replaceable(e))
}

// replaceable reports whether another agent has an engine with one of e's models that can take requests.
func (n *Node) replaceable(e engine.Engine) bool {
	return slices.ContainsFunc(n.view.Snapshot(time.Now()), func(other forward.EngineStatus) bool {
		return other.ID.Agent() != e.ID.Agent() && other.State != forward.Unreachable && !other.Cordoned && other.Load.Usable() &&
			slices.ContainsFunc(e.Models, func(m engine.Model) bool {
				return slices.ContainsFunc(other.Models, func(o engine.Model) bool { return o.Name == m.Name })
			})
	})
}

// unlessDrained returns what ended a server, unless it is that a draining agent has closed its listener.
func (n *Node) unlessDrained(err error) error {
	if n.closed.Load() && errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
