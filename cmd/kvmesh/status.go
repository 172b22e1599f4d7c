package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/node"
)

type statusCmd struct {
	debugClient
	JSON bool `name:"json" help:"Print what the agent answers instead of tables."`
}

// Run asks an agent how it sees the mesh and prints that.
func (c *statusCmd) Run(ctx context.Context) error {
	body, err := c.ask(ctx, http.MethodGet, "/debug/mesh.json", answerTimeout)
	if err != nil {
		return err
	}
	if c.JSON {
		_, err := os.Stdout.Write(body)
		return err
	}
	var s node.Status
	if err := json.Unmarshal(body, &s); err != nil {
		return fmt.Errorf("%s is no debug server of an agent: %w", c.Addr, err)
	}
	printStatus(os.Stdout, &s)
	return nil
}

func printStatus(out io.Writer, s *node.Status) {
	ready := "not ready"
	if s.Ready {
		ready = "ready"
	}
	fmt.Fprintf(out, "agent %s of mesh %s: %s, up %s, %d requests in flight, %d waiting, %d for peers\n\n",
		s.Agent, s.Mesh, ready, time.Duration(s.Uptime*float64(time.Second)).Round(time.Second),
		s.Counters.InFlight, s.Counters.Waiting, s.Counters.PeerStreams)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ENGINE\tSTATE\tKIND\tMODELS\tIN FLIGHT\tQUEUED\tKV\tLOAD AGE\tRESIDENCY\tDIGESTS (KEYS, FILL, AGE)")
	for _, e := range s.Engines {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%.2fs\t%.0f%%\t%s\t%s\t%s\n", e.Engine, e.State, e.Kind,
			strings.Join(e.Models, ","), e.InFlight, e.QueuedSeconds, 100*e.KVUsage, age(e.LoadAge), e.ResidencyWords(), digestWords(e.Digests))
	}
	fmt.Fprintln(w, "\nAGENT\tSTATE\tCONNECTED\tQUIC ADDRESS\tROUND TRIP")
	for _, a := range s.Agents {
		fmt.Fprintf(w, "%s\t%s\t%t\t%s\t%.2fms\n", a.Name, a.State, a.Connected, a.Address, a.RTTMillis)
	}
	w.Flush()
	printQueues(out, s.Queues)
	fmt.Fprintln(out)
	printAgreed(out, &s.Agreed)
	fmt.Fprintln(out)
	printGossipKeys(out, s.GossipKeys)
	for _, r := range s.Refusals {
		who := "refused"
		if r.ByPeer {
			who = "refused by"
		}
		fmt.Fprintf(out, "\n%s %s %s, %d times, last %s: %s\n", who, r.Peer, r.Addr, r.Count, r.Time.Format(time.TimeOnly), r.Reason)
	}
	for _, d := range s.Doubts {
		fmt.Fprintf(out, "\nnot believed: agent %s%s: %s, %d times, last %s\n", d.Agent, ofEngine(d.Engine), d.What, d.Count, d.Last.Format(time.TimeOnly))
	}
	for _, n := range s.Notes {
		fmt.Fprintf(out, "\nnote: %s\n", n)
	}
}

// printQueues prints what waits at the agent, if anything does.
func printQueues(out io.Writer, queues []node.QueueStatus) {
	if len(queues) == 0 {
		return
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nQUEUE OF\tWAITING\tCLASSES\tAPI KEYS\tBYTES\tOLDEST\tSERVED/S")
	for _, q := range queues {
		var classes []string
		for _, name := range slices.Sorted(maps.Keys(q.Classes)) {
			classes = append(classes, fmt.Sprintf("%s %d", name, q.Classes[name]))
		}
		rate := "-"
		if q.DrainRate >= 0 {
			rate = fmt.Sprintf("%.1f", q.DrainRate)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%d\t%s\t%s\n", q.Model, q.Waiting, strings.Join(classes, ", "), q.Keys, q.Bytes, age(q.Oldest), rate)
	}
	w.Flush()
}

// ofEngine names the engine that a doubt is about, if it is about one.
func ofEngine(id engine.ID) string {
	if id == "" {
		return ""
	}
	return ", engine " + string(id)
}

// age is the time since something was heard, or a dash when nothing was.
func age(seconds float64) string {
	if seconds < 0 {
		return "-"
	}
	return fmt.Sprintf("%.1fs", seconds)
}

// digestWords says what the digests of an engine hold, tier by tier.
func digestWords(digests []node.DigestStatus) string {
	if len(digests) == 0 {
		return "-"
	}
	tiers := make([]string, len(digests))
	for i, d := range digests {
		tiers[i] = fmt.Sprintf("%s: %d, %.1f%%, %s", d.Tier, d.Keys, 100*d.Fill, age(d.Age))
	}
	return strings.Join(tiers, "; ")
}
