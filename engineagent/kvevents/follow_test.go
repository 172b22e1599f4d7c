package kvevents

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSourceThatCannotBeFollowed(t *testing.T) {
	for _, s := range []Source{
		{Endpoint: "udp://engine:5557"},
		{Endpoint: "tcp://engine:5557", Replay: "engine:5558"},
		{Endpoint: "tcp://engine", Bind: true},
	} {
		if err := NewFollower(s, Options{}, newModel()).Run(t.Context()); err == nil {
			t.Errorf("Run of %+v ended without an error", s)
		}
	}
}

func TestBatchesKeepTheirRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStream(t, newPublisher(t), false)
		defer s.begin()()
		s.publish(delivered, encodeBatch(3, 0, 100))
		s.publish(delivered, encodeBatch(3, 0, 101))
		synctest.Wait()
		noRank := encodeBatch(0, 0, 102)
		noRank[len(noRank)-1] = 0xc0 // nil
		s.publish(delivered, noRank)
		synctest.Wait()
		want := map[int]map[uint64]bool{3: {100: true, 101: true}, 7: {102: true}}
		if diff := cmp.Diff(want, s.byRank()); diff != "" {
			t.Errorf("held by rank (-want +got):\n%s", diff)
		}
		s.publish(delivered, []byte("garbage"))
		synctest.Wait()
		want = map[int]map[uint64]bool{}
		if diff := cmp.Diff(want, s.byRank()); diff != "" {
			t.Errorf("held after a batch that cannot be read (-want +got):\n%s", diff)
		}
	})
}

func TestRanksOfAnEndedProcessAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStream(t, newPublisher(t), true)
		defer s.begin()()
		s.publish(delivered, encodeBatch(3, 0, 100))
		synctest.Wait()
		s.run("restart")
		s.publish(delivered, encodeBatch(4, 0, 200))
		s.run("wait 1s")
		s.publish(delivered, []byte("garbage"))
		synctest.Wait()
		want := []string{
			"restarted 3: the connection was lost, and the engine's last KV events are others",
			"lost 4: a batch of KV events could not be read",
		}
		if diff := cmp.Diff(want, s.log); diff != "" {
			t.Errorf("what was lost (-want +got):\n%s", diff)
		}
	})
}

func TestParse(t *testing.T) {
	seq := []byte("\x00\x00\x00\x00\x00\x00\x01\x02")
	tests := []struct {
		name string
		give [][]byte
		ok   bool
	}{
		{"three frames", [][]byte{[]byte("kv@"), seq, []byte("x")}, true},
		{"five frames of a replay", [][]byte{nil, nil, []byte("kv@"), seq, []byte("x")}, true},
		{"two frames", [][]byte{seq, []byte("x")}, true},
		{"one frame", [][]byte{[]byte("x")}, false},
		{"no frames", nil, false},
		{"a short number", [][]byte{seq[1:], []byte("x")}, false},
		{"no payload", [][]byte{seq, nil}, false},
		{"the number that ends a replay", [][]byte{replayEnd, []byte("x")}, false},
	}
	for _, tt := range tests {
		m, ok := parse(tt.give)
		if ok != tt.ok || ok && (m.seq != 0x102 || string(m.payload) != "x") {
			t.Errorf("%s: parse = %d %q, %v", tt.name, m.seq, m.payload, ok)
		}
	}
}

func TestBacklogIsBoundedByBytesThatAreGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStream(t, newPublisher(t), false)
		s.pause = time.Second
		defer s.begin()()
		s.run("send 1") // keeps the follower busy
		for range 10 {
			s.publish(delivered, make([]byte, 8<<20)) // which cannot be read
		}
		synctest.Wait()
		if free := s.inbox.bytes.TryAcquire(1); free {
			t.Errorf("more than %d bytes may wait", backlogBytes)
		}
		s.run("wait 1m")
		if n := s.Stats().Broken; n != 10 {
			t.Errorf("%d of 10 batches arrived", n)
		}
	})
}

func TestRanksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStream(t, newPublisher(t), false)
		defer s.begin()()
		for rank := range maxRanks + 5 {
			s.publish(delivered, encodeBatch(rank, 0, 100))
		}
		synctest.Wait()
		if n := s.Stats().Broken; n != 5 {
			t.Errorf("%d batches are refused, want those of 5 ranks", n)
		}
	})
}

func TestStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := newStream(t, newPublisher(t), true)
		s.run("send 3")
		end := s.begin()
		s.run("lose 1")
		s.run("send 1")
		s.run("wait 1s")
		s.publish(delivered, wrapBatch(0, []byte{0xc0})) // an event of an unknown form
		s.run("wait 1s")
		want := Stats{
			Connected: true, Since: start, Next: 6, Batches: 6, Events: 6, Replayed: 5, Gaps: 1, Skipped: 1,
		}
		if diff := cmp.Diff(want, s.Stats()); diff != "" {
			t.Errorf("stats (-want +got):\n%s", diff)
		}
		s.run("cut 10s")
		if got := s.Stats(); got.Connected || got.Since != start.Add(2*time.Second) {
			t.Errorf("after a cut connected is %v since %v", got.Connected, got.Since)
		}
		end()
	})
}

// answering is a Follower whose replay socket is served by a function, once for each connection.
func answering(t *testing.T, p *publisher, serve func(s *server)) (*stream, func()) {
	t.Helper()
	s := newStream(t, p, true)
	s.source.Replay = "tcp://other:5558"
	s.reroute = func(address string) (net.Conn, bool) {
		if address != "other:5558" {
			return nil, false
		}
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			if srv := newServer(theirs); srv.greet(1, "ROUTER") {
				srv.frame()
				srv.frame()
				serve(srv)
			}
		}()
		return ours, true
	}
	return s, s.begin()
}

// TestEvilReplays: whatever a replay socket answers, the live stream is followed and nothing wrong is believed.
func TestEvilReplays(t *testing.T) {
	seq := func(n byte) []byte { return []byte{0, 0, 0, 0, 0, 0, 0, n} }
	foreign := func(n byte) []byte { return messageOf(nil, seq(n), encodeBatch(0, 0, 1<<40+uint64(n))) }
	tests := []struct {
		name  string
		serve func(s *server)
	}{
		{"says nothing", func(s *server) { s.frame() }},
		{"hangs up", func(*server) {}},
		{"sends what is no batch", func(s *server) { s.Write(messageOf([]byte("hello"))) }},
		{"sends an empty batch", func(s *server) { s.Write(messageOf(nil, seq(0), nil)) }},
		{"sends a huge frame", func(s *server) { s.Write([]byte{2, 0x7f, 0, 0, 0, 0, 0, 0, 0}) }},
		{"ends at once", func(s *server) { s.Write(messageOf(nil, replayEnd, nil)) }},
		{"sends the highest number", func(s *server) { s.Write(messageOf(nil, replayEnd, []byte("x"))) }},
		{"is of another publisher", func(s *server) {
			for n := range byte(9) {
				s.Write(foreign(n))
			}
			s.Write(messageOf(nil, replayEnd, nil))
		}},
		{"is of another publisher that is ahead", func(s *server) {
			s.Write(foreign(200))
			s.Write(messageOf(nil, replayEnd, nil))
		}},
		{"counts backwards", func(s *server) {
			for n := byte(9); n > 0; n-- {
				s.Write(foreign(n))
			}
			s.Write(messageOf(nil, replayEnd, nil))
		}},
		{"never ends", func(s *server) {
			for n := uint64(1000); ; n++ {
				if _, err := s.Write(messageOf(nil, seq(byte(n)), encodeBatch(0, 0, 1<<40+n))); err != nil {
					return
				}
				time.Sleep(500 * time.Millisecond)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, end := answering(t, newPublisher(t), tt.serve)
				defer end()
				s.run("wait 40s")
				s.run("send 3")
				s.run("lose 2")
				s.run("send 1")
				s.run("wait 40s")
				s.run("send 12")
				s.run("wait 2s")
				s.run("show")
				if s.right() < 8 {
					t.Errorf("%d blocks are believed, want those of the last 12 batches", s.right())
				}
			})
		})
	}
}

// TestEvilPublishers: they are left alone for longer and longer.
func TestEvilPublishers(t *testing.T) {
	tests := []struct{ name, says, want string }{
		{"not ZMTP", strings.Repeat("HTTP/1.1 400 Bad Request ", 5), "not a ZMTP 3 peer"},
		{"a huge frame", "\x02\x7f\x00\x00\x00\x00\x00\x00\x00", "too large"},
		{"endless frames", strings.Repeat("\x01\x00", 17), "too large"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStream(t, newPublisher(t), false)
				var dials atomic.Int64
				s.reroute = func(string) (net.Conn, bool) {
					dials.Add(1)
					ours, theirs := net.Pipe()
					go func() {
						defer theirs.Close()
						srv := newServer(theirs)
						if !strings.HasPrefix(tt.says, "HTTP") && !srv.greet(1, "PUB") {
							return
						}
						go theirs.Write([]byte(tt.says))
						for {
							if _, _, err := srv.frame(); err != nil {
								return
							}
						}
					}()
					return ours, true
				}
				end := s.begin()
				time.Sleep(time.Hour)
				if n := dials.Load(); n < 600 || n > 1100 {
					t.Errorf("%d attempts in an hour, want one every 5 s after a while", n)
				}
				if log := s.logged(); !strings.Contains(log, tt.want) || strings.Count(log, "\n") > 3 {
					t.Errorf("log, want %q once:\n%s", tt.want, log)
				}
				end()
			})
		})
	}
}

func TestTroubleEndsWithAConnectionThatLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStream(t, newPublisher(t), false)
		defer s.begin()()
		s.run("cut 1m")
		s.run("wait 63s")
		s.want(t, "0 of 0")
		s.run("wait 6s")
		s.run("cut 50ms")
		s.run("wait 99ms")
		s.want(t, "0 of 0, not connected")
		s.run("wait 1ms")
		s.want(t, "0 of 0")
	})
}

func TestRunEndsWhereverItIs(t *testing.T) {
	for _, script := range []string{
		"", "cut 1h", "stall", "send 3\nlose 1\nsend 1", "send 3\nmute\nlose 1\nsend 1\nwait 200ms", "mute\ncut 1s\nwait 1500ms",
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newStream(t, newPublisher(t), true)
			end := s.begin()
			for line := range strings.Lines(script) {
				s.run(strings.TrimSpace(line))
			}
			lost, start := s.Stats().Lost, time.Now()
			end()
			if took := time.Since(start); took != 0 {
				t.Errorf("after %q Run took %v to end", script, took)
			}
			if s.Stats().Lost != lost || s.Stats().Connected {
				t.Errorf("after %q the end made a difference: %+v", script, s.Stats())
			}
		})
	}
}

func TestSlowSinkLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStream(t, newPublisher(t), false)
		s.pause = 10 * time.Millisecond
		defer s.begin()()
		s.run("send 5000") // more than the backlog
		s.run("wait 2m")
		s.want(t, "3334 of 3334")
	})
}

func TestRunEndsInTheMiddleOfAReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStream(t, newPublisher(t), true)
		s.run("send 50")
		s.pause = time.Second
		end := s.begin()
		time.Sleep(4500 * time.Millisecond)
		start := time.Now()
		end()
		if took := time.Since(start); took > time.Second || s.Stats().Batches != 5 {
			t.Errorf("ended after %v and %d batches, want after the 5th", took, s.Stats().Batches)
		}
	})
}

// withLargeReplay is a stream whose publisher remembers more than is read ahead, and whose sink is slow.
func withLargeReplay(t *testing.T) (*stream, func()) {
	t.Helper()
	p := newPublisher(t)
	p.kept = []stored{{0, encodeBatch(0, 0, 100)}}
	for n := range uint64(10) {
		p.kept = append(p.kept, stored{n + 1, append(encodeBatch(0, 0, 101+n), make([]byte, 8<<20)...)})
	}
	p.next = 11
	s := newStream(t, p, true)
	s.pause = 2 * time.Second
	return s, s.begin()
}

func TestReplayThatIsReadSlowlyIsNotSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, end := withLargeReplay(t)
		defer end()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := s.Stats(); got.Replayed != 11 || s.replays > 2 {
			t.Errorf("%d of 11 batches replayed in %d answers", got.Replayed, s.replays)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		_, end := withLargeReplay(t)
		time.Sleep(time.Second)
		end() // does not hang
	})
}

func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		half := message{payload: make([]byte, backlogBytes/2)}
		pushed := make(chan bool, 3)
		go func() {
			for range 3 {
				pushed <- q.push(half)
			}
		}()
		synctest.Wait()
		if len(pushed) != 2 {
			t.Errorf("%d messages of half the bound are in, want 2", len(pushed))
		}
		if m, err := q.pop(); err != nil || len(m.payload) != len(half.payload) {
			t.Errorf("pop = %d bytes, %v", len(m.payload), err)
		}
		synctest.Wait()
		if len(pushed) != 3 {
			t.Error("room was made, and nothing came in")
		}
		go func() { pushed <- q.push(half) }()
		synctest.Wait()
		q.abandon()
		for i, want := range []bool{true, true, true, false} {
			if got := <-pushed; got != want {
				t.Errorf("push %d = %v, want %v", i, got, want)
			}
		}
		q.end(errReplayEnd)
		for range 3 {
			q.pop()
		}
		if _, err := q.pop(); !errors.Is(err, errReplayEnd) {
			t.Errorf("after the last message: %v", err)
		}
	})
}

func TestContextIsPassedToTheNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dialed := make(chan error, 1)
		o := Options{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if network != "unix" || address != "/run/kv.sock" {
				dialed <- errors.New("dialing " + network + " " + address)
			}
			<-ctx.Done()
			dialed <- ctx.Err()
			return nil, ctx.Err()
		}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- NewFollower(Source{Endpoint: "ipc:///run/kv.sock"}, o, newModel()).Run(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
		if err := <-dialed; !errors.Is(err, context.Canceled) {
			t.Errorf("dial ended with %v", err)
		}
	})
}
