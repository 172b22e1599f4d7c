package simengine_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/kvmesh/kvmesh/internal/simengine"
)

// An engine on loopback, a hundred times faster than a real one, with KV events on ports that the system chooses; GET
// /kv_event_sources tells them.
func Example() {
	cfg := simengine.DefaultConfig()
	cfg.Speed = 100
	cfg.KVEvents.Endpoint, cfg.KVEvents.ReplayEndpoint = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
	engine, err := simengine.New(cfg)
	if err != nil {
		panic(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	ctx, kill := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- engine.Serve(ctx, ln) }()

	resp, err := http.Post("http://"+ln.Addr().String()+"/v1/completions", "application/json",
		strings.NewReader(`{"model": "sim-model", "prompt": "Once upon a time", "max_tokens": 8}`))
	if err != nil {
		panic(err)
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	fmt.Println(resp.StatusCode, engine.Stats().GenerationTokens)

	kill()
	fmt.Println(<-ended)
	// Output:
	// 200 8
	// <nil>
}
