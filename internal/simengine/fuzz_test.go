package simengine

import (
	"bytes"
	"net"
	"net/http"
	"testing"
	"time"
)

// FuzzRequest feeds one body to the parsers of all routes and checks that whatever is accepted renders, fits and has an
// answer.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(chat(10, `,"tools":[{"function":{"name":"f","parameters":{}}}],"n":2`)))
	f.Add([]byte(`{"model":"sim-model","prompt":[[1,2],[3]],"input":"x","max_tokens":1}`))
	engines := map[string]*Engine{}
	for _, k := range []string{KindVLLM, KindSGLang, KindTRTLLM, KindOther} {
		cfg := DefaultConfig()
		cfg.Kind, cfg.Template, cfg.MaxContext = k, TemplateDropsThoughts, 4096
		e, err := New(cfg)
		if err != nil {
			f.Fatal(err)
		}
		engines[k] = e
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for k, e := range engines {
			var specs []callSpec
			var chatReq chatRequest
			if decodeBody(body, &chatReq) == nil {
				if prompt, thinking, err := e.chatPrompt(&chatReq); err == nil {
					specs = append(specs, callSpec{params: chatReq.params, prompts: [][]Token{prompt}, thinking: thinking, maxTokens: chatReq.maxTokens()})
				}
			}
			var compReq completionRequest
			if decodeBody(body, &compReq) == nil {
				if prompts, err := compReq.Prompt.tokens(e.tok); err == nil {
					specs = append(specs, callSpec{params: compReq.params, prompts: prompts, maxTokens: compReq.MaxTokens})
				}
			}
			var respReq responsesRequest
			if decodeBody(body, &respReq) == nil {
				if c, err := respReq.conversation(); err == nil {
					specs = append(specs, callSpec{params: respReq.params, prompts: [][]Token{e.promptOf(c)}, maxTokens: respReq.MaxOutputTokens})
				}
			}
			var msgReq messagesRequest
			if decodeBody(body, &msgReq) == nil {
				if c, err := msgReq.conversation(k); err == nil {
					specs = append(specs, callSpec{params: msgReq.params, prompts: [][]Token{e.promptOf(c)}})
				}
			}
			checkSpecs(t, e, specs)
			if got, err := e.Resident(body); err == nil && (got.PromptTokens == 0 || got.ResidentTokens != 0) {
				t.Errorf("empty cache: %+v", got)
			}
		}
	})
}

func checkSpecs(t *testing.T, e *Engine, specs []callSpec) {
	t.Helper()
	for _, s := range specs {
		c, err := e.newCall(&http.Request{}, s)
		if err != nil {
			continue
		}
		for _, j := range c.jobs {
			if n := len(j.answer()); n == 0 || len(j.seq.tokens) > e.cfg.MaxContext {
				t.Errorf("prompt of %d tokens has an answer of %d", j.prompt, n)
			}
		}
	}
}

// bytesConn is a peer that sends b and takes everything.
type bytesConn struct {
	net.Conn
	*bytes.Reader
}

func (c *bytesConn) Read(p []byte) (int, error)  { return c.Reader.Read(p) }
func (c *bytesConn) Write(p []byte) (int, error) { return len(p), nil }
func (c *bytesConn) Close() error                { return nil }
func (c *bytesConn) SetDeadline(time.Time) error { return nil }

func greeting() []byte {
	b := make([]byte, 64)
	b[0], b[9], b[10] = 0xff, 0x7f, 3
	copy(b[12:], "NULL")
	return appendFrame(b, flagCommand, appendProperty([]byte("\x05READY"), "Socket-Type", "SUB"))
}

// FuzzZMTP feeds a connection's bytes to both sockets.
func FuzzZMTP(f *testing.F) {
	f.Add(appendMessage(greeting(), []byte("\x01topic")))
	f.Add(appendMessage(greeting(), nil, seqFrame(0)))
	f.Add(appendFrame(greeting(), flagCommand, []byte("\x04PING\x00\x00ctx")))
	f.Add(append(greeting(), flagLong, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff))
	cfg := DefaultConfig()
	cfg.KVEvents.Endpoint, cfg.KVEvents.BufferSteps, cfg.KVEvents.HWM = "tcp://127.0.0.1:0", 2, 2
	cfg = cfg.withDefaults()
	f.Fuzz(func(t *testing.T, b []byte) {
		p := newPublisher(&cfg)
		p.publish(0, time.Unix(0, 0), []kvEvent{{kind: eventCleared}})
		p.servePub(t.Context(), &bytesConn{Reader: bytes.NewReader(b)})
		p.serveReplay(t.Context(), &bytesConn{Reader: bytes.NewReader(b)})
		if len(p.subs) != 0 {
			t.Error("a subscriber stays after its connection ended")
		}
	})
}

// FuzzTokenizer checks that every text comes back from its tokens.
func FuzzTokenizer(f *testing.F) {
	tok := newTokenizer()
	f.Add(english)
	f.Add("<|im_start|>user\n{\"a\": 12345,  \"Bcd\":[]}  é")
	f.Fuzz(func(t *testing.T, s string) {
		ids := tok.encode(nil, s)
		if got := tok.decode(ids); got != s {
			t.Errorf("decode(encode(%q)) = %q", s, got)
		}
		for _, id := range ids {
			if id >= tok.size() {
				t.Errorf("id %d of %q is outside the vocabulary", id, s)
			}
		}
	})
}
