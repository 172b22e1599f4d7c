package agreed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"
)

// MaxVoters is the size of the group: five stay writable with two lost, and more make each write slower.
const MaxVoters = 5

// Agent is what is known of an agent, itself included, before it is asked: node metadata.
type Agent struct {
	Name   string
	RaftID string // empty: it has no data folder
	Expect int    // bootstrap_expect; 0: it founds no group
	// HasState says that it holds an agreed state, so that a group exists or existed.
	HasState bool
}

// Agents knows the other agents of the mesh that are alive.
type Agents interface {
	// Agents returns them, without this one. It must not wait.
	Agents() []Agent
}

// Streams opens streams to other agents.
type Streams interface {
	// Open opens a stream that the agent of this name gives to its Group.Serve.
	Open(ctx context.Context, agent string) (net.Conn, error)
}

// Config is what a Group needs. Start from DefaultConfig.
type Config struct {
	Name    string // of this agent
	Agents  Agents
	Streams Streams

	// Folder keeps the raft id, the raft log and the last state. Empty: this agent is never a voter, and after a restart
	// it has no state until it finds another agent.
	Folder string
	// Expect is bootstrap_expect: this agent founds a group together with others as soon as that many agents with the same
	// number know each other. Every agent that has it must have the same, and it must be more than half of their count;
	// then two groups cannot come to be. 0: this agent joins what others founded.
	Expect int

	// ValidatePolicy is asked before a policy is proposed; it names line and reason. Nil: any text will do.
	ValidatePolicy func(text string) error

	Logger  *slog.Logger // nil: nothing is logged
	Timings Timings      // zero: those of DefaultConfig

	openStores func() (*stores, error) // tests replace the disk
	writeFile  func(path string, data []byte) error
}

// Timings are the periods and bounds of a Group.
type Timings struct {
	// Heartbeat is after how long without a word of the leader a voter stands for election, up to twice that by chance.
	// Longer bears pauses of a busy machine, shorter brings writes back sooner: with 1 s they work again within 5 s even
	// after a split vote.
	Heartbeat time.Duration
	// WriteTimeout bounds Propose and Read, which then return ErrNoQuorum.
	WriteTimeout time.Duration
	// AttemptTimeout bounds one question to another agent within that.
	AttemptTimeout time.Duration
	// Retry is the pause between two attempts, up to twice that by chance.
	Retry time.Duration
	// KeepAlive is the period of news on a watch where nothing happens; three without any end it.
	KeepAlive time.Duration
	// Found is the period of trying to found a group.
	Found time.Duration
	// Reconcile is the period at which the leader compares voters and agents.
	Reconcile time.Duration
	// LostAfter is how long a voter must not answer before another agent takes its place: longer than a restart.
	LostAfter time.Duration
	// StableAfter is how long an agent must have answered before it becomes a voter.
	StableAfter time.Duration
	// RetryDisk is the period of trying the data folder again after it failed.
	RetryDisk time.Duration
}

// DefaultConfig returns the values for voters on machines that engines keep busy.
func DefaultConfig() Config {
	return Config{Timings: Timings{
		Heartbeat:      time.Second,
		WriteTimeout:   4500 * time.Millisecond, // its answer is there within 5 s
		AttemptTimeout: 1500 * time.Millisecond, // three fit
		Retry:          100 * time.Millisecond,
		KeepAlive:      5 * time.Second,
		Found:          time.Second,
		Reconcile:      5 * time.Second,
		LostAfter:      10 * time.Minute,
		StableAfter:    time.Minute,
		RetryDisk:      10 * time.Second,
	}}
}

// Validate reports all that is wrong with c.
func (c Config) Validate() error {
	t := c.Timings
	errs := []error{
		check(c.Name != "", "Name must be set"),
		check(c.Agents != nil && c.Streams != nil, "Agents and Streams must be set"),
		check(c.Expect >= 0, "Expect (%d) must not be negative", c.Expect),
		check(c.Expect == 0 || c.Folder != "", "Expect (%d) needs Folder", c.Expect),
		check(t.AttemptTimeout < t.WriteTimeout, "AttemptTimeout (%v) must be below WriteTimeout (%v)", t.AttemptTimeout, t.WriteTimeout),
	}
	for name, d := range map[string]time.Duration{
		"Heartbeat": t.Heartbeat, "WriteTimeout": t.WriteTimeout, "AttemptTimeout": t.AttemptTimeout, "Retry": t.Retry,
		"KeepAlive": t.KeepAlive, "Found": t.Found, "Reconcile": t.Reconcile, "LostAfter": t.LostAfter,
		"StableAfter": t.StableAfter, "RetryDisk": t.RetryDisk,
	} {
		errs = append(errs, check(d > 0, "%s (%v) must be above 0", name, d))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("agreed state: %w", err)
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Timings == (Timings{}) {
		c.Timings = DefaultConfig().Timings
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.ValidatePolicy == nil {
		c.ValidatePolicy = func(string) error { return nil }
	}
	if c.openStores == nil {
		c.openStores = func() (*stores, error) { return openStores(c.Folder) }
	}
	if c.writeFile == nil {
		c.writeFile = writeFile
	}
	return c
}
