package workload

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Workload is the traffic of one run. It is read-only once made: several runs may play it, at once or in turn, and
// each sends the same first prompts at the same times.
type Workload struct {
	Name     string
	Text     *Text     // what passages say
	Sessions []Session // Invariant: in order of Start.
}

// Session is one client: it sends its turns one after the other, each after it has read the answer to the one before.
type Session struct {
	ID     string
	Class  string        // the part of the workload it belongs to, as results are grouped
	Start  time.Duration // when its first turn is sent, from the start of the run
	System []Passage     // the system prompt; none when empty
	Turns  []Turn
}

// Turn is one request of a session.
type Turn struct {
	Think     time.Duration // from the end of the answer before; of no effect in the first turn
	User      []Passage     // the new user message
	MaxTokens int           // limit of the answer
}

// Request is one turn as it is sent.
type Request struct {
	At      time.Duration // when it was due, from the start of the run
	Session string
	Class   string
	Turn    int    // from 0
	Body    []byte // JSON of POST /v1/chat/completions, streaming and with usage
}

// Requests returns the number of turns in all sessions.
func (w *Workload) Requests() int {
	n := 0
	for i := range w.Sessions {
		n += len(w.Sessions[i].Turns)
	}
	return n
}

// Merge returns one workload of all the sessions of parts, which must share one Text. Sessions get their part's name
// as a prefix of their ID.
func Merge(name string, parts ...Workload) Workload {
	w := Workload{Name: name}
	for _, p := range parts {
		w.Text = p.Text
		for _, s := range p.Sessions {
			s.ID = p.Name + "-" + s.ID
			w.Sessions = append(w.Sessions, s)
		}
	}
	w.sort()
	return w
}

func (w *Workload) sort() {
	slices.SortStableFunc(w.Sessions, func(a, b Session) int { return cmp.Compare(a.Start, b.Start) })
}

// request builds turn i of s. answers are those to the turns before it, as they came.
func (w *Workload) request(s *Session, i int, answers []string, model string) (Request, error) {
	body, err := json.Marshal(completion{
		Model:         model,
		Messages:      w.messages(s, i, answers),
		MaxTokens:     s.Turns[i].MaxTokens,
		Stream:        true,
		StreamOptions: streamOptions{IncludeUsage: true},
	})
	if err != nil {
		return Request{}, fmt.Errorf("build turn %d of session %s: %w", i, s.ID, err)
	}
	return Request{Session: s.ID, Class: s.Class, Turn: i, Body: body}, nil
}

// messages returns the conversation up to and with the user message of turn i.
func (w *Workload) messages(s *Session, i int, answers []string) []message {
	var out []message
	if len(s.System) > 0 {
		out = append(out, message{"system", w.text(s.System)})
	}
	for j := range i {
		out = append(out, message{"user", w.text(s.Turns[j].User)}, message{"assistant", answers[j]})
	}
	return append(out, message{"user", w.text(s.Turns[i].User)})
}

func (w *Workload) text(passages []Passage) string {
	size := 0
	for _, p := range passages {
		size += p.Bytes
	}
	b := make([]byte, 0, size+maxSentence)
	for _, p := range passages {
		b = w.Text.AppendPassage(b, p)
	}
	return string(b)
}

// completion is the request body. Temperature 0 makes the answers of one engine, and so the later turns, the same in
// every run.
type completion struct {
	Model         string        `json:"model"`
	Messages      []message     `json:"messages"`
	MaxTokens     int           `json:"max_tokens"`
	Temperature   float64       `json:"temperature"`
	Stream        bool          `json:"stream"`
	StreamOptions streamOptions `json:"stream_options"`
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}
