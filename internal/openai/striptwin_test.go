package openai

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// parseNode reads an object.
func parseNode(b string) *node {
	n, err := twinTree([]byte(b))
	if err != nil || n.kind != '{' {
		return nil
	}
	return n
}

// without returns an object without lists of token ids, and whether there were some.
func (n *node) without(style Style) (out *node, some bool) {
	out = &node{kind: n.kind}
	for i, k := range n.keys {
		v := n.list[i]
		if (k == "token_ids" || k == "prompt_token_ids" || k == "response_token_ids") && v.is("[") {
			some = true
			if style == StyleAbsent {
				continue
			}
			v = &node{kind: 'n', str: "null"}
		}
		out.keys, out.list = append(out.keys, k), append(out.list, v)
	}
	return out, some
}

// twinStripper does with trees what Stripper does with bytes.
type twinStripper struct {
	ask    Ask
	theirs bool
	held   []string // prefix, object, suffix
	out    strings.Builder
}

func (s *twinStripper) flush() {
	s.out.WriteString(strings.Join(s.held, ""))
	s.held = nil
}

// dataLine cuts an event around the data of its only data line.
func dataLine(raw string) (before, data, after string, ok bool) {
	const name = "data:"
	lines := strings.SplitAfter(raw, "\n")
	for i, line := range lines {
		if !strings.Contains(line, name) {
			continue
		}
		rest := strings.Join(lines[i+1:], "")
		if !strings.HasPrefix(line, name) || !strings.HasSuffix(line, "\n") || strings.Contains("\n"+rest, "\n"+name) {
			return "", "", "", false
		}
		return strings.Join(lines[:i], "") + name, line[len(name) : len(line)-1], "\n" + rest, true
	}
	return "", "", "", false
}

func (s *twinStripper) event(raw string) {
	usage := s.ask.Usage && !s.theirs
	before, data, after, ok := dataLine(raw)
	n := parseNode(data)
	concerned := len(s.ask.Fields) > 0 && strings.Contains(raw, `token_ids"`) ||
		usage && (strings.Contains(raw, `"usage"`) || strings.Contains(raw, `"finish_reason":"`))
	if !ok || n == nil || !concerned {
		s.flush()
		s.out.WriteString(raw)
		return
	}
	hasUsage, stamp := n.get("usage").is("{"), n.get("system_fingerprint")
	stamped := stamp.is(`"`)
	noChoices := n.get("choices").is("[") && len(n.get("choices").list) == 0
	n, dropped, choices, finished := s.object(n)
	s.theirs = s.theirs || hasUsage && choices > 0
	switch usage = usage && !s.theirs; {
	case usage && hasUsage && noChoices:
		if stamped && s.held != nil {
			s.held[1] = strings.TrimSuffix(s.held[1], "}") + `,"system_fingerprint":` + stamp.json(",", ":") + "}"
		}
		s.flush()
	case dropped:
	default:
		s.flush()
		s.held = []string{before, n.json(",", ":"), after}
		if !usage || !finished || s.ask.Style != StyleNull || stamped {
			s.flush()
		}
	}
}

func (s *twinStripper) object(n *node) (out *node, dropped bool, choices int, finished bool) {
	strip := func(n *node) (*node, bool) { return n, false }
	if len(s.ask.Fields) > 0 {
		strip = func(n *node) (*node, bool) { return n.without(s.ask.Style) }
	}
	n, _ = strip(n)
	list := n.get("choices").array()
	bare := 0
	for i, c := range list {
		if !c.is("{") {
			continue
		}
		short, some := strip(c)
		list[i] = short
		ends, delta, says := c.get("finish_reason").is(`"`), c.get("delta"), false
		finished = finished || ends
		for i := range delta.members() {
			says = says || delta.keys[i] != "reasoning_content" || !delta.list[i].is("n")
		}
		if some && !ends && delta.is("{") && !says && c.get("logprobs") == nil {
			bare++
		}
	}
	return n, bare > 0 && bare == len(list), len(list), finished
}

func (n *node) members() []string {
	if n.is("{") {
		return n.keys
	}
	return nil
}

// canonical writes the objects of a stream in one form.
func canonical(raw string) string {
	before, data, after, ok := dataLine(raw)
	if n := parseNode(data); ok && n != nil {
		return before + n.json(",", ":") + after
	}
	return raw
}

