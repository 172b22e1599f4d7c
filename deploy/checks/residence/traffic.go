package main

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/internal/workload"
)

const (
	// traceScale divides the trace's lengths: 13.7 thousand tokens a prompt become 6,900.
	traceScale = 2
	// activeChats is how many conversations go on at once. The cache holds some of them, and not all.
	activeChats = 40
)

// mix is the traffic of one run: requests of a recorded trace between the turns of conversations. It is safe for
// concurrent use.
type mix struct {
	writer  *writer
	streams float64 // share of requests that are streams
	salts   float64 // share of conversations that have a cache salt

	mu       sync.Mutex
	rng      *rand.Rand
	trace    []traced        // prompts that are left
	talking  map[uint64]bool // recorded conversations of which a request is being sent
	chats    int             // conversations that have not begun
	idle     []*conversation
	busy     int // turns that are being sent
	sent     int // requests
	ofTrace  int // of those
	begun    int // conversations
	withTool int // of those
	salted   int // of those
}

// traced is one prompt of the trace. In truth it comes seconds after the answer to the one before of its conversation: they
// are not sent at the same time.
type traced struct {
	prompt       string
	conversation uint64
}

// newMix returns traffic of so many requests of the trace and so many conversations.
func newMix(h *check.Harness, seed uint64, requests, chats int, streams float64) (*mix, error) {
	m := &mix{writer: newWriter(seed, 1, 48), streams: streams, rng: rand.New(rand.NewPCG(seed, 12)), chats: chats, talking: map[uint64]bool{}}
	if requests == 0 {
		return m, nil
	}
	trace, err := conversationTrace(h)
	if err != nil {
		return nil, err
	}
	trace.BlockTokens /= traceScale
	for i := range trace.Requests {
		trace.Requests[i].InputTokens = max(trace.Requests[i].InputTokens/traceScale, 1)
	}
	replay, err := workload.Replay("trace", &trace, m.writer.text, workload.ReplayConfig{
		Requests: requests, MaxInputTokens: 24_000, Seed: seed,
	})
	if err != nil {
		return nil, err
	}
	for _, s := range replay.Sessions {
		var text []byte
		passages := s.Turns[0].User
		for _, p := range passages {
			text = m.writer.text.AppendPassage(text, p)
		}
		// the first block is a system text that many share
		m.trace = append(m.trace, traced{string(text), passages[min(1, len(passages)-1)].ID})
	}
	return m, nil
}

// fromTrace returns the next prompt of the trace whose conversation is not busy, nil when there is none. The caller holds mu.
func (m *mix) fromTrace() *conversation {
	i := slices.IndexFunc(m.trace, func(t traced) bool { return !m.talking[t.conversation] })
	if i < 0 {
		return nil
	}
	t := m.trace[i]
	m.trace = slices.Delete(m.trace, i, i+1)
	m.talking[t.conversation] = true
	m.ofTrace++
	c := &conversation{writer: m.writer, rng: m.rng, turns: 1, streams: m.streams, traced: t.conversation}
	c.Model = model
	c.ask()
	c.Messages[0].Content = t.prompt
	return c
}

// conversationTrace reads the recorded conversations from beside the repository; where they are not, those that are part
// of the program, which are fewer.
func conversationTrace(h *check.Harness) (workload.Trace, error) {
	f, err := os.Open(filepath.Join(h.Root, "..", "shared", "traces", "conversation_trace.jsonl.gz"))
	if os.IsNotExist(err) {
		h.Say("no ../shared/traces beside the repository: going on with the 2,000 requests of the trace that are in the binary")
		return workload.ConversationSlice()
	}
	if err != nil {
		return workload.Trace{}, err
	}
	defer f.Close()
	t, err := workload.ReadMooncake(f)
	if err != nil {
		return workload.Trace{}, &fs.PathError{Op: "read", Path: f.Name(), Err: err}
	}
	return t, nil
}

// take returns the conversation whose turn is next, nil when none is left. It is the caller's until put.
func (m *mix) take() *conversation {
	m.mu.Lock()
	defer m.mu.Unlock()
	fresh := m.chats > 0 && len(m.idle)+m.busy < activeChats
	share := float64(len(m.trace)) / float64(1+len(m.trace)+2*m.chats+len(m.idle))
	var c *conversation
	if len(m.trace) > 0 && m.rng.Float64() < share {
		c = m.fromTrace()
	}
	switch {
	case c != nil:
	case fresh:
		c = m.begin()
	case len(m.idle) > 0:
		i := m.rng.IntN(len(m.idle))
		c = m.idle[i]
		m.idle[i] = m.idle[len(m.idle)-1]
		m.idle = m.idle[:len(m.idle)-1]
	case m.chats > 0:
		c = m.begin()
	default:
		if c = m.fromTrace(); c == nil {
			return nil
		}
	}
	m.busy++
	m.sent++
	return c
}

// begin begins a conversation. The caller holds mu.
func (m *mix) begin() *conversation {
	c := m.writer.chat(m.streams)
	m.chats--
	m.begun++
	if len(c.Tools) > 0 {
		m.withTool++
	}
	if m.rng.Float64() < m.salts {
		c.CacheSalt = fmt.Sprint("tenant-", m.rng.IntN(2))
		m.salted++
	}
	return c
}

// put gives a conversation back with the answer to its last turn, nil when there was none.
func (m *mix) put(c *conversation, a *answer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy--
	delete(m.talking, c.traced)
	if a == nil {
		return
	}
	if c.turns > 1 {
		c.answered(*a)
		m.idle = append(m.idle, c)
	}
}

// left reports whether there is more.
func (m *mix) left() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.trace) > 0 || m.chats > 0 || len(m.idle) > 0
}

func (m *mix) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	trace := ""
	if m.ofTrace > 0 {
		trace = fmt.Sprintf("%d of the conversation trace, all lengths ÷ %d, and ", m.ofTrace, traceScale)
	}
	return fmt.Sprintf("%d requests: %s%d of %d conversations, %d with tools, %d with a salt",
		m.sent, trace, m.sent-m.ofTrace, m.begun, m.withTool, m.salted)
}
