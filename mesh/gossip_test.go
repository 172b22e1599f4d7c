package mesh

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"io"
	"testing"
	"time"
)

// userMessage returns what a member may write to a stream of memberlist: its label, and encrypted with its key a user
// message that claims n bytes and has those of body.
func userMessage(t *testing.T, w *world, n uint64, body string) []byte {
	t.Helper()
	block, err := aes.NewCipher(w.key)
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	plain := append([]byte{8, 0x81, 0xaa}, "UserMsgLen\xcf"...) // userMsg, then MessagePack: {"UserMsgLen": n}
	plain = append(binary.BigEndian.AppendUint64(plain, n), body...)
	nonce := make([]byte, gcm.NonceSize())
	head := binary.BigEndian.AppendUint32([]byte{10}, uint32(1+len(nonce)+len(plain)+gcm.Overhead())) // encryptMsg
	label := w.ca.Mesh()
	out := append([]byte{244, byte(len(label))}, label...)
	out = append(append(append(out, head...), 1), nonce...)
	return gcm.Seal(out, nonce, plain, append(head, label...))
}

func TestGossipStreamOfAMemberCannotClaimAllMemory(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, _ := w.three()
		write := func(n uint64, body string) {
			s, err := b.Open(t.Context(), "a", KindGossip)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if _, err := s.Write(userMessage(t, w, n, body)); err != nil {
				t.Fatal(err)
			}
			s.CloseWrite()
			_, _ = io.ReadAll(s)
		}
		write(1<<60, "x")
		write(1, "\xff") // what a peer writes so is read indeed
		await(t, time.Second, "the second message", func() bool {
			return counter(t, a.reg, "kvmesh_mesh_dropped_total", "reason", "message") == 1
		})
	})
}

func TestGossipStreamsOfOnePeerAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, _ := w.three()
		const more = 4
		for range gossipStreams + more {
			s, err := b.Open(t.Context(), "a", KindGossip)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Cancel(codeDone)
			s.Write([]byte{244}) // the rest never comes
		}
		time.Sleep(100 * time.Millisecond)
		if n := counter(t, a.reg, "kvmesh_mesh_dropped_total", "reason", "gossip_streams"); n < more {
			t.Errorf("%v streams were cancelled, want %d", n, more)
		}
		pc := a.table.current("b")
		await(t, time.Minute, "memberlist gives up", func() bool { return pc.gossip.Load() == 0 })
		if err := b.introduce("a"); err != nil {
			t.Errorf("a push/pull after that: %v", err)
		}
	})
}
