package mesh

import (
	"context"
	"io"
	"testing"
	"time"
)

func benchIdentity(b *testing.B) Identity {
	ca, err := EphemeralAuthority("bench")
	if err != nil {
		b.Fatal(err)
	}
	id, err := ca.Issue("a", time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	return id
}

// BenchmarkSeal is what one broadcast costs its sender, besides one copy and one AES-GCM for each peer.
func BenchmarkSeal(b *testing.B) {
	id, payload := benchIdentity(b), make([]byte, 600)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := seal(id, "bench", "a", payload); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCheck is what each message costs its receiver: 200 a second at 1,000 agents.
func BenchmarkCheck(b *testing.B) {
	id := benchIdentity(b)
	msg, err := seal(id, "bench", "a", make([]byte, 600))
	if err != nil {
		b.Fatal(err)
	}
	key := id.signer().Public()
	b.ReportAllocs()
	for b.Loop() {
		e, err := parseEnvelope(msg)
		if err != nil || e.check("bench", key) != nil {
			b.Fatal(err)
		}
	}
}

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

// BenchmarkBroadcastDatagram is one heartbeat to one peer, as its sender sees it.
func BenchmarkBroadcastDatagram(b *testing.B) {
	m, msg := pair(b), make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.BroadcastDatagram(msg); err != nil {
			b.Fatal(err)
		}
	}
}
