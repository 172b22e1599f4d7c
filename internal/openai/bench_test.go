package openai

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// Lines of text as they stand in a body: prose has an escape for its line break only, code one every 25 bytes.
const (
	proseLine = `the cache holds what the longest prefix of the prompt has, row %02d of it\n`
	codeLine  = `\tfmt.Println(\"the cache holds the prefix of\", row%02d, prompt.String())\n`
)

// chatBody writes a chat request of about size bytes: a system message, 40 messages of the line over and over, and
// tools; model and tools come last, as clients send them.
func chatBody(size int, line string) []byte {
	const messages = 40
	var b bytes.Buffer
	b.WriteString(`{"messages":[{"role":"system","content":"You are helpful."}`)
	for i := range messages {
		role := [2]string{"user", "assistant"}[i%2]
		fmt.Fprintf(&b, `,{"role":"%s","content":"`, role)
		for n := 0; n < size/messages-64; n += len(line) - 1 {
			fmt.Fprintf(&b, line, n%100)
		}
		b.WriteString(`"}`)
	}
	b.WriteString(`],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"model":"m","stream":true}`)
	return b.Bytes()
}

func benchmark400kB(b *testing.B, run func(b *testing.B, body []byte)) {
	for _, text := range []struct{ name, line string }{{"prose", proseLine}, {"code", codeLine}} {
		b.Run(text.name, func(b *testing.B) {
			body := chatBody(400_000, text.line)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			run(b, body)
		})
	}
}

func BenchmarkParse400kB(b *testing.B) {
	benchmark400kB(b, func(b *testing.B, body []byte) {
		for b.Loop() {
			if _, err := Parse(RouteChat, body); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkWalk400kB(b *testing.B) {
	benchmark400kB(b, func(b *testing.B, body []byte) {
		r, err := Parse(RouteChat, body)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			n := 0
			for _, p := range r.Walk("m", 0) {
				n += len(p)
			}
			if n < len(body)*8/10 {
				b.Fatalf("walk has %d of %d bytes", n, len(body))
			}
		}
	})
}

// BenchmarkTools100kB is the part of an agent's body that is many small values.
func BenchmarkTools100kB(b *testing.B) {
	tool := `{"type":"function","function":{"name":"f","description":"reads a file","parameters":{"type": "object", "properties": {"a": {"type": "string", "description": "the path"}, "b": {"type": "number"}}, "required": ["a"]}}}`
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[` +
		strings.Repeat(tool+",", 100_000/len(tool)) + tool + `]}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		r, err := Parse(RouteChat, body)
		if err != nil {
			b.Fatal(err)
		}
		for range r.Walk("m", 0) {
		}
	}
}

func BenchmarkTokens400kB(b *testing.B) {
	body := []byte(`{"model":"m","prompt":[` + strings.Repeat("104857,", 400_000/7) + `1]}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		r, err := Parse(RouteCompletions, body)
		if err != nil {
			b.Fatal(err)
		}
		for range r.Walk("m", 0) {
		}
	}
}

func BenchmarkStreamEvent(b *testing.B) {
	event := []byte(`data: {"id":"chatcmpl-0a1b2c3d4e5f","object":"chat.completion.chunk","created":1754500000,"model":"qwen3-coder",` +
		`"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}` + "\n\n")
	s := NewStream(RouteChat, 32<<20)
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Feed(event, func(Event) bool { return true }); err != nil {
			b.Fatal(err)
		}
	}
}

func TestHotPathsAllocateLittle(t *testing.T) {
	body := chatBody(400_000, codeLine)
	r, err := Parse(RouteChat, body)
	if err != nil {
		t.Fatal(err)
	}
	s := NewStream(RouteChat, 1<<20)
	event := []byte(sse(`{"choices":[{"delta":{"content":"x"}}]}`))
	tests := []struct {
		name string
		run  func()
		most float64
	}{
		{"Parse", func() { _, _ = Parse(RouteChat, body) }, 16}, // the request, its model, a list that grows
		{"Walk", func() {
			for range r.Walk("m", 0) {
			}
		}, 4},
		{"Feed", func() { _ = s.Feed(event, func(Event) bool { return true }) }, 0},
	}
	for _, tt := range tests {
		if got := testing.AllocsPerRun(20, tt.run); got > tt.most {
			t.Errorf("%s allocates %v times, want at most %v", tt.name, got, tt.most)
		}
	}
}

// BenchmarkStripEvent is what stripping adds to one event of a stream.
func BenchmarkStripEvent(b *testing.B) {
	const head = `data: {"id":"chatcmpl-0a1b2c3d4e5f","object":"chat.completion.chunk","created":1754500000,"model":"qwen3-coder",` +
		`"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null`
	ask := Ask{Fields: []string{fieldTokenIDs}, Usage: true}
	for _, tt := range []struct{ name, event string }{
		{"untouched", head + "}]}\n\n"},
		{"ids", head + `,"token_ids":[151643]}]}` + "\n\n"},
		{"finish", strings.Replace(head, `"finish_reason":null`, `"finish_reason":"stop"`, 1) + `,"stop_reason":null,"token_ids":[151643]}]}` + "\n\n"},
	} {
		b.Run(tt.name, func(b *testing.B) {
			event := []byte(tt.event)
			s, out := NewStripper(ask), []byte(nil)
			b.SetBytes(int64(len(event)))
			b.ReportAllocs()
			for b.Loop() {
				out = s.Event(out[:0], event)
			}
		})
	}
}

// BenchmarkFirstEvent100kIDs is the event with the ids of a prompt of 100,000 tokens: cut out of the stream, stripped,
// and its ids parsed.
func BenchmarkFirstEvent100kIDs(b *testing.B) {
	ids := strings.Repeat("104857,", 100_000-1) + "1"
	event := []byte(sse(`{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],` +
		`"prompt_token_ids":[` + ids + `],"prompt_text":null}`))
	b.Run("cut", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s := NewStream(RouteChat, 32<<20)
			for rest := event; len(rest) > 0; {
				n := min(len(rest), 32<<10)
				if err := s.Feed(rest[:n], func(Event) bool { return true }); err != nil {
					b.Fatal(err)
				}
				rest = rest[n:]
			}
		}
	})
	b.Run("strip", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s := NewStripper(Ask{Fields: []string{fieldTokenIDs}})
			if out := s.Event(nil, event); len(out) > 400 || s.Prompt() == nil {
				b.Fatal("not stripped")
			}
		}
	})
	b.Run("parse", func(b *testing.B) {
		list := []byte("[" + ids + "]")
		b.ReportAllocs()
		for b.Loop() {
			if len(ParseIDs(list)) != 100_000 {
				b.Fatal("not parsed")
			}
		}
	})
}
