package forward

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// oneConn is a listener with one connection.
type oneConn struct {
	conn chan net.Conn
	done context.Context
	end  context.CancelFunc
}

func (l oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.done.Done():
		return nil, net.ErrClosed
	}
}

func (l oneConn) Close() error   { l.end(); return nil }
func (l oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// TestLookUpMayTakeLong: the time that a client has to send a body is not that of a request which has none. Over HTTP/1.1 the
// server reads on while it serves, so a deadline of its reads ends the request.
func TestLookUpMayTakeLong(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, _ *memAgent) {
		a.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(2 * bodyIdle)
			_, _ = io.WriteString(w, r.URL.Path)
		})
		ours, theirs := net.Pipe()
		defer synctest.Wait()
		defer ours.Close()
		l := oneConn{conn: make(chan net.Conn, 1)}
		l.done, l.end = context.WithCancel(t.Context())
		l.conn <- theirs
		s := &http.Server{Handler: a.Ingress}
		defer s.Close()
		go func() { _ = s.Serve(l) }()
		const path = "/v1/responses/resp_1"
		go func() { _, _ = io.WriteString(ours, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n") }()
		resp, err := http.ReadResponse(bufio.NewReader(ours), nil)
		if err != nil {
			t.Fatalf("no answer: %v", err)
		}
		if got, err := io.ReadAll(resp.Body); err != nil || string(got) != path {
			t.Errorf("got %d %q, %v", resp.StatusCode, got, err)
		}
	})
}
