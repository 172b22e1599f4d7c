package forward

import (
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/kvmesh/kvmesh/internal/openai"
)

// recording keeps the body of the last request to an engine.
func recording(h http.Handler, last *string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		*last = string(body)
		r.Body = io.NopCloser(strings.NewReader(*last))
		h.ServeHTTP(w, r)
	})
}

// picky refuses requests that have one of the fields, and any when it is down.
type picky struct {
	fields []string
	status int
	text   string // of a refusal, before the field's name
	seen   []string
}

func (p *picky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	p.seen = append(p.seen, string(body))
	for _, f := range p.fields {
		if strings.Contains(string(body), f) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(p.status)
			_, _ = io.WriteString(w, p.text+f)
			return
		}
	}
	startStream(w, roleChunk+chunkOf("one")+doneChunk)
}

var askBoth = openai.Ask{Fields: []string{"return_token_ids"}, Usage: true}

func TestRefusedFieldsAreLeftOut(t *testing.T) {
	tests := []struct {
		name   string
		engine picky
		body   string
		asked  int // requests that the engine sees
		want   int // status
		blamed []string
	}{
		{"a field", picky{fields: []string{"return_token_ids"}, status: 400}, chatBody, 2, 200, []string{"return_token_ids"}},
		{"the other field", picky{fields: []string{"stream_options"}, status: 422}, chatBody, 2, 200, []string{"stream_options"}},
		{"what the client wrote", picky{fields: []string{`"top_k":"x"`}, status: 400, text: "return_token_ids: "}, strings.Replace(chatBody, "{", `{"top_k":"x",`, 1), 2, 400, nil},
		{"something else", picky{fields: []string{`"model"`}, status: 400}, chatBody, 1, 400, nil},
		{"another status", picky{fields: []string{"return_token_ids"}, status: 403}, chatBody, 1, 403, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
				b.book.refuse = "draining"
				a.book.ask, a.engine = askBoth, &tt.engine
				w := a.post(t.Context(), tt.body)
				if w.Code != tt.want || len(tt.engine.seen) != tt.asked || !slices.Equal(a.book.refusedFields, tt.blamed) {
					t.Errorf("got %d %q after %q, blamed %v", w.Code, w.Body, tt.engine.seen, a.book.refusedFields)
				}
				if tt.want == 200 && w.Body.String() != roleChunk+chunkOf("one")+doneChunk {
					t.Errorf("got %q", w.Body)
				}
				if !slices.Equal(a.book.bodies, []string{tt.body}) {
					t.Errorf("the booking saw %q, want the client's body once", a.book.bodies)
				}
				if last := tt.engine.seen[len(tt.engine.seen)-1]; tt.asked == 2 && last != tt.body {
					t.Errorf("asked again with %q", last)
				}
				if tt.want != 200 && w.Body.String() != tt.engine.text+tt.engine.fields[0] {
					t.Errorf("the refusal is %q", w.Body)
				}
			})
		})
	}
}

const usageOnly = `data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":3}}}` + "\n\n"

func TestUsageThatOnlyTheOwnerAskedForIsEvidence(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		b.book.refuse = "draining"
		a.book.ask = openai.Ask{Usage: true}
		a.engine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			startStream(w, roleChunk+chunkOf("one")+usageOnly+doneChunk)
		})
		if w := a.post(t.Context(), chatBody); w.Body.String() != roleChunk+chunkOf("one")+doneChunk {
			t.Errorf("got %q", w.Body)
		}
		o := a.book.ends[0]
		if want := (openai.Usage{PromptTokens: 10, CompletionTokens: 4, CachedTokens: 3, HasCached: true}); !o.HasUsage || o.Usage != want {
			t.Errorf("outcome %+v, want the usage", o)
		}
	})
}

func TestHeldEventIsSentWhenTheStreamBreaksOff(t *testing.T) {
	const finish = `data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}` + "\n\n"
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		b.book.refuse = "draining"
		a.book.ask = openai.Ask{Usage: true}
		a.engine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			startStream(w, finish)
			panic(http.ErrAbortHandler)
		})
		if got := a.post(t.Context(), chatBody).Body.String(); !strings.HasPrefix(got, finish) || !strings.Contains(got, `"error"`) {
			t.Errorf("got %q, want the event and an error", got)
		}
	})
}

func TestPromptIsLearnedAfterContentWasPassedOn(t *testing.T) {
	const first = `data: {"choices":[{"delta":{"role":"assistant"}}],"prompt_token_ids":[5,6,7]}` + "\n\n"
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		b.book.refuse = "draining"
		a.book.ask, a.book.wantsPrompt = askBoth, true
		a.engine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			startStream(w, first)
			synctest.Wait()
			if len(a.book.lessons) != 0 {
				t.Errorf("learned %v before content came", a.book.lessons)
			}
			startStream(w, chunkOf("one"))
			synctest.Wait()
			if len(a.book.lessons) != 1 || !slices.Equal(a.book.lessons[0], []uint32{5, 6, 7}) {
				t.Errorf("learned %v from the first content", a.book.lessons)
			}
			startStream(w, first+chunkOf("two")+doneChunk)
		})
		a.post(t.Context(), chatBody)
		if len(a.book.lessons) != 1 {
			t.Errorf("learned %v, want once", a.book.lessons)
		}
	})
}

