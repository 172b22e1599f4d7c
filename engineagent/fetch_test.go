package engineagent

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// socketAgent returns an agent with the default transport, whose engine is an HTTP server on the loopback.
func socketAgent(t *testing.T, h http.HandlerFunc) (*Agent, *httptest.Server) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return newAgent(t, Config{ID: "a/e", URL: u, APIKey: "secret"}), s
}

func reset(w http.ResponseWriter) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

func TestAnswersOfRealSocketsAreUnderstood(t *testing.T) {
	tests := []struct {
		name   string
		handle http.HandlerFunc
		want   answer
	}{
		{"well", func(http.ResponseWriter, *http.Request) {}, answerGood},
		{"no such route", http.NotFound, answerGood},
		{"wrong key", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }, answerGood},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		}, answerGood},
		{"starting", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, answerGone},
		{"route not turned on", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(501) }, answerGood},
		{"error", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, answerFailed},
		{"reset", func(w http.ResponseWriter, _ *http.Request) { reset(w) }, answerGone},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, s := socketAgent(t, tt.handle)
			_, err := a.get(t.Context(), "/health", 100)
			if got := answerOf(err); got != tt.want {
				t.Errorf("answer %d, want %d: %v", got, tt.want, err)
			}
			s.Close()
			_, err = a.get(t.Context(), "/health", 100)
			if got := answerOf(err); got != answerRefused {
				t.Errorf("answer %d of a closed port: %v", got, err)
			}
		})
	}
}

func TestAnswersAreBounded(t *testing.T) {
	a, _ := socketAgent(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "Bearer secret" {
			t.Errorf("authorization %q", got)
		}
		fmt.Fprint(w, strings.Repeat("x", 100))
	})
	if body, err := a.get(t.Context(), "/x", 100); len(body) != 100 || err != nil {
		t.Errorf("%d bytes, error %v", len(body), err)
	}
	_, err := a.get(t.Context(), "/x", 99)
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v", err)
	}
}

func TestQuestionsArePosted(t *testing.T) {
	a, _ := socketAgent(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" ||
			r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("%s with header %v, error %v", r.Method, r.Header, err)
		}
		if r.URL.Path != "/tokenize" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		w.Write(body)
	})
	body, err := a.post(t.Context(), "/tokenize", []byte(`{"tokens":1}`), 100)
	if string(body) != `{"tokens":1}` || err != nil {
		t.Errorf("answer %q, error %v", body, err)
	}
	if _, err = a.post(t.Context(), "/tokenize", []byte(`"`+strings.Repeat("x", 98)+`"`), 99); err == nil {
		t.Error("an answer without bound is taken")
	}
	if _, err = a.post(t.Context(), "/render", []byte(`{}`), 100); !refused(err) || missing(err) {
		t.Errorf("error %v is not a refusal, or a missing route", err)
	}
}

func TestAgentFollowsARealServer(t *testing.T) {
	f := newFakeEngine()
	a, _ := socketAgent(t, func(w http.ResponseWriter, r *http.Request) {
		body, ok := f.pages[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, body)
	})
	stop := follow(t, a)
	defer stop()
	for deadline := time.After(10 * time.Second); !a.Ready(); {
		select {
		case <-a.Changed():
		case <-deadline:
			t.Fatal("not ready")
		}
	}
	if got := a.Engine().Kind; got != engine.KindVLLM {
		t.Errorf("kind %q", got)
	}
}
