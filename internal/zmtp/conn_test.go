package zmtp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// peer is the other side of a connection in memory, written out byte by byte.
type peer struct {
	t    *testing.T
	conn net.Conn
}

func greeting(minor byte) []byte {
	g := make([]byte, 64)
	g[0], g[9], g[10], g[11] = 0xff, 0x7f, 3, minor
	copy(g[12:], "NULL")
	return g
}

func readyAs(socket string) []byte {
	return appendCommand(nil, "READY", appendProperty(appendProperty(nil, "Identity", ""), "socket-TYPE", socket))
}

// write sends bytes without waiting for them to be read.
func (p *peer) write(parts ...[]byte) {
	go p.conn.Write(bytes.Join(parts, nil))
	synctest.Wait()
}

// read takes what the other side wrote by now.
func (p *peer) read() string {
	p.conn.SetReadDeadline(time.Now().Add(time.Nanosecond))
	b, err := io.ReadAll(p.conn)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Errorf("read what was written: %v", err)
	}
	return string(b)
}

// opened is one of our connections to a peer that has greeted; the test runs in a bubble.
func opened(t *testing.T, o Options, minor byte) (*Conn, *peer) {
	t.Helper()
	ours, theirs := net.Pipe()
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	p := &peer{t, theirs}
	type result struct {
		c   *Conn
		err error
	}
	done := make(chan result)
	go func() {
		c, err := Open(ours, o)
		done <- result{c, err}
	}()
	socket := map[string]string{SUB: "XPUB", DEALER: "ROUTER"}[o.Socket]
	go theirs.Write(append(greeting(minor), readyAs(socket)...))
	synctest.Wait()
	want := append(greeting(1), appendCommand(nil, "READY", appendProperty(nil, "Socket-Type", o.Socket))...)
	if o.Socket == DEALER {
		want = append(greeting(1), appendCommand(nil, "READY",
			appendProperty(appendProperty(nil, "Socket-Type", DEALER), "Identity", ""))...)
	}
	subscribed := p.read()
	rest, ok := strings.CutPrefix(subscribed, string(want))
	if !ok {
		t.Fatalf("we greet with %q, want %q", subscribed, want)
	}
	for i, topic := range o.Topics {
		form := "\x00" + string(rune(len(topic)+1)) + "\x01" + topic
		if minor > 0 {
			form = "\x04" + string(rune(len(topic)+10)) + "\x09SUBSCRIBE" + topic
		}
		if rest, ok = strings.CutPrefix(rest, form); !ok {
			t.Errorf("subscription %d to ZMTP 3.%d is %q, want %q", i, minor, rest, form)
		}
	}
	r := <-done
	if r.err != nil || rest != "" {
		t.Fatalf("open: %v, and %q is left over", r.err, rest)
	}
	return r.c, p
}

func TestSubscriptionsTakeTheFormOfThePeersVersion(t *testing.T) {
	for _, minor := range []byte{0, 1, 7} {
		synctest.Test(t, func(t *testing.T) { opened(t, Options{Socket: SUB, Topics: []string{"", "kv@a"}}, minor) })
	}
}

