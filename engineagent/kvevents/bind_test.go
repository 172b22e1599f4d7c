package kvevents

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// listener is our side, to which publishers connect. It fails as often as it is told before it listens.
type listener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
	fails int
}

func newListener() *listener {
	return &listener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *listener) listen(_ context.Context, network, address string) (net.Listener, error) {
	if l.fails > 0 {
		l.fails--
		return nil, errors.New("address already in use")
	}
	if network != "tcp" || address != ":5557" {
		return nil, errors.New("listening at " + network + " " + address)
	}
	return l, nil
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *listener) Addr() net.Addr { return nil }

// connect is a publisher's connection to us. It returns the publisher's end.
func (l *listener) connect(t *testing.T, p *publisher) net.Conn {
	t.Helper()
	ours, theirs := net.Pipe()
	select {
	case l.conns <- ours:
	case <-time.After(10 * time.Second):
		t.Fatal("nobody listens")
	}
	if p != nil {
		go p.serve(theirs, pubAddress)
		synctest.Wait()
	}
	return theirs
}

// bound is a stream whose publisher connects to us.
func bound(t *testing.T, p *publisher, l *listener, replay bool) (*stream, func()) {
	t.Helper()
	s := newStream(t, p, replay)
	s.source.Endpoint, s.source.Bind = "tcp://*:5557", true
	s.listen = l.listen
	return s, s.begin()
}

func (s *stream) want(t *testing.T, want string) {
	t.Helper()
	if got := s.run("show"); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestConnectingPublisherIsFollowedOverItsConnections(t *testing.T) {
	for _, replay := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			p, l := newPublisher(t), newListener()
			l.fails = 3
			s, end := bound(t, p, l, replay)
			defer end()
			l.connect(t, p)
			s.run("send 4")
			s.run("cut 1s")
			s.run("wait 1s")
			l.connect(t, p)
			s.run("wait 100ms")
			if replay {
				s.want(t, "3 of 3, asks 2")
			} else {
				s.want(t, "0 of 3\n      lost 0: the connection was lost, and nothing proves that no KV events were")
			}
			s.run("restart")
			s.run("send 2")
			l.connect(t, p)
			s.run("wait 100ms")
			if replay {
				s.want(t, "2 of 2, replayed 2, asks 2\n      restarted 0: the connection was lost, and the engine's last KV events are others")
			} else {
				s.want(t, "0 of 2")
				s.run("send 1")
				s.want(t, "1 of 2\n      restarted 0: the numbers of its KV events began again")
			}
		})
	}
}

func TestNewConnectionReplacesADeadOneWhenItSpeaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, l := newPublisher(t), newListener()
		s, end := bound(t, p, l, false)
		defer end()
		l.connect(t, p)
		s.run("send 4")
		q := newPublisher(t) // p's host is gone, and its connection hangs
		q.life, s.publisher = 1, q
		l.connect(t, q)
		if got, want := s.run("peek"), "0 of 0, wrong 3"; got != want {
			t.Errorf("before anything shows it: %s, want %s", got, want)
		}
		s.run("send 1")
		s.want(t, "1 of 1\n      lost 0: the connection was lost, and nothing proves that no KV events were\n"+
			"      restarted 0: the numbers of its KV events began again")
		synctest.Wait()
		if len(p.servers) != 0 {
			t.Error("the dead connection is kept")
		}
	})
}

func TestHeldBatchesStayWithTheirConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, l := newPublisher(t), newListener()
		s, end := bound(t, p, l, false)
		defer end()
		l.connect(t, p)
		s.run("send 2")
		s.run("lose 1")
		s.run("send 1") // number 3 is held
		q := newPublisher(t)
		q.life, q.next, s.publisher = 1, 2, q
		l.connect(t, q)
		s.run("send 1") // number 2, by chance
		s.run("wait 1s")
		s.want(t, "1 of 1\n      lost 0: the connection was lost, and nothing proves that no KV events were")
	})
}

func TestSecondConnectionTakesOverWhenTheFirstEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, l := newPublisher(t), newListener()
		s, end := bound(t, p, l, false)
		defer end()
		first := l.connect(t, p)
		s.run("send 4")
		l.connect(t, p)
		s.want(t, "3 of 3")
		first.Close()
		s.want(t, "0 of 3\n      lost 0: the connection was lost, and nothing proves that no KV events were")
		s.run("send 1")
		s.want(t, "1 of 4")
	})
}

func TestSilentStrangerChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, l := newPublisher(t), newListener()
		s, end := bound(t, p, l, false)
		defer end()
		l.connect(t, p)
		s.run("send 4")
		stranger := newPublisher(t)
		l.connect(t, stranger)
		defer stranger.cut(0)
		s.run("send 1")
		s.run("wait 30s")
		s.run("send 1")
		s.want(t, "4 of 4")
	})
}

func TestConnectionsAtOnceAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, l := newPublisher(t), newListener()
		_, end := bound(t, p, l, false)
		defer end()
		var conns []net.Conn
		for range maxLinks {
			conns = append(conns, l.connect(t, nil))
		}
		surplus := l.connect(t, nil)
		if _, err := surplus.Read(make([]byte, 1)); err == nil {
			t.Error("one more than the bound was served")
		}
		conns[0].Close()
		synctest.Wait()
		l.connect(t, p)
		if len(p.subs) != 1 {
			t.Error("no place became free")
		}
	})
}

func TestTwoEnginesOnOneSocketAreNeverMixed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, q, l := newPublisher(t), newPublisher(t), newListener()
		q.life = 9
		s, end := bound(t, p, l, false)
		defer end()
		defer q.cut(0)
		l.connect(t, p)
		s.run("send 5")
		l.connect(t, q)
		for range 5 {
			q.store(delivered)
		}
		synctest.Wait()
		for _, blocks := range s.byRank() {
			for b := range blocks {
				if !q.holds[b] {
					t.Errorf("block %#x of the first engine is believed of the second", b)
				}
			}
		}
		if why := strings.Join(s.log, "\n"); !strings.Contains(why, "lost 0") {
			t.Errorf("the first engine's blocks are not given up: %s", why)
		}
	})
}