func TestNothingIsLearnedFromRequestsThatTeachWrong(t *testing.T) {
	const ids = `"prompt":[1,2,3]`
	tests := []struct {
		name, body string
		status     int
		wants      bool
		want       int
	}{
		{"ids in the body", `{"model":"m",` + ids + `}`, 200, true, 1},
		{"not wanted", `{"model":"m",` + ids + `}`, 200, false, 0},
		{"refused", `{"model":"m",` + ids + `}`, 400, true, 0},
		{"failed", `{"model":"m",` + ids + `}`, 500, true, 0},
		{"several answers", `{"model":"m","n":2,` + ids + `}`, 200, true, 0},
		{"cache not read", `{"model":"m","prompt_logprobs":1,` + ids + `}`, 200, true, 0},
		{"text", `{"model":"m","prompt":"x"}`, 200, true, 0},
		{"a chat's own ids", `{"model":"m","messages":[{"role":"user","content":"x"}],"input_ids":[1,2]}`, 200, true, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
				b.book.refuse = "draining"
				a.book.wantsPrompt = tt.wants
				a.engine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(tt.status)
					_, _ = io.WriteString(w, `{"choices":[]}`)
				})
				a.post(t.Context(), tt.body, func(r *http.Request) {
					if !strings.Contains(tt.body, "messages") {
						r.URL.Path = completionPath
					}
				})
				if len(a.book.lessons) != tt.want {
					t.Errorf("learned %v, want %d lessons", a.book.lessons, tt.want)
				}
			})
		})
	}
}

func TestLengthIsThatOfTheStrippedAnswer(t *testing.T) {
	const answer, want = `{"choices":[],"prompt_token_ids":[1,2,3]}`, `{"choices":[],"prompt_token_ids":null}`
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		b.book.refuse = "draining"
		a.book.ask = askBoth
		a.engine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
			_, _ = io.WriteString(w, answer)
		})
		w := a.post(t.Context(), strings.Replace(chatBody, `"stream":true,`, "", 1))
		if w.Body.String() != want || w.Header().Get("Content-Length") != strconv.Itoa(len(want)) {
			t.Errorf("got %q with length %s", w.Body, w.Header().Get("Content-Length"))
		}
	})
}

// TestAnswerSaysMoreOfThePromptThanTheRequest is for ids in a chat's body, which engines may ignore.
func TestAnswerSaysMoreOfThePromptThanTheRequest(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		b.book.refuse = "draining"
		a.book.ask, a.book.wantsPrompt = askBoth, true
		a.engine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			startStream(w, `data: {"choices":[],"prompt_token_ids":[9]}`+"\n\n"+chunkOf("one")+doneChunk)
		})
		a.post(t.Context(), strings.Replace(chatBody, "{", `{"input_ids":[1,2],`, 1))
		if len(a.book.lessons) != 1 || !slices.Equal(a.book.lessons[0], []uint32{9}) {
			t.Errorf("learned %v, want what the engine rendered", a.book.lessons)
		}
	})
}

func TestWhatTheClientAskedItselfStays(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		b.book.refuse = "draining"
		a.book.ask, a.book.wantsPrompt = askBoth, true
		var sent string
		answer := chunkOf("one") + `data: {"choices":[{"delta":{},"token_ids":[1]}],"prompt_token_ids":[5]}` + "\n\n" + usageChunk + doneChunk
		a.engine = recording(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { startStream(w, answer) }), &sent)
		body := strings.Replace(chatBody, "{", `{"return_token_ids":true,"stream_options":{"include_usage":true},`, 1)
		if w := a.post(t.Context(), body); w.Body.String() != answer || sent != body {
			t.Errorf("sent %q, got %q", sent, w.Body)
		}
	})
}

func TestAnswerTooLongToStripFails(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		b.book.refuse = "draining"
		a.book.ask = askBoth
		a.engine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			for part := strings.Repeat(" ", 1<<20); ; {
				if _, err := io.WriteString(w, part); err != nil {
					return
				}
			}
		})
		if w := a.post(t.Context(), strings.Replace(chatBody, `"stream":true,`, "", 1)); w.Code < 500 {
			t.Errorf("got %d with %d bytes", w.Code, w.Body.Len())
		}
		if !a.book.ends[0].Failed {
			t.Errorf("outcome %+v", a.book.ends[0])
		}
	})
}
