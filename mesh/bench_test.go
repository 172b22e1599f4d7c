package mesh

import (
	"context"
	"io"
	"testing"
	"time"
)

// pair runs two connected meshes on loopback and returns the one that dialed; the other, b, serves echoes.
func pair(b *testing.B) *Mesh {
	ca, err := EphemeralAuthority("bench")
	if err != nil {
		b.Fatal(err)
	}
	key := NewGossipKey()
	start := func(name string, join ...string) *Mesh {
		c := LocalConfig()
		c.MeshID, c.Name, c.GossipKeys, c.Join, c.Streams = "bench", name, [][]byte{key}, join, &agent{}
		c.Identity, _ = ca.Issue(name, time.Hour)
		m, err := New(c)
		if err != nil {
			b.Fatal(err)
		}
		go m.Run(context.Background())
		b.Cleanup(func() { m.Close() })
		return m
	}
	server := start("b")
	client := start("a", server.QUICAddr().String())
	for m := client; m.table.current("b") == nil; {
		time.Sleep(time.Millisecond)
	}
	return client
}

// BenchmarkStreamEcho opens a stream, sends 64 B and reads them back: a probe. CPU of both agents counts.
func BenchmarkStreamEcho(b *testing.B) {
	m := pair(b)
	b.ReportAllocs()
	for b.Loop() {
		s, err := m.Open(b.Context(), "b", KindProbe)
		if err != nil {
			b.Fatal(err)
		}
		s.Write(make([]byte, 64))
		s.CloseWrite()
		if _, err := io.ReadAll(s); err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}

// BenchmarkSendDatagram is one heartbeat to one peer, as its sender sees it.
func BenchmarkSendDatagram(b *testing.B) {
	m, msg := pair(b), make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		if err := m.SendDatagram("b", msg); err != nil {
			b.Fatal(err)
		}
	}
}
