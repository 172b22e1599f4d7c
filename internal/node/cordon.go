package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/mesh/agreed"
)

// CordonStatus is a cordon, as it is shown and as the file of an agent's own cordons has it.
type CordonStatus struct {
	Engine string    `json:"engine,omitempty"` // one of the two is set
	Agent  string    `json:"agent,omitempty"`
	Reason string    `json:"reason,omitempty"`
	Author string    `json:"author,omitempty"`
	Since  time.Time `json:"since"`
	Expiry time.Time `json:"expiry,omitzero"` // zero: until it is lifted
	Local  bool      `json:"local,omitempty"` // of this agent alone: the mesh has not agreed on it
}

func (c *CordonStatus) target() agreed.Target { return agreed.Target{Engine: c.Engine, Agent: c.Agent} }

func (c *CordonStatus) holds(now time.Time) bool { return c.Expiry.IsZero() || now.Before(c.Expiry) }

// cordonFile is where an agent keeps its own cordons over a restart, in the data folder.
const cordonFile = "cordons.json"

// maxCordonFile bounds what is read of it, and maxLocalCordons how many there are: an agent has at most 256 engines.
const (
	maxCordonFile   = 1 << 20
	maxLocalCordons = 512
)

// localCordons are cordons of this agent and its engines that the mesh has not agreed on. They are kept in a file, if there
// is a data folder. It is safe for concurrent use.
type localCordons struct {
	mu      sync.Mutex
	file    string // "" without a data folder
	all     []CordonStatus
	trouble error // with the file
}

func loadLocalCordons(data string) *localCordons {
	l := &localCordons{}
	if data == "" {
		return l
	}
	l.file = filepath.Join(data, cordonFile)
	l.all, l.trouble = readCordons(l.file)
	return l
}

func readCordons(file string) ([]CordonStatus, error) {
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if info.Size() > maxCordonFile {
		return nil, fmt.Errorf("%s has %d bytes, more than %d", file, info.Size(), maxCordonFile)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var all []CordonStatus
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return all[:min(len(all), maxLocalCordons)], nil
}

// holding returns those that hold now.
func (l *localCordons) holding(now time.Time) []CordonStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.all), func(c CordonStatus) bool { return !c.holds(now) })
}

// set replaces the cordon on c's target.
func (l *localCordons) set(c CordonStatus, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked(c.target(), now)
	if len(l.all) >= maxLocalCordons {
		return errors.New("this agent has too many cordons of its own")
	}
	c.Local = true
	l.all = append(l.all, c)
	l.saveLocked()
	return nil
}

// remove lifts the cordon on t, and reports whether there was one.
func (l *localCordons) remove(t agreed.Target, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	had := l.dropLocked(t, now)
	if had {
		l.saveLocked()
	}
	return had
}

// dropLocked drops the cordon on t, and those that have ended.
func (l *localCordons) dropLocked(t agreed.Target, now time.Time) (had bool) {
	l.all = slices.DeleteFunc(l.all, func(c CordonStatus) bool {
		had = had || c.target() == t
		return c.target() == t || !c.holds(now)
	})
	return had
}

// saveLocked writes the file. A disk that is full does not keep an agent from cordoning itself: it is noted.
func (l *localCordons) saveLocked() {
	if l.file == "" {
		return
	}
	text, err := json.MarshalIndent(l.all, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(l.file), 0o700)
	}
	if err == nil {
		err = os.WriteFile(l.file+".tmp", append(text, '\n'), 0o600)
	}
	if err == nil {
		err = os.Rename(l.file+".tmp", l.file)
	}
	l.trouble = err
}

func (l *localCordons) notes() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trouble == nil {
		return nil
	}
	return []string{fmt.Sprintf("this agent's own cordons are not kept over a restart: %v", l.trouble)}
}

// cordons returns all cordons that hold now, those of this agent alone first.
func (a *agreement) cordons(now time.Time) []CordonStatus {
	out := append([]CordonStatus{}, a.local.holding(now)...)
	for _, c := range a.group.State().Cordons {
		s := CordonStatus{Engine: c.Target.Engine, Agent: c.Target.Agent, Reason: c.Reason, Author: c.Author, Since: c.Since, Expiry: c.Expiry}
		if s.holds(now) {
			out = append(out, s)
		}
	}
	return out
}