func TestHandshakeRefuses(t *testing.T) {
	with := func(i int, b byte) []byte { g := greeting(1); g[i] = b; return g }
	secure := greeting(1)
	copy(secure[12:], "CURVE")
	tests := []struct {
		name string
		give [][]byte
		want string
	}{
		{"another protocol", [][]byte{[]byte(strings.Repeat("HTTP/1.1 400 Bad Request", 3))}, "greets with"},
		{"wrong signature", [][]byte{with(0, 0xfe)}, "greets with"},
		{"wrong end of signature", [][]byte{with(9, 0)}, "greets with"},
		{"version 2", [][]byte{with(10, 2)}, "greets with"},
		{"security", [][]byte{secure}, `security is "CURVE"`},
		{"longer name of security", [][]byte{with(16, 'L')}, `security is "NULLL"`},
		{"nothing", nil, "EOF"},
		{"half a greeting", [][]byte{greeting(1)[:30]}, "EOF"},
		{"no READY", [][]byte{greeting(1)}, "EOF"},
		{"half a READY", [][]byte{greeting(1), readyAs("PUB")[:20]}, "EOF"},
		{"a message first", [][]byte{greeting(1), {0, 1, 'x'}}, "before READY"},
		{"another command first", [][]byte{greeting(1), appendCommand(nil, "PING", noTTL)}, `"PING" comes before READY`},
		{"error", [][]byte{greeting(1), appendCommand(nil, "ERROR", []byte("\x02no"))}, `it says "no"`},
		{"empty error", [][]byte{greeting(1), appendCommand(nil, "ERROR")}, `it says ""`},
		{"another socket", [][]byte{greeting(1), readyAs("PULL")}, `it is a "PULL" socket`},
		{"no socket", [][]byte{greeting(1), appendCommand(nil, "READY")}, `it is a "" socket`},
		{"a command of no bytes", [][]byte{greeting(1), {4, 0}}, "without a name"},
		{"a name that ends outside", [][]byte{greeting(1), {4, 2, 9, 'R'}}, "without a name"},
		{"a property that ends in its name", [][]byte{greeting(1), appendCommand(nil, "READY", []byte("\x09Soc"))}, "READY is broken"},
		{"a property without its size", [][]byte{greeting(1), appendCommand(nil, "READY", []byte("\x03Soc\x00\x00"))}, "READY is broken"},
		{
			"a property that ends outside",
			[][]byte{greeting(1), appendCommand(nil, "READY", []byte("\x03Soc\xff\xff\xff\xff"))},
			"READY is broken",
		},
		{"a huge READY", [][]byte{greeting(1), {6, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}, "too large"},
		{"unknown flags", [][]byte{greeting(1), {0xff, 1, 1}}, "flags 0xff"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ours := &canned{Reader: bytes.NewReader(bytes.Join(tt.give, nil))}
			c, err := Open(ours, Options{Socket: SUB})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("Open = %v, %v, want an error with %q", c, err, tt.want)
			}
			if !ours.closed {
				t.Error("the connection is left open")
			}
		})
	}
}

func TestDealerTalksToThreeKindsOfSocket(t *testing.T) {
	for _, socket := range []string{"ROUTER", "DEALER", "REP", "PUB"} {
		c := &Conn{o: Options{Socket: DEALER}}
		body := appendProperty(nil, "Socket-Type", socket)
		if err := c.checkReady("READY", body); (err == nil) != (socket != "PUB") {
			t.Errorf("DEALER with %s: %v", socket, err)
		}
	}
}

func TestPeerThatNeverGreetsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		start := time.Now()
		_, err := Open(ours, Options{Socket: SUB, Handshake: 3 * time.Second})
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != 3*time.Second {
			t.Errorf("Open = %v after %v, want a timeout after 3 s", err, time.Since(start))
		}
	})
}

func TestClosingEndsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		failed := make(chan error, 1)
		go func() {
			_, err := Open(ours, Options{Socket: SUB})
			failed <- err
		}()
		synctest.Wait()
		ours.Close()
		if err := <-failed; err == nil {
			t.Error("Open ended without an error")
		}
		c, _ := opened(t, Options{Socket: DEALER}, 1)
		go func() {
			_, err := c.Receive()
			failed <- err
		}()
		synctest.Wait()
		c.Close()
		if err := <-failed; !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("Receive ended with %v", err)
		}
	})
}

func TestPingIsAnsweredBetweenFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := opened(t, Options{Socket: SUB}, 0)
		got := make(chan string, 1)
		go func() {
			frames, err := c.Receive()
			got <- string(bytes.Join(frames, []byte("|")))
			if err != nil {
				t.Error(err)
			}
		}()
		p.write(appendFrame(nil, flagMore, []byte("a")), appendCommand(nil, "PING", []byte{0, 9}, []byte("context")))
		if pong := p.read(); pong != "\x04\x0c\x04PONGcontext" {
			t.Errorf("answer to PING is %q", pong)
		}
		p.write(appendCommand(nil, "PING", []byte{0}), appendCommand(nil, "NEWS", []byte("x")), appendFrame(nil, 0, []byte("b")))
		if m := <-got; m != "a|b" {
			t.Errorf("message is %q", m)
		}
		if rest := p.read(); rest != "" {
			t.Errorf("a broken PING and an unknown command are answered: %q", rest)
		}
	})
}