func compareStripping(t *testing.T, ask Ask, body []byte) {
	t.Helper()
	s, twin := NewStripper(ask), &twinStripper{ask: ask}
	var out, all []byte
	var got strings.Builder
	feed := func(body []byte, yield func([]byte)) {
		_ = NewStream(RouteChat, len(body)).Feed(body, func(e Event) bool { yield(e.Raw); return true })
	}
	feed(body, func(raw []byte) {
		all = append(all, raw...)
		out = s.Event(out, raw)
		twin.event(string(raw))
	})
	out = s.Flush(out)
	twin.flush()
	feed(out, func(raw []byte) { got.WriteString(canonical(string(raw))) })
	if (ask.Empty() || !bytes.Contains(body, hintIDs) && !ask.Usage) && !bytes.Equal(out, all) {
		t.Fatalf("%q became %q without anything to take out", all, out)
	}
	if bytes.IndexByte(body, '\\') >= 0 {
		return // names of engines have no escapes, and are not unescaped
	}
	var want strings.Builder
	feed([]byte(twin.out.String()), func(raw []byte) { want.WriteString(canonical(string(raw))) })
	if diff := cmp.Diff(want.String(), got.String()); diff != "" {
		t.Fatalf("%+v of %q (-twin +got):\n%s", ask, body, diff)
	}
}

func FuzzStrip(f *testing.F) {
	for i, name := range []string{"chat-tool.stream.both", "chat-logprobs.stream.ids", "comp-n2.stream.ids", "chat.forced.both"} {
		body := read(f, "testdata/vllm/"+name)
		events := bytes.SplitAfter(body, []byte("\n\n"))
		f.Add(uint8(i)|3, bytes.Join(events[:2], nil))
		f.Add(uint8(7), bytes.Join(events[len(events)-4:], nil))
	}
	f.Add(uint8(3), []byte("data: "+stripFinish+"}\nid: }\n\ndata: "+stripUsage+"\n\n"))
	f.Add(uint8(5), []byte(sse(`{"token_ids":[1],"prompt_token_ids":[2],"choices":[{"token_ids":[],"delta":{}}],"usage":null}`)))
	f.Fuzz(func(t *testing.T, what uint8, body []byte) {
		ask := Ask{Usage: what&2 != 0, Style: Style(what >> 2 & 1)}
		if what&1 != 0 {
			ask.Fields = []string{fieldTokenIDs}
		}
		compareStripping(t, ask, body)
		s := NewStripper(ask)
		out := s.Whole(body)
		if json.Valid(body) != json.Valid(out) {
			t.Fatalf("%q became %q", body, out)
		}
		ParseIDs(s.Prompt())
		ParseIDs(body)
	})
}

// randomEvents returns a stream of events that an engine, or a bad one, could send.
func randomEvents(rng *rand.Rand) []byte {
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	object := func(n int, member func() string) string {
		parts := make([]string, rng.IntN(n))
		for i := range parts {
			parts[i] = member()
		}
		return pick("", " ") + "{" + strings.Join(parts, pick(",", " , ")) + "}"
	}
	ids := func() string {
		return pick(`"token_ids":`, `"prompt_token_ids": `, `"response_token_ids":`) + pick("[1,2]", "[]", "null", "7", `["x"]`)
	}
	delta := func() string {
		return object(3, func() string { return pick(`"content":"x"`, `"reasoning_content":null`, `"role":"a"`, ids()) })
	}
	choice := func() string {
		return pick("7", object(6, func() string {
			return pick(`"delta":`+delta(), `"delta":{}`, `"finish_reason":"stop"`, `"finish_reason": "stop"`, `"finish_reason":null`,
				`"logprobs":null`, `"logprobs":{}`, ids(), ids())
		}))
	}
	var b strings.Builder
	for range 1 + rng.IntN(4) {
		data := object(6, func() string {
			choices := `"choices":[` + strings.Join([]string{choice(), choice()}[:1+rng.IntN(2)], ",") + "]"
			return pick(choices, choices, `"choices":[]`, `"choices":null`, `"usage":{"prompt_tokens":1}`, `"usage":null`,
				`"system_fingerprint":"f"`, `"system_fingerprint":null`, `"id":"token_ids"`, ids())
		})
		b.WriteString(pick("data: ", "data:", "event: e\ndata: ", ": c\n") + data + pick("\n\n", "\r\n\r\n", " \nid: }\n\n"))
	}
	return []byte(b.String())
}

func TestRandomEventsAreStrippedAsTheTwin(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 5_000 {
		ask := Ask{Usage: rng.IntN(2) > 0, Style: Style(rng.IntN(2))}
		if rng.IntN(4) > 0 {
			ask.Fields = []string{fieldTokenIDs}
		}
		compareStripping(t, ask, randomEvents(rng))
	}
}
