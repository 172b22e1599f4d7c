package workload

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// What a file of coding sessions may hold. Real lines stay below 100 kB and 4,000 requests.
const (
	maxSessionBytes = 16 << 20
	maxSessions     = 1 << 16
	maxSessionRun   = 1 << 20
)

// CodingSession is a recorded conversation of a coding agent: each prompt holds most of the one before it.
type CodingSession struct {
	BlockTokens  int // tokens in one block
	SharedTokens int // at the start of every prompt: tools and system prompt, which sessions with the same Kind have in common
	Kind         CodingKind
	Turns        []CodingTurn
}

// CodingKind tells apart the tools and system prompts of sessions.
type CodingKind struct{ ToolTokens, SystemTokens int }

// CodingTurn is one request of a CodingSession.
type CodingTurn struct {
	Think        time.Duration // from the end of the answer before
	InputTokens  int
	OutputTokens int
	// Blocks are the ids of the prompt's blocks, local to the session. An id stands for everything before it too.
	Blocks []BlockRun
}

type codingLine struct {
	Block  int             `json:"bs"`
	Tools  int             `json:"tool"`
	System int             `json:"sys"`
	Turns  []codingRequest `json:"r"`
}

type codingRequest struct {
	Input  int             `json:"in"`
	Output int             `json:"out"`
	Think  float64         `json:"think"` // seconds
	Runs   []uint64        `json:"h"`     // first id and count, in turn
	Sub    json.RawMessage `json:"sub"`
}

// ReadCodingSessions reads the traces of github.com/callanjfox/kv-cache-tester in their compact form, plain or gzip: a JSON
// object a line, one session each. Requests of sub-agents, which run beside their session, are left out. The error names
// the line.
func ReadCodingSessions(r io.Reader) ([]CodingSession, error) {
	plain, err := gunzip(r)
	if err != nil {
		return nil, err
	}
	var all []CodingSession
	lines := bufio.NewScanner(plain)
	lines.Buffer(nil, maxSessionBytes)
	for n := 1; lines.Scan(); n++ {
		if len(all) == maxSessions {
			return nil, fmt.Errorf("more than %d sessions", maxSessions)
		}
		s, err := parseSession(lines.Bytes())
		if err != nil {
			return nil, fmt.Errorf("read line %d: %w", n, err)
		}
		all = append(all, s)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read after session %d: %w", len(all), err)
	}
	return all, nil
}

func parseSession(line []byte) (CodingSession, error) {
	var l codingLine
	if err := json.Unmarshal(line, &l); err != nil {
		return CodingSession{}, fmt.Errorf("parse session: %w", err)
	}
	if l.Block < 1 || l.Block > maxTokens || l.Tools < 0 || l.System < 0 || max(l.Tools, l.System) > maxTokens {
		return CodingSession{}, fmt.Errorf("bs %d, tool %d or sys %d is out of range", l.Block, l.Tools, l.System)
	}
	s := CodingSession{BlockTokens: l.Block, SharedTokens: l.Tools + l.System, Kind: CodingKind{l.Tools, l.System}}
	for i := range l.Turns {
		if l.Turns[i].Sub != nil {
			continue
		}
		t, err := l.Turns[i].turn()
		if err != nil {
			return CodingSession{}, fmt.Errorf("request %d: %w", i, err)
		}
		s.Turns = append(s.Turns, t)
	}
	return s, nil
}

func (q *codingRequest) turn() (CodingTurn, error) {
	switch {
	case q.Input < 1 || q.Input > maxTokens:
		return CodingTurn{}, fmt.Errorf("in %d is out of range", q.Input)
	case q.Output < 0 || q.Output > maxTokens:
		return CodingTurn{}, fmt.Errorf("out %d is out of range", q.Output)
	case !(q.Think >= 0 && q.Think <= maxTraceTime.Seconds()):
		return CodingTurn{}, fmt.Errorf("think %v is out of range", q.Think)
	case len(q.Runs)%2 != 0:
		return CodingTurn{}, errors.New("h is not a list of pairs")
	}
	t := CodingTurn{
		Think:       time.Duration(q.Think * float64(time.Second)),
		InputTokens: q.Input, OutputTokens: q.Output,
	}
	for i := 0; i < len(q.Runs); i += 2 {
		if q.Runs[i] > maxSessionRun || q.Runs[i+1] > maxSessionRun {
			return CodingTurn{}, fmt.Errorf("h has a run of %d from %d", q.Runs[i+1], q.Runs[i])
		}
		t.Blocks = append(t.Blocks, BlockRun{First: q.Runs[i], Count: int(q.Runs[i+1])})
	}
	return t, nil
}
