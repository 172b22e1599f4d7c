package kvevents

import (
	"context"
	"fmt"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvmesh/kvmesh/internal/simengine"
)

// pipes is a listener in memory for any number of connections.
type pipes struct{ *listener }

func newPipes() pipes { return pipes{newListener()} }

func (p pipes) dial(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.done:
		return nil, errRefused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// simulated is a simulated engine, whose sockets were written apart from ours, and a follower of it.
type simulated struct {
	*simengine.Engine
	t     *testing.T
	model *model
	asked int // prompts so far
}

func simulate(t *testing.T, kind string, replayTopic bool) (*simulated, func()) {
	t.Helper()
	pub, replay, web := newPipes(), newPipes(), newPipes()
	cfg := simengine.DefaultConfig()
	cfg.Kind, cfg.BlockTokens, cfg.CapacityTokens, cfg.Seed = kind, 16, 16*20, 1
	cfg.KVEvents.Endpoint, cfg.KVEvents.ReplayEndpoint = "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558"
	cfg.KVEvents.Topic, cfg.KVEvents.ReplayTopic = "kv@e@m", replayTopic
	cfg.KVEvents.Listen = func(_, address string) (net.Listener, error) {
		return map[string]pipes{"127.0.0.1:5557": pub, "127.0.0.1:5558": replay}[address], nil
	}
	e, err := simengine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := &simulated{Engine: e, t: t, model: newModel()}
	f := NewFollower(Source{Endpoint: pubEndpoint, Replay: "tcp://" + replayAddress, Topic: "kv@"}, Options{
		Dial: func(ctx context.Context, _, address string) (net.Conn, error) {
			return map[string]pipes{pubAddress: pub, replayAddress: replay}[address].dial(ctx)
		},
	}, s.model)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- e.Serve(ctx, web) }()
	synctest.Wait()
	go func() { done <- f.Run(ctx) }()
	synctest.Wait()
	return s, func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
}

// ask sends prompts that the engine has not seen, of three blocks each.
func (s *simulated) ask(n int) {
	s.t.Helper()
	for range n {
		s.asked++
		ids := make([]string, 49)
		for i := range ids {
			ids[i] = fmt.Sprint(1000*s.asked + i)
		}
		body := fmt.Sprintf(`{"model":"sim-model","max_tokens":1,"prompt":[%s]}`, strings.Join(ids, ","))
		w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "/v1/completions", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		s.Handler().ServeHTTP(w, r)
		if w.Code != 200 {
			s.t.Fatalf("ask: %d %s", w.Code, w.Body)
		}
	}
}

func TestSimulatedEngineIsFollowedThroughItsFaults(t *testing.T) {
	for _, kind := range []string{simengine.KindVLLM, simengine.KindSGLang} {
		for _, topic := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) { testSimulated(t, kind, topic) })
		}
	}
}

func testSimulated(t *testing.T, kind string, replayTopic bool) {
	s, end := simulate(t, kind, replayTopic)
	defer end()
	for _, step := range []struct {
		name string
		do   func()
		all  bool // is believed
	}{
		{"nothing", func() {}, true},
		{"lost batches", func() { s.LoseBatches(3, false); s.ask(4) }, true},
		{"a repeated batch", func() { s.ask(1); s.RepeatBatch() }, true},
		{"swapped batches", func() { s.SwapBatches() }, true},
		{"a cut", func() { s.CutEvents(10 * time.Second); s.ask(3); time.Sleep(10 * time.Second) }, true},
		{"a restart", func() { s.Restart() }, true},
		{"a restart while the connection is cut", func() {
			s.CutEvents(3 * time.Second)
			s.Restart()
			s.ask(2)
			time.Sleep(3 * time.Second)
		}, true},
		{"batches lost for good", func() { s.LoseBatches(1, true); s.ask(2) }, false},
		{"a gap after replay forgot", func() { s.LoseBatches(1, false); s.ask(1); s.ForgetReplay() }, false},
		{"a restart after that", func() { s.Restart() }, true},
	} {
		step.do()
		s.ask(9)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		believed := len(s.model.byRank()[0])
		switch held := s.Stats().ResidentBlocks; {
		case believed > held, step.all && believed < held, believed == 0:
			t.Errorf("%s, topic %v, after %s: %d blocks are believed of %d", kind, replayTopic, step.name, believed, held)
		}
	}
}