// receiveLater starts one Receive and returns how it ends and when.
func receiveLater(c *Conn) <-chan ended {
	done := make(chan ended, 1)
	start := time.Now()
	go func() {
		_, err := c.Receive()
		done <- ended{err, time.Since(start)}
	}()
	return done
}

type ended struct {
	err   error
	after time.Duration
}

func TestSilentPeerIsAskedOnce(t *testing.T) {
	for _, half := range []string{"", "\x02\x00\x00", "\x01\x01a", "\x00\x05ab"} {
		synctest.Test(t, func(t *testing.T) {
			c, p := opened(t, Options{Socket: SUB, Silence: 2 * time.Second}, 1)
			done := receiveLater(c)
			p.write([]byte(half))
			time.Sleep(2*time.Second + time.Millisecond)
			if ping := p.read(); ping != "\x04\x07\x04PING\x00\x00" {
				t.Errorf("after 2 s we say %q, want PING", ping)
			}
			if e := <-done; !errors.Is(e.err, ErrSilent) || e.after.Round(time.Second) != 4*time.Second {
				t.Errorf("after %q: Receive ended after %v with %v, want silent after 4 s", half, e.after, e.err)
			}
		})
	}
}

func TestAnswerToPingKeepsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := opened(t, Options{Socket: SUB, Silence: 2 * time.Second}, 1)
		done := receiveLater(c)
		for range 100 {
			time.Sleep(3 * time.Second)
			if ping := p.read(); !strings.Contains(ping, "PING") {
				t.Fatalf("we say %q, want PING", ping)
			}
			p.write(appendCommand(nil, "PONG"))
		}
		p.write(appendFrame(nil, 0, nil))
		if e := <-done; e.err != nil {
			t.Errorf("Receive = %v", e.err)
		}
	})
}

func TestOldPeerMayBeSilentButNotStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := opened(t, Options{Socket: SUB, Handshake: 3 * time.Second}, 0)
		done := receiveLater(c)
		time.Sleep(24 * time.Hour)
		if said := p.read(); said != "" {
			t.Errorf("a peer of ZMTP 3.0 is told %q", said)
		}
		p.write([]byte{0, 2, 'a'})
		if e := <-done; !errors.Is(e.err, ErrSilent) || e.after > 24*time.Hour+4*time.Second {
			t.Errorf("half a frame: Receive ended after %v with %v", e.after, e.err)
		}
	})
}

func TestPeerThatDoesNotReadIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := opened(t, Options{Socket: SUB, Handshake: 3 * time.Second}, 0)
		done := receiveLater(c)
		p.write(appendCommand(nil, "PING", noTTL))
		if e := <-done; !errors.Is(e.err, os.ErrDeadlineExceeded) || e.after != 3*time.Second {
			t.Errorf("Receive ended after %v with %v, want a timeout of the PONG after 3 s", e.after, e.err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c, _ := opened(t, Options{Socket: SUB, Handshake: 3 * time.Second}, 0)
		done := receiveLater(c)
		if err := c.Send([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Send = %v, want a timeout", err)
		}
		if e := <-done; e.err == nil || e.after != 3*time.Second {
			t.Errorf("Receive ended after %v with %v, want the end of the connection", e.after, e.err)
		}
	})
}

func TestRefusingDoesNotWaitForThePeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		start := time.Now()
		go theirs.Write(make([]byte, 64)) // and it never reads
		if _, err := Open(ours, Options{Socket: SUB}); !errors.Is(err, ErrPeer) || time.Since(start) != 0 {
			t.Errorf("Open = %v after %v, want it at once", err, time.Since(start))
		}
	})
}

func TestSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := opened(t, Options{Socket: DEALER}, 1)
		long := strings.Repeat("x", 256)
		go c.Send(nil, []byte("seq"), []byte(long))
		synctest.Wait()
		want := "\x01\x00\x01\x03seq\x02\x00\x00\x00\x00\x00\x00\x01\x00" + long
		if diff := cmp.Diff(want, p.read()); diff != "" {
			t.Errorf("sent (-want +got):\n%s", diff)
		}
	})
}
