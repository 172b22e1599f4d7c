package agreed

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"
)

// errStalled is what a voter answers that met a command of a newer version: it cannot do what the others do, so it stops
// to be one. The version gate keeps this from happening; see newerThan.
var errStalled = errors.New("the group decided something that this version does not know: upgrade this agent")

// machine is the state as this voter's log makes it. raft calls Apply, Snapshot and Restore from one goroutine.
type machine struct {
	adopt   func(*held)
	moved   func() // the voters changed
	onFault func(error)

	mu      sync.Mutex
	now     *held
	stalled bool
}

var _ raft.ConfigurationStore = (*machine)(nil)

func newMachine(adopt func(*held), moved func(), onFault func(error)) (*machine, error) {
	h, err := hold(first())
	return &machine{adopt: adopt, moved: moved, onFault: onFault, now: h}, err
}

// state returns the state after the last entry that was applied.
func (m *machine) state() *held {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// Apply implements raft.FSM. It returns a Result or an error.
func (m *machine) Apply(log *raft.Log) any {
	c, err := decodeCommand(log.Data)
	if err != nil {
		return err // the same on all voters, and nothing changes
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stalled || c.newerThan(Supported) || (c.Kind == kindRaise && c.To > Supported) {
		m.stallLocked()
		return errStalled
	}
	h, _, result := apply(m.now.state, c, log.Index)
	if h != nil {
		m.now = h
		m.adopt(h)
	}
	return result
}

// StoreConfiguration implements raft.ConfigurationStore: raft observes no change of the voters where it does not lead.
func (m *machine) StoreConfiguration(uint64, raft.Configuration) { m.moved() }

func (m *machine) stallLocked() {
	if !m.stalled {
		m.stalled = true
		m.onFault(errStalled)
	}
}

// Snapshot implements raft.FSM: the state is immutable, so it costs nothing.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stalled {
		return nil, errStalled
	}
	return snapshot(m.now.raw), nil
}

// Restore implements raft.FSM. A state of a newer version is passed on, and this voter stops.
func (m *machine) Restore(r io.ReadCloser) error {
	defer r.Close()
	raw, err := io.ReadAll(io.LimitReader(r, MaxState+1))
	if err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	h, err := parseHeld(raw)
	if err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = h
	m.adopt(h)
	if h.state.Version > Supported {
		m.stallLocked()
	}
	return nil
}

// snapshot is an encoded state on its way to disk.
type snapshot []byte

// Persist implements raft.FSMSnapshot.
func (s snapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := sink.Write(s); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (s snapshot) Release() {}
