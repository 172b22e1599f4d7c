package node

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvmesh/kvmesh/mesh"
)

// rig makes nodes of one mesh whose network is in memory. Their HTTP servers listen nowhere: tests call the handlers.
type rig struct {
	t    testing.TB
	net  *mesh.MemNetwork
	ca   *mesh.Authority
	key  []byte
	next byte
}

func newRig(t testing.TB) *rig {
	t.Helper()
	ca, err := mesh.EphemeralAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t: t, net: mesh.NewMemNetwork(1), ca: ca, key: mesh.NewGossipKey()}
}

// inBubble runs f in fake time and lets what it started end in it.
func inBubble(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Minute) }) // timers of memberlist and quic-go outlive a mesh
		f(t, newRig(t))
	})
}

// config is that of an agent with the named engines, all of them up, on a host of its own.
func (r *rig) config(name string, engines ...string) Config {
	r.t.Helper()
	id, err := r.ca.Issue(name, 30*24*time.Hour)
	if err != nil {
		r.t.Fatal(err)
	}
	r.next++
	host := fmt.Sprintf("10.0.0.%d", r.next)
	c := DefaultConfig()
	c.Mesh = mesh.LocalConfig()
	c.Mesh.MeshID, c.Mesh.Name, c.Mesh.Identity, c.Mesh.GossipKeys = r.ca.Mesh(), name, id, [][]byte{r.key}
	c.Mesh.QUICBind, c.Mesh.GossipBind, c.Mesh.ListenPacket = host+":7081", host+":7082", r.net.ListenPacket
	c.Listen = func(_, addr string) (net.Listener, error) { return newDeaf(addr), nil }
	c.Transport, c.PollEngines, c.DrainGrace = upEngine{}, upEngine{}, time.Second
	for _, e := range engines {
		c.Engines = append(c.Engines, EngineConfig{Name: e, URL: &url.URL{Scheme: "http", Host: e}})
	}
	return c
}

// node makes a node that does not run; it is closed with the test.
func (r *rig) node(c Config) *Node {
	r.t.Helper()
	n, err := New(c)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := n.Close(); err != nil {
			r.t.Errorf("close %s: %v", c.Mesh.Name, err)
		}
	})
	return n
}

// run makes a node and runs it until the end of the test, or until the function that is returned tells it to stop.
func (r *rig) run(c Config) (*Node, context.CancelFunc) {
	r.t.Helper()
	n, err := New(c)
	if err != nil {
		r.t.Fatal(err)
	}
	return n, r.start(n)
}

// start is run for a node that is there already.
func (r *rig) start(n *Node) context.CancelFunc {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("run %s: %v", n.config.Mesh.Name, err)
		}
	})
	return cancel
}

// await waits in fake time until ok.
func await(t *testing.T, what string, limit time.Duration, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > limit {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// deaf is a listener that nobody can dial.
type deaf struct {
	addr string
	once sync.Once
	done chan struct{}
}

func newDeaf(addr string) *deaf { return &deaf{addr: addr, done: make(chan struct{})} }

func (d *deaf) Accept() (net.Conn, error) {
	<-d.done
	return nil, net.ErrClosed
}

func (d *deaf) Close() error {
	d.once.Do(func() { close(d.done) })
	return nil
}

func (d *deaf) Addr() net.Addr { return d }

func (d *deaf) Network() string { return "tcp" }

func (d *deaf) String() string { return d.addr }

// upEngine answers polls as a healthy vLLM without a metrics page does, and every chat with a word.
type upEngine struct{}

func (upEngine) RoundTrip(r *http.Request) (*http.Response, error) {
	status, body := http.StatusOK, ""
	switch r.URL.Path {
	case "/health":
	case "/v1/chat/completions":
		body = `{"choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}]}`
	case "/v1/models":
		body = `{"data":[{"id":"m","owned_by":"vllm","max_model_len":4096}]}`
	default:
		status = http.StatusNotFound
	}
	return &http.Response{
		StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
		Body: io.NopCloser(strings.NewReader(body)), Request: r,
	}, nil
}
