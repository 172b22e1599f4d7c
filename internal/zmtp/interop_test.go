package zmtp

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/google/go-cmp/cmp"
)

// These are the tests on real sockets: another implementation of ZMTP, of version 3.0, is on the other side.

func quiet() zmq4.Option {
	return zmq4.WithLogger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))
}

func loopbacks(t *testing.T) []string {
	t.Helper()
	addresses := []string{"127.0.0.1:0"}
	if ln, err := net.Listen("tcp", "[::1]:0"); err == nil {
		ln.Close()
		return append(addresses, "[::1]:0")
	}
	t.Log("this machine has no IPv6")
	return addresses
}

// socket is what the other implementation binds or connects.
type socket interface {
	Listen(endpoint string) error
	Dial(endpoint string) error
	Addr() net.Addr
	Close() error
}

// connect brings s and a Conn of ours together, through a listener on either side.
func connect(t *testing.T, s socket, address string, weBind bool, o Options) *Conn {
	t.Helper()
	t.Cleanup(func() { s.Close() })
	var conn net.Conn
	var err error
	if weBind {
		conn, err = acceptFrom(t, s, address)
	} else {
		conn, err = dialTo(t, s, address)
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(conn, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func acceptFrom(t *testing.T, s socket, address string) (net.Conn, error) {
	ln, err := Listen(t.Context(), "tcp", address)
	if err != nil {
		return nil, err
	}
	defer ln.Close()
	dialed := make(chan error, 1)
	go func() { dialed <- s.Dial("tcp://" + ln.Addr().String()) }()
	t.Cleanup(func() {
		if err := <-dialed; err != nil {
			t.Errorf("other side connects: %v", err)
		}
	})
	return ln.Accept()
}

func dialTo(t *testing.T, s socket, address string) (net.Conn, error) {
	if err := s.Listen("tcp://" + address); err != nil {
		return nil, err
	}
	network, addr, err := Endpoint("tcp://" + s.Addr().String())
	if err != nil {
		return nil, err
	}
	return Dial(t.Context(), network, addr)
}

func text(frames [][]byte) string {
	var parts []string
	for _, f := range frames {
		parts = append(parts, string(f))
	}
	return strings.Join(parts, "|")
}

func eachWay(t *testing.T, test func(t *testing.T, address string, weBind bool)) {
	for _, address := range loopbacks(t) {
		for name, weBind := range map[string]bool{"we dial": false, "we bind": true} {
			t.Run(name+" "+address, func(t *testing.T) { test(t, address, weBind) })
		}
	}
}

func TestSubscribesToAnotherImplementation(t *testing.T) {
	eachWay(t, func(t *testing.T, address string, weBind bool) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		pub := zmq4.NewPub(ctx, quiet())
		c := connect(t, pub, address, weBind, Options{Socket: SUB, Topics: []string{"kv@"}})
		go func() { // the subscription arrives some time
			for ctx.Err() == nil {
				pub.Send(zmq4.NewMsgFrom([]byte("load"), []byte("not wanted")))
				pub.SendMulti(zmq4.NewMsgFrom([]byte("kv@a"), []byte("12345678"), []byte("payload")))
				time.Sleep(time.Millisecond)
			}
		}()
		for range 3 {
			frames, err := c.Receive()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff("kv@a|12345678|payload", text(frames)); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		}
	})
}

func TestAsksAnotherImplementation(t *testing.T) {
	eachWay(t, func(t *testing.T, address string, weBind bool) {
		router := zmq4.NewRouter(context.Background(), quiet(), zmq4.WithID(zmq4.SocketIdentity("r")))
		c := connect(t, router, address, weBind, Options{Socket: DEALER})
		if err := c.Send(nil, []byte("12345678")); err != nil {
			t.Fatal(err)
		}
		asked, err := router.Recv()
		if err != nil || len(asked.Frames) != 3 || text(asked.Frames[1:]) != "|12345678" {
			t.Fatalf("asked %q and %v", asked.Frames, err)
		}
		large := strings.Repeat("x", 100_000)
		answer := zmq4.NewMsgFrom(asked.Frames[0], nil, []byte("seq"), []byte(large))
		if err := router.SendMulti(answer); err != nil {
			t.Fatal(err)
		}
		frames, err := c.Receive()
		if err != nil || text(frames) != "|seq|"+large {
			t.Errorf("answer of %d frames and %v", len(frames), err)
		}
	})
}

func TestAnotherImplementationsSocketMayNotFit(t *testing.T) {
	pull := zmq4.NewPull(context.Background(), quiet())
	defer pull.Close()
	conn, err := dialTo(t, pull, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(conn, Options{Socket: SUB}); err == nil || !strings.Contains(err.Error(), `"PULL" socket`) {
		t.Errorf("Open = %v", err)
	}
}
