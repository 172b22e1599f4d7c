package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/node"
	"github.com/kvmesh/kvmesh/internal/spread"
	"github.com/kvmesh/kvmesh/mesh"
)

const (
	hostileMesh = "hostile"
	victimName  = "victim"
	liarName    = "liar"
	friendName  = "friend" // who is not there
	// doubtLimit is how soon what cannot be true is named: a few periods.
	doubtLimit = 10 * time.Second
)

// victim is an agent that meets a member which has a certificate and lies.
type victim struct {
	h                 *check.Harness
	dir               string
	http, quic, debug string
	agent             *check.Process
}

// checkHostile shows an agent what a member with a valid certificate can tell it.
func checkHostile(ctx context.Context, h *check.Harness) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	v, err := startVictim(ctx, h)
	if err != nil {
		return err
	}
	if err := v.claimName(ctx); err != nil {
		return err
	}
	stop, err := v.startLiar(ctx)
	if err != nil {
		return err
	}
	defer stop()
	return errors.Join(v.lies(ctx), v.stillServes(ctx))
}

func startVictim(ctx context.Context, h *check.Harness) (*victim, error) {
	v := &victim{h: h, dir: filepath.Join(h.Dir, "hostile")}
	addrs := make([]string, 5)
	for i := range addrs {
		var err error
		if addrs[i], err = h.Ports.Addr(ctx); err != nil {
			return nil, err
		}
	}
	v.http, v.quic, v.debug = addrs[0], addrs[1], addrs[2]
	if err := os.Mkdir(v.dir, 0o700); err != nil {
		return nil, err
	}
	args := []string{h.Bin, "cert", "--dir", v.dir, "--mesh-id", hostileMesh, victimName, liarName, friendName}
	if _, err := (check.Command{Args: args}).Run(ctx); err != nil {
		return nil, err
	}
	if _, err := h.Start(ctx, v.dir, "engine", "simengine", "--listen", addrs[4], "--speed", "20"); err != nil {
		return nil, err
	}
	var err error
	v.agent, err = h.Start(ctx, v.dir, victimName, "agent", "--mesh-id", hostileMesh, "--name", victimName, "--certs", v.dir, "--engine", "http://"+addrs[4],
		"--http", v.http, "--quic-bind", v.quic, "--gossip-bind", addrs[3], "--debug", v.debug)
	if err != nil {
		return nil, err
	}
	return v, check.Await(ctx, 20*time.Second, "the victim to be ready", func() bool {
		s, err := v.status(ctx)
		return err == nil && s.knows(1)
	})
}

func (v *victim) status(ctx context.Context) (s meshStatus, err error) {
	return s, getJSON(ctx, v.debug, "", "/debug/mesh.json", &s)
}

func (v *victim) identity(name string) (mesh.Identity, [][]byte, error) {
	id, err := mesh.LoadIdentity(v.dir, name)
	if err != nil {
		return id, nil, err
	}
	keys, err := mesh.LoadGossipKeys(filepath.Join(v.dir, mesh.GossipKeyFile))
	return id, keys, err
}

// refused adds the figure of one lie: what the victim says of it, and 0 when it says nothing in time.
func (v *victim) refused(ctx context.Context, name string, said func(*meshStatus) string) {
	var words string
	err := check.Await(ctx, doubtLimit, name, func() bool {
		s, err := v.status(ctx)
		if err == nil {
			words = said(&s)
		}
		return words != ""
	})
	named := 1.0
	if err != nil {
		named, words = 0, "the victim says nothing of it"
	}
	v.h.Figures.AtLeast("hostile_"+name+"_refused_and_named", named, 1, "%s", words)
}

// claimName says to be another member than the certificate does.
func (v *victim) claimName(ctx context.Context) error {
	id, _, err := v.identity(liarName)
	if err != nil {
		return err
	}
	if err := greetAs(ctx, v.quic, id, friendName); err == nil {
		return errors.New("a hello in another's name was answered")
	}
	v.refused(ctx, "name_of_another", func(s *meshStatus) string {
		for _, r := range s.Refusals {
			if r.Peer == liarName && strings.Contains(r.Reason, friendName) {
				return r.Peer + ": " + r.Reason
			}
		}
		return ""
	})
	return nil
}

