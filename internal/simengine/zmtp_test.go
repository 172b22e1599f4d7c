package simengine

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
)

// This is the only test on real sockets: another implementation of ZMTP on the other side.
func TestAnotherZMTPImplementationUnderstandsUs(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Speed = 1000
	cfg.KVEvents.Endpoint, cfg.KVEvents.ReplayEndpoint = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { e.Serve(ctx, ln) })
	defer wg.Wait()
	defer cancel()
	url := "http://" + ln.Addr().String()
	post := func(first int) {
		resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(tinyRequest(first, 33, 1)))
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	post(0)
	quiet := zmq4.WithLogger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))
	sub := zmq4.NewSub(ctx, quiet)
	defer sub.Close()
	if err := sub.Dial(e.events.endpoint()); err != nil {
		t.Fatal(err)
	}
	if err := sub.SetOption(zmq4.OptionSubscribe, ""); err != nil {
		t.Fatal(err)
	}
	got := make(chan batch, 100)
	wg.Go(func() {
		for {
			m, err := sub.Recv()
			if err != nil {
				return
			}
			got <- readBatch(t, m.Frames[1], m.Frames[2])
		}
	})
	var seen batch
	for i := 1; seen.events == nil; i++ { // until the subscription has arrived
		post(1000 * i)
		select {
		case seen = <-got:
		case <-time.After(10 * time.Millisecond):
		}
	}
	if seen.events[0] != "BlockStored 2" {
		t.Errorf("SUB sees %v", seen)
	}
	dealer := zmq4.NewDealer(ctx, quiet)
	defer dealer.Close()
	if err := dealer.Dial(e.events.replayEndpoint()); err != nil {
		t.Fatal(err)
	}
	if err := dealer.SendMulti(zmq4.NewMsgFrom(nil, seqFrame(0))); err != nil {
		t.Fatal(err)
	}
	m, err := dealer.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if b := readBatch(t, m.Frames[len(m.Frames)-2], m.Frames[len(m.Frames)-1]); b.seq != 0 {
		t.Errorf("DEALER gets %v first, want batch 0", b)
	}
}
