package zmtp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// canned is a connection on which everything was said already; what we say is dropped.
type canned struct {
	io.Reader
	net.Conn // nothing of it is called
	closed   bool
}

func (c *canned) Read(p []byte) (int, error)       { return c.Reader.Read(p) }
func (c *canned) Write(p []byte) (int, error)      { return len(p), nil }
func (c *canned) Close() error                     { c.closed = true; return nil }
func (c *canned) SetDeadline(time.Time) error      { return nil }
func (c *canned) SetReadDeadline(time.Time) error  { return nil }
func (c *canned) SetWriteDeadline(time.Time) error { return nil }

func openCanned(tb testing.TB, o Options, after io.Reader) *Conn {
	tb.Helper()
	o.Socket = SUB
	c, err := Open(&canned{Reader: io.MultiReader(bytes.NewReader(append(greeting(1), readyAs("PUB")...)), after)}, o)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// messages receives until the connection ends.
func messages(c *Conn) (all [][]string, err error) {
	for {
		frames, err := c.Receive()
		if err != nil {
			return all, err
		}
		var m []string
		for _, f := range frames {
			m = append(m, string(f))
		}
		all = append(all, m)
	}
}

func long(flags byte, size uint64) string {
	return string(binary.BigEndian.AppendUint64([]byte{flags | flagLong}, size))
}

func TestReceive(t *testing.T) {
	o := Options{MaxFrame: 300, MaxMessage: 400, MaxFrames: 3}
	big := strings.Repeat("x", 300)
	tests := []struct {
		name string
		give string
		want [][]string
		err  error
	}{
		{"two messages", "\x01\x00\x01\x01a\x00\x02bc\x00\x00", [][]string{{"", "a", "bc"}, {""}}, io.EOF},
		{"a long header for a short frame", long(0, 1) + "a", [][]string{{"a"}}, io.EOF},
		{"the largest frame and message", long(1, 300) + big + "\x00\x64" + big[:100], [][]string{{big, big[:100]}}, io.EOF},
		{"a frame too large", long(0, 301) + big + "x", nil, ErrTooLarge},
		{"a message too large", long(1, 300) + big + "\x00\x65" + big[:101], nil, ErrTooLarge},
		{"too many frames", "\x01\x00\x01\x00\x01\x00\x00\x00", nil, ErrTooLarge},
		{"a frame of 8 EiB", long(0, 1<<63-1), nil, ErrTooLarge},
		{"a negative size", long(0, 1<<63), nil, errFrame},
		{"a reserved flag", "\x08\x00", nil, errFrame},
		{"a command with more to come", "\x05\x05\x04PING", nil, errFrame},
		{"a command that is too large", long(4, 4097), nil, ErrTooLarge},
		{"a command without a name", "\x04\x00", nil, errFrame},
		{"an error", string(appendCommand(nil, "ERROR", []byte("\x02no"))), nil, ErrPeer},
		{"cut in a header", "\x00\x00\x02\x00\x00", [][]string{{""}}, io.ErrUnexpectedEOF},
		{"cut before the size", "\x00", nil, io.ErrUnexpectedEOF},
		{"cut in a frame", "\x00\x05ab", nil, io.ErrUnexpectedEOF},
		{"cut before a frame", "\x00\x05", nil, io.ErrUnexpectedEOF},
		{"cut between frames", "\x01\x01a", nil, io.ErrUnexpectedEOF},
		{"cut in a command", "\x04\x05\x04PI", nil, io.ErrUnexpectedEOF},
		{"cut after a command", "\x04\x05\x04PONG", nil, io.EOF},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := messages(openCanned(t, o, strings.NewReader(tt.give)))
			if !errors.Is(err, tt.err) {
				t.Errorf("ended with %v, want %v", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnnouncedSizeCostsNothing(t *testing.T) {
	c := openCanned(t, Options{}, strings.NewReader(long(0, 64<<20)+"then nothing"))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := c.Receive()
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, io.ErrUnexpectedEOF) || grown > 256<<10 {
		t.Errorf("Receive = %v after allocating %d bytes for a frame of 64 MiB that did not come", err, grown)
	}
}

func TestLargeBufferIsNotKept(t *testing.T) {
	large := 3 << 20
	c := openCanned(t, Options{}, strings.NewReader(long(0, uint64(large))+strings.Repeat("x", large)+"\x00\x01a\x00\x01b"))
	for _, want := range []int{large, 1, 1} {
		frames, err := c.Receive()
		if err != nil || len(frames[0]) != want {
			t.Fatalf("received %d bytes and %v, want %d", len(frames[0]), err, want)
		}
	}
	if cap(c.buf) > keptBuffer {
		t.Errorf("the buffer of a small message has %d bytes", cap(c.buf))
	}
}

// plainMessages is Receive once more, for bytes that are all there, without buffers, bounds by pieces or deadlines.
func plainMessages(b []byte, o Options) (all [][]string, ok bool) {
	var m []string
	total := 0
	for len(b) > 0 {
		flags, size, head := b[0], uint64(0), 2
		switch {
		case flags > 7 || flags&5 == 5:
			return all, false
		case flags&2 != 0 && len(b) >= 9:
			size, head = binary.BigEndian.Uint64(b[1:9]), 9
		case flags&2 == 0 && len(b) >= 2:
			size = uint64(b[1])
		default:
			return all, false
		}
		if b = b[head:]; size > uint64(len(b)) {
			return all, false
		}
		body := b[:size]
		b = b[size:]
		if flags&4 != 0 {
			if len(body) > maxCommand || len(body) == 0 || int(body[0]) >= len(body) || strings.HasPrefix(string(body), "\x05ERROR") {
				return all, false
			}
			continue
		}
		total += len(body)
		if len(m) == o.MaxFrames || len(body) > o.MaxFrame || total > o.MaxMessage {
			return all, false
		}
		if m = append(m, string(body)); flags&1 == 0 {
			all, m, total = append(all, m), nil, 0
		}
	}
	return all, len(m) == 0
}

func FuzzReceive(f *testing.F) {
	f.Add([]byte("\x01\x00\x01\x08\x00\x00\x00\x00\x00\x00\x00\x01\x00\x03abc"))
	f.Add([]byte("\x04\x07\x04PING\x00\x00\x01\x00\x00\x00"))
	f.Add([]byte(long(0, 1<<40)))
	f.Fuzz(func(t *testing.T, b []byte) {
		o := Options{MaxFrame: 500, MaxMessage: 600, MaxFrames: 4}
		want, whole := plainMessages(b, o)
		got, err := messages(openCanned(t, o, bytes.NewReader(b)))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("messages of % x (-plain +got):\n%s", b, diff)
		}
		if errors.Is(err, io.EOF) != whole {
			t.Errorf("% x ended with %v, and whole is %v", b, err, whole)
		}
	})
}

func FuzzOpen(f *testing.F) {
	f.Add(append(greeting(1), readyAs("PUB")...))
	f.Add(append(greeting(0), appendCommand(nil, "ERROR", []byte("\x02no"))...))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Open(&canned{Reader: bytes.NewReader(b)}, Options{Socket: SUB, Topics: []string{"kv"}})
		if (err == nil) != (c != nil) {
			t.Errorf("Open = %v, %v", c, err)
		}
		if err == nil && (b[0] != 0xff || b[10] < 3 || !bytes.Contains(b[64:], []byte("PUB"))) {
			t.Errorf("Open accepts % x", b)
		}
	})
}

// endless repeats bytes for ever.
type endless struct {
	b  []byte
	at int
}

func (e *endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		k := copy(p[n:], e.b[e.at:])
		n, e.at = n+k, (e.at+k)%len(e.b)
	}
	return n, nil
}

func smallMessage() []byte {
	m := appendFrame(nil, flagMore, []byte("kv@10.0.0.1@model"))
	m = appendFrame(m, flagMore, make([]byte, 8))
	return appendFrame(m, 0, make([]byte, 2000))
}

func TestReceiveDoesNotAllocate(t *testing.T) {
	c := openCanned(t, Options{}, &endless{b: smallMessage()})
	if n := testing.AllocsPerRun(1000, func() { c.Receive() }); n != 0 {
		t.Errorf("%v allocations for a message, want none", n)
	}
}

func BenchmarkReceive(b *testing.B) {
	m := smallMessage()
	c := openCanned(b, Options{}, &endless{b: m})
	b.ReportAllocs()
	b.SetBytes(int64(len(m)))
	for b.Loop() {
		if _, err := c.Receive(); err != nil {
			b.Fatal(err)
		}
	}
}
