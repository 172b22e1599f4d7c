package agreed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// The operations of a question.
const (
	opAsk     = "ask"     // who are you
	opFetch   = "fetch"   // your state
	opPropose = "propose" // apply Command, if you lead
	opRead    = "read"    // the state after all writes that ended before this question, if you lead
	opLeave   = "leave"   // take From out of the voters, if you lead
	opPrepare = "prepare" // founding
	opAccept  = "accept"
	opFounded = "founded"
)

// question is what one agent asks another.
type question struct {
	Op      string         `json:"op"`
	Command jsontext.Value `json:"command,omitzero"`
	From    string         `json:"from,omitzero"` // raft id of who asks
	Expect  int            `json:"expect,omitzero"`
	Ballot  ballot         `json:"ballot,omitzero"`
	Voters  []server       `json:"voters,omitzero"`
}

// Codes of an answer that says no.
const (
	codeNotLeader = "not_leader" // ask the leader in News
	codeUncertain = "uncertain"  // begun, and not known how it ended
	codeNewer     = "newer"      // not all voters know this command
	codeInvalid   = "invalid"    // Text says why; asking again is useless
	codeGroup     = "group"      // a group exists
)

// answer is what it says.
type answer struct {
	Code   string `json:"code,omitzero"`
	Text   string `json:"text,omitzero"`
	Result Result `json:"result,omitzero"`
	// Mark is that of its state. A state frame follows the answer where State is set.
	Mark  mark `json:"mark"`
	State bool `json:"state,omitzero"`
	News  news `json:"news,omitzero"`

	RaftID    string   `json:"raft_id,omitzero"`
	Expect    int      `json:"expect,omitzero"`
	Servers   []server `json:"servers,omitzero"` // as its own raft has them, leader or not
	LastIndex uint64   `json:"last_index,omitzero"`
	Supported int      `json:"supported,omitzero"`
	Well      bool     `json:"well,omitzero"` // its raft runs

	Promised ballot   `json:"promised,omitzero"`
	Accepted ballot   `json:"accepted,omitzero"`
	Voters   []server `json:"voters,omitzero"`

	held *held
}

// ask asks an agent, or this one, within AttemptTimeout.
func (g *Group) ask(ctx context.Context, agent string, q question) (answer, error) {
	if agent == g.cfg.Name {
		return g.reply(ctx, q), nil
	}
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Timings.AttemptTimeout)
	defer cancel()
	conn, err := g.open(ctx, agent, streamQuery)
	if err != nil {
		return answer{}, fmt.Errorf("ask %s: %w", agent, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	a, err := exchange(conn, q)
	if err != nil {
		return answer{}, fmt.Errorf("ask %s: %w", agent, errors.Join(err, context.Cause(ctx)))
	}
	return a, nil
}

func exchange(conn net.Conn, q question) (answer, error) {
	if err := writeJSON(conn, q); err != nil {
		return answer{}, err
	}
	r := bufio.NewReader(conn)
	var a answer
	if err := readJSON(r, maxAnswer, &a); err != nil {
		return answer{}, err
	}
	if !a.State {
		return a, nil
	}
	var err error
	a.held, err = readState(r, a.Mark)
	return a, err
}

// serveQuery answers one question.
func (g *Group) serveQuery(conn net.Conn) {
	ctx, cancel := context.WithTimeout(g.ctx, g.cfg.Timings.AttemptTimeout)
	defer cancel()
	_ = conn.SetDeadline(time.Now().Add(g.cfg.Timings.WriteTimeout))
	var q question
	if err := readJSON(bufio.NewReader(conn), maxQuestion, &q); err != nil {
		return
	}
	a := g.reply(ctx, q)
	if err := writeJSON(conn, a); err != nil || !a.State {
		return
	}
	_ = writeFrame(conn, a.held.raw)
}

// reply answers a question from any agent, also this one.
func (g *Group) reply(ctx context.Context, q question) answer {
	switch q.Op {
	case opAsk:
		return g.introduce()
	case opFetch:
		h := g.current.Load()
		return answer{Mark: h.mark, State: true, held: h}
	case opPropose:
		return g.lead(ctx, q.Command)
	case opRead:
		return g.readHere(ctx)
	case opLeave:
		return g.release(ctx, q.From)
	case opPrepare, opAccept, opFounded:
		return g.founding(q)
	}
	return answer{Code: codeInvalid, Text: "this version does not know the question " + q.Op}
}

// introduce says who this agent is.
func (g *Group) introduce() answer {
	v := g.voter.Load()
	a := answer{
		RaftID: g.raftID(), Expect: g.cfg.Expect, Mark: g.current.Load().mark, News: g.latest(), Servers: v.servers(),
		Supported: Supported, Well: v != nil,
	}
	if v != nil {
		a.LastIndex = v.raft.LastIndex()
	}
	return a
}
