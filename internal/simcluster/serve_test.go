package simcluster

import (
	"bytes"
	"fmt"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/internal/simengine"
)

// volatile is what differs between two answers of one engine to the same request.
var volatile = regexp.MustCompile(`"id":"[^"]*"|"created":\d+|,"prompt_tokens_details":(?:null|{[^}]*})`)

func TestAnswersAreWhatTheEngineSays(t *testing.T) {
	for _, kind := range []string{simengine.KindVLLM, simengine.KindSGLang, simengine.KindTRTLLM} {
		t.Run(kind, func(t *testing.T) {
			config := Config{Agents: 3, Delay: lan, Engine: engineWith(func(_ int, c *simengine.Config) { c.Kind = kind })}
			Test(t, config, func(t *testing.T, c *Cluster) {
				c.Whole(wholeWithin)
				for i := range 3 {
					body := ChatBody("", text(uint64(i), 900))
					through := chat(t, c, i, body)
					straight, err := c.Ask(t.Context(), holder(t, c, through), body)
					if err != nil {
						t.Fatal(err)
					}
					got, want := volatile.ReplaceAll(through.Body, nil), volatile.ReplaceAll(straight.Body, nil)
					if !bytes.Equal(got, want) {
						t.Errorf("through %s:\n%s\nstraight:\n%s", Name(i), got, want)
					}
					if got, want := through.Header.Get("Content-Type"), straight.Header.Get("Content-Type"); got != want {
						t.Errorf("content type %q, want %q", got, want)
					}
				}
			})
		})
	}
}

func TestSecondRequestGoesToTheHolderOfItsSystemMessage(t *testing.T) {
	Test(t, Config{Agents: 3, Delay: lan}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		system := text(1, 20_000)
		first := chat(t, c, 0, ChatBody(system, "What is the first word?"))
		time.Sleep(2 * time.Second) // users think longer than a digest period
		for i := range 3 {
			second := chat(t, c, i, ChatBody(system, fmt.Sprintf("What is word number %d?", i)))
			if second.Engine() != first.Engine() {
				t.Fatalf("through %s: answered by %s (%s), want %s", Name(i), second.Engine(),
					second.Header.Get("X-Kvmesh-Reason"), first.Engine())
			}
			said, had := overlap(t, second), cached(t, second)
			if had < 4000 || float64(abs(said-had)) > 0.05*float64(had) {
				t.Errorf("through %s: overlap %d tokens, engine had %d", Name(i), said, had)
			}
			time.Sleep(time.Second)
		}
	})
}

func abs(n int) int { return max(n, -n) }

func TestAgentWhoseEngineIsDownServesThroughOthers(t *testing.T) {
	Test(t, Config{Agents: 3, IngressOnly: 1, Delay: lan}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		c.StopEngine(0)
		for n := range 10 { // at once: nobody has noticed yet
			if a := chat(t, c, n%4, ChatBody("", text(uint64(n), 600))); a.Engine() == EngineID(0) {
				t.Fatalf("answered by an engine that is stopped")
			}
		}
		c.Await("agent0 tells that its engine is down", 3*time.Second, func() bool {
			e, ok := c.EngineOf(1, 0)
			return ok && e.State == "down"
		})
		for path, want := range map[string]int{"/kvmesh/readyz": 200, "/kvmesh/readyz?engine=1": 503} {
			if status, body, err := c.Get(t.Context(), 0, path); err != nil || status != want {
				t.Errorf("GET %s = %d %q, %v, want %d", path, status, body, err, want)
			}
		}
		c.StartEngine(0)
		c.Whole(5 * time.Second)
		c.Quiet(time.Second)
	})
}

func TestMeshWithoutEnginesAnswersUnavailable(t *testing.T) {
	Test(t, Config{IngressOnly: 1}, func(t *testing.T, c *Cluster) {
		time.Sleep(5 * time.Second)
		a, err := c.Chat(t.Context(), 0, ChatBody("", "hello"))
		if err != nil {
			t.Fatal(err)
		}
		if a.Status != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
			t.Errorf("answer %d %s, Retry-After %q", a.Status, a.Body, a.Header.Get("Retry-After"))
		}
		if status, body, err := c.Get(t.Context(), 0, "/kvmesh/readyz"); err != nil || status != http.StatusServiceUnavailable {
			t.Errorf("readyz = %d %q, %v", status, body, err)
		}
	})
}

func TestMeshWhoseEnginesAreDownAnswersUnavailable(t *testing.T) {
	Test(t, Config{Agents: 2, Delay: lan}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		c.StopEngine(0)
		c.StopEngine(1)
		for range 5 {
			for i := range 2 {
				a, err := c.Chat(t.Context(), i, ChatBody("", "hello"))
				if err != nil {
					t.Fatal(err)
				}
				if a.Status != http.StatusServiceUnavailable && a.Status != http.StatusBadGateway {
					t.Errorf("answer %d %s", a.Status, a.Body)
				}
			}
			time.Sleep(time.Second)
		}
		a, err := c.Chat(t.Context(), 0, ChatBody("", "hello"))
		if err != nil || a.Status != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
			t.Errorf("answer after the engines are known to be down: %+v, %v", a, err)
		}
		c.StartEngine(1)
		c.Whole(3 * time.Second)
		chat(t, c, 0, ChatBody("", "hello"))
	})
}

func TestConnectionsOutliveTheEnginesKeepAlive(t *testing.T) {
	Test(t, Config{Agents: 2, Delay: lan}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		for ms := 4900; ms <= 5100; ms += 10 {
			for i := range 2 {
				chat(t, c, i, ChatBody("", text(uint64(ms+i), 100)))
			}
			time.Sleep(time.Duration(ms) * time.Millisecond)
		}
	})
}