// liar is an engine of which its owner tells what cannot be true.
type liar struct {
	spread.Source
	lies lies
}

// Load implements spread.Source.
func (l *liar) Load() engine.Load {
	load := l.Source.Load()
	load.KVUsage, load.InFlight = 40, 1<<40
	return load
}

// startLiar runs a member that tells lies; stop ends it.
func (v *victim) startLiar(ctx context.Context) (stop func(), err error) {
	id, keys, err := v.identity(liarName)
	if err != nil {
		return nil, err
	}
	addr, err := v.h.Ports.Addr(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := v.h.Start(ctx, v.dir, "liars-engine", "simengine", "--listen", addr, "--speed", "20"); err != nil {
		return nil, err
	}
	c := node.DefaultConfig()
	c.Mesh.MeshID, c.Mesh.Name, c.Mesh.Identity, c.Mesh.GossipKeys, c.Mesh.Join = hostileMesh, liarName, id, keys, []string{v.quic}
	c.Mesh.QUICBind, c.Mesh.GossipBind = "127.0.0.1:0", "127.0.0.1:0"
	c.HTTP, c.Debug, c.DrainTimeout = "127.0.0.1:0", "", 0
	c.Engines = []node.EngineConfig{{Name: liarsEngine, URL: &url.URL{Scheme: "http", Host: addr}}}
	c.Source = func(s spread.Source) spread.Source { return &liar{s, newLies()} }
	n, err := node.New(c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var run sync.WaitGroup
	run.Go(func() {
		if err := n.Run(ctx); err != nil {
			v.h.Say("%s: %v", liarName, err)
		}
	})
	return func() {
		cancel()
		run.Wait()
	}, nil
}

// lies waits until the victim has named each.
func (v *victim) lies(ctx context.Context) error {
	for name, what := range map[string]string{
		"impossible_load":     forward.DoubtLoad,
		"all_ones_digest":     forward.DoubtDigest,
		"delta_for_another's": forward.DoubtEngine,
	} {
		v.refused(ctx, strings.TrimSuffix(name, "'s"), func(s *meshStatus) string {
			i := slices.IndexFunc(s.Doubts, func(d forward.Doubt) bool { return d.Agent == liarName && d.What == what })
			if i < 0 {
				return ""
			}
			return fmt.Sprintf("agent %s, engine %s: %s, %d times", liarName, s.Doubts[i].Engine, what, s.Doubts[i].Count)
		})
	}
	log, err := os.ReadFile(filepath.Join(v.dir, victimName+".log"))
	if err != nil {
		return err
	}
	lines := 0
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "level=WARN") && strings.Contains(line, liarName) {
			lines++
		}
	}
	v.h.Figures.AtLeast("hostile_log_lines", float64(lines), 4, "warnings of the victim that name the liar, one for each lie")
	return nil
}

// stillServes asks the victim, whose own engine must not have lost what was told of it, and whose decisions must not count on
// what the liar claims.
func (v *victim) stillServes(ctx context.Context) error {
	client := &http.Client{Timeout: 30 * time.Second}
	failed, claimed := 0, 0
	const tries = 20
	for range tries {
		if _, err := askAt(ctx, client, v.http, strings.Repeat("some words ", 800)); err != nil {
			failed++
		}
	}
	var events []forward.Event
	if err := getJSON(ctx, v.debug, "", "/debug/decisions.json", &events); err != nil {
		return err
	}
	for i := range events {
		for _, c := range events[i].Candidates {
			if c.Engine.Agent() == liarName && c.OverlapTokens > 0 {
				claimed++
			}
		}
	}
	v.h.Figures.Zero("hostile_client_errors", float64(failed), "of %d requests beside the liar", tries)
	v.h.Figures.Zero("hostile_overlap_believed", float64(claimed), "decisions of %d in which the liar's engine was held to have some of a prompt", len(events))
	return nil
}
