package simengine

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// BenchmarkServe400kB is the engine's own cost of a request with 100k tokens, model time left out.
func BenchmarkServe400kB(b *testing.B) {
	cfg := DefaultConfig()
	cfg.Speed = 1e9
	cfg.KVEvents.Endpoint = "tcp://127.0.0.1:0"
	e, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	srv := httptest.NewServer(e.Handler())
	defer srv.Close()
	body := chat(400_000, `,"stream":true,"max_tokens":10`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		resp, err := http.Post(srv.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

// BenchmarkStreamedToken is the engine's own cost of one streamed token among 100 streams, with the client's.
func BenchmarkStreamedToken(b *testing.B) {
	cfg := DefaultConfig()
	cfg.Speed = 1e9
	e, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	srv := httptest.NewServer(e.Handler())
	defer srv.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	b.SetParallelism(50)
	b.RunParallel(func(pb *testing.PB) {
		var resp *http.Response
		buf := make([]byte, 4096)
		for pb.Next() {
			if resp == nil {
				resp, err = client.Post(srv.URL+"/v1/chat/completions", "application/json",
					strings.NewReader(chat(400, `,"stream":true,"ignore_eos":true,"max_tokens":1000`)))
				if err != nil {
					b.Error(err)
					return
				}
			}
			if _, err := resp.Body.Read(buf); err != nil {
				resp.Body.Close()
				resp = nil
			}
		}
		if resp != nil {
			resp.Body.Close()
		}
	})
}