// applyCordons leaves cordoned engines out of decisions here, has the engines beside this agent refuse new requests, and returns
// when the next cordon ends; zero for never.
func (a *agreement) applyCordons(now time.Time) (next time.Time) {
	a.n.cordoning.Lock()
	defer a.n.cordoning.Unlock()
	targets := map[agreed.Target]bool{}
	for _, c := range a.cordons(now) {
		targets[c.target()] = true
		if !c.Expiry.IsZero() && (next.IsZero() || c.Expiry.Before(next)) {
			next = c.Expiry
		}
	}
	cordoned := func(id engine.ID) bool {
		return targets[agreed.Target{Engine: string(id)}] || targets[agreed.Target{Agent: id.Agent()}]
	}
	a.n.view.SetCordons(cordoned)
	for _, e := range a.n.agentsOf {
		e.SetCordoned(a.n.takesNothing(e.Engine()) || cordoned(e.Engine().ID))
	}
	return next
}

// wake has the loop look again at this agent's own cordons.
func (a *agreement) wake() {
	select {
	case a.moved <- struct{}{}:
	default:
	}
}

// CordonAnswer says what became of a cordon, or of lifting one.
type CordonAnswer struct {
	Index uint64 `json:"index,omitempty"` // of the command, where the mesh has agreed
	Local bool   `json:"local,omitempty"` // only this agent knows
	Note  string `json:"note,omitempty"`
}

// targetNamed reads the name of an engine, AGENT/ENGINE, or of an agent.
func targetNamed(name string) agreed.Target {
	if strings.Contains(name, "/") {
		return agreed.Target{Engine: name}
	}
	return agreed.Target{Agent: name}
}

// isOwn reports whether t is this agent or an engine beside it.
func (a *agreement) isOwn(t agreed.Target) bool {
	return cmp.Or(t.Agent, engine.ID(t.Engine).Agent()) == a.n.config.Mesh.Name
}

// errUnknownTarget says that a name may be misspelt.
var errUnknownTarget = errors.New("no engine or agent of that name is known here")

// know returns an error for a target that this agent knows nothing of.
func (a *agreement) know(t agreed.Target) error {
	for _, e := range a.n.view.Snapshot(time.Now()) {
		if string(e.ID) == t.Engine || t.Agent != "" && e.ID.Agent() == t.Agent {
			return nil
		}
	}
	if _, ok := a.n.mesh.Peer(t.Agent); t.Agent == a.n.config.Mesh.Name || t.Agent != "" && ok {
		return nil
	}
	return fmt.Errorf("%w: %s", errUnknownTarget, cmp.Or(t.Engine, t.Agent))
}

// cordon keeps new requests from an engine or an agent. What this agent has itself it cordons at once, also where the mesh
// cannot agree on it: then it stands for this agent alone.
func (a *agreement) cordon(ctx context.Context, c CordonStatus) (CordonAnswer, error) {
	own := a.isOwn(c.target())
	if own {
		if err := a.local.set(c, time.Now()); err != nil {
			return CordonAnswer{}, err
		}
		a.applyCordons(time.Now())
		a.wake()
	}
	result, err := a.propose(ctx, agreed.Command{
		Kind: agreed.KindCordon, Author: c.Author,
		Cordon: &agreed.Cordon{Target: c.target(), Reason: c.Reason, Expiry: c.Expiry},
	})
	switch {
	case err == nil && own:
		a.local.remove(c.target(), time.Now())
		a.wake()
	case err != nil && own:
		note := "only this agent knows, and tells the others that it takes nothing new: " + err.Error()
		if a.local.file == "" {
			note += "; without a data folder that ends with its process"
		}
		return CordonAnswer{Local: true, Note: note}, nil
	}
	return CordonAnswer{Index: result.Index}, err
}

// uncordon lifts a cordon, this agent's own and the agreed one.
func (a *agreement) uncordon(ctx context.Context, t agreed.Target, author string) (CordonAnswer, error) {
	local := a.local.remove(t, time.Now())
	if local {
		a.wake()
	}
	_, agreedOn := a.group.State().Cordoned(t, time.Now())
	if local && !agreedOn {
		return CordonAnswer{Local: true}, nil
	}
	result, err := a.propose(ctx, agreed.Command{Kind: agreed.KindUncordon, Author: author, Target: t})
	if errors.Is(err, agreed.ErrRefused) && result.Refusal == agreed.RefusedUnknown {
		err = fmt.Errorf("%w: the mesh has no cordon on it; one that an agent has put on itself is lifted there", err)
	}
	return CordonAnswer{Index: result.Index}, err
}
