package simengine

import (
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tinylib/msgp/msgp"
)

// batch is what a follower of the events sees of a message.
type batch struct {
	seq    uint64
	events []string // "stored 3", "removed 1", "cleared"
}

func readBatch(t *testing.T, seq, payload []byte) batch {
	t.Helper()
	v, rest, err := msgp.ReadIntfBytes(payload)
	if err != nil || len(rest) != 0 || len(seq) != 8 {
		t.Fatalf("read batch %x %x: %v", seq, payload, err)
	}
	b := batch{seq: binary.BigEndian.Uint64(seq)}
	for _, e := range v.([]any)[1].([]any) {
		tag, hashes := "", 0
		switch e := e.(type) {
		case map[string]any:
			tag = e["type"].(string)
			l, _ := e["block_hashes"].([]any)
			hashes = len(l)
		case []any:
			tag = e[0].(string)
			if len(e) > 1 {
				hashes = len(e[1].([]any))
			}
		}
		b.events = append(b.events, fmt.Sprintf("%s %d", tag, hashes))
	}
	return b
}

// follower is the other side of both sockets, made of the same frames: for time and loss in bubbles.
type follower struct {
	t    *testing.T
	conn *zmtpConn
}

func follow(t *testing.T, n *memNet, socket string) *follower {
	t.Helper()
	conn, err := n.dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c, err := openZMTP(conn, socket)
	if err != nil {
		t.Fatal(err)
	}
	return &follower{t, c}
}

func (f *follower) send(frames ...[]byte) {
	f.t.Helper()
	if _, err := f.conn.conn.Write(appendMessage(nil, frames...)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *follower) next() [][]byte {
	f.t.Helper()
	m, err := f.conn.message(nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return m
}

func (f *follower) batch() batch {
	f.t.Helper()
	m := f.next()
	return readBatch(f.t, m[len(m)-2], m[len(m)-1])
}

// eventRig is an engine with both sockets in memory.
func eventRig(t *testing.T, change func(*Config)) (r *rig, pub, replay *memNet) {
	t.Helper()
	pub, replay = newMemNet(), newMemNet()
	r = newRig(t, func(c *Config) {
		c.KVEvents.Endpoint, c.KVEvents.ReplayEndpoint, c.KVEvents.Topic = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "kv@x"
		c.KVEvents.Listen = func(_, addr string) (net.Listener, error) {
			if strings.HasSuffix(addr, ":1") {
				return pub, nil
			}
			return replay, nil
		}
		if change != nil {
			change(c)
		}
	})
	return r, pub, replay
}

const tiny = `{"model":"sim-model","ignore_eos":true,"max_tokens":%d,"prompt":%s}`

func tinyRequest(first, n, maxTokens int) string {
	ids := make([]Token, n)
	for i := range ids {
		ids[i] = Token(first + i)
	}
	return fmt.Sprintf(tiny, maxTokens, jsonOf(ids))
}

func TestOneBatchAStepWithRemovedBeforeStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, pub, _ := eventRig(t, func(c *Config) { c.BlockTokens, c.CapacityTokens = 4, 40 })
		sub := follow(t, pub, "SUB")
		sub.send([]byte("\x01kv@"))
		synctest.Wait()
		r.start("/v1/completions",
			tinyRequest(1, 17, 5), // 4 blocks; the answer's 4th computed token fills one
			tinyRequest(1, 17, 1), // a hit is silent
			tinyRequest(100, 33, 1))
		want := []batch{
			{0, []string{"BlockStored 4"}},
			{1, []string{"BlockStored 1"}},
			{2, []string{"BlockRemoved 1", "BlockRemoved 1", "BlockRemoved 1", "BlockRemoved 1", "BlockStored 8"}},
		}
		for i, w := range want {
			m := sub.next()
			if len(m) != 3 || string(m[0]) != "kv@x" {
				t.Fatalf("message %d has frames %q", i, m)
			}
			if diff := cmp.Diff(w, readBatch(t, m[1], m[2]), cmp.AllowUnexported(batch{})); diff != "" {
				t.Errorf("batch %d (-want +got):\n%s", i, diff)
			}
		}
	})
}

func TestConcurrentEqualPromptsTellEveryCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, pub, _ := eventRig(t, func(c *Config) { c.BlockTokens = 4 })
		sub := follow(t, pub, "SUB")
		sub.send([]byte{1})
		synctest.Wait()
		r.start("/v1/completions", strings.Replace(tinyRequest(1, 17, 1), "ignore_eos", `n":2,"prompt_logprobs":1,"ignore_eos`, 1))
		for range 2 {
			if b := sub.batch(); b.events[0] != "BlockStored 4" {
				t.Errorf("batch %v, want a copy of all four blocks", b)
			}
		}
	})
}

func TestWrongTopicIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, pub, _ := eventRig(t, nil)
		other, mine := follow(t, pub, "SUB"), follow(t, pub, "SUB")
		other.send([]byte("\x01load@"))
		mine.send([]byte("\x01kv@x"))
		synctest.Wait()
		r.start("/v1/completions", tinyRequest(1, 33, 1))
		mine.batch()
		other.conn.conn.SetReadDeadline(time.Now().Add(time.Hour))
		if _, err := other.conn.message(nil); err == nil {
			t.Error("another topic's subscriber got a batch")
		}
	})
}

func TestSlowSubscriberSeesAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, pub, replay := eventRig(t, func(c *Config) { c.KVEvents.HWM = 2 })
		sub := follow(t, pub, "SUB")
		sub.send([]byte{1})
		synctest.Wait()
		for i := range 10 {
			r.post("/v1/completions", tinyRequest(1000*i, 33, 1))
		}
		got := []uint64{sub.batch().seq, sub.batch().seq, sub.batch().seq}
		r.start("/v1/completions", tinyRequest(20000, 33, 1))
		if next := sub.batch().seq; next != 10 || got[2] > 3 {
			t.Errorf("sequence %v, %d, want the first few, then 10", got, next)
		}
		dealer := follow(t, replay, "DEALER")
		dealer.send(nil, seqFrame(4))
		for want := uint64(4); want <= 10; want++ {
			if b := dealer.batch(); b.seq != want {
				t.Errorf("replayed %d, want %d", b.seq, want)
			}
		}
	})
}

func TestReplayForms(t *testing.T) {
	for _, withTopic := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r, _, replay := eventRig(t, func(c *Config) { c.KVEvents.ReplayTopic, c.KVEvents.BufferSteps = withTopic, 2 })
			for i := range 3 {
				r.post("/v1/completions", tinyRequest(1000*i, 33, 1))
			}
			dealer := follow(t, replay, "DEALER")
			dealer.send([]byte("ignored"))
			dealer.send(nil, seqFrame(0))
			var got []string
			for range 3 {
				m := dealer.next()
				shape := ""
				for _, f := range m[:len(m)-1] {
					shape += fmt.Sprintf("%x|", f)
				}
				if len(m[len(m)-1]) > 0 {
					shape += "payload"
				}
				got = append(got, shape)
			}
			want := []string{"|0000000000000001|payload", "|0000000000000002|payload", "|ffffffffffffffff|"}
			if withTopic {
				want = []string{"|6b764078|0000000000000001|payload", "|6b764078|0000000000000002|payload", "||ffffffffffffffff|"}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("topic %v: the oldest of three batches is gone, (-want +got):\n%s", withTopic, diff)
			}
		})
	}
}

func TestSGLangBeginsByClearingAndTellsEveryPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, replay := eventRig(t, func(c *Config) { c.Kind, c.BlockTokens = KindSGLang, 4 })
		synctest.Wait()
		if n := r.Stats().EventBatches; n != 1 {
			t.Errorf("%d batches before the first request, want one", n)
		}
		r.post("/v1/completions", tinyRequest(1, 13, 1))
		dealer := follow(t, replay, "DEALER")
		dealer.send(nil, seqFrame(0))
		for _, want := range []batch{
			{0, []string{"AllBlocksCleared 0"}},
			{1, []string{"BlockStored 1", "BlockStored 1", "BlockStored 1"}},
		} {
			if diff := cmp.Diff(want, dealer.batch(), cmp.AllowUnexported(batch{})); diff != "" {
				t.Errorf("batch %d (-want +got):\n%s", want.seq, diff)
			}
		}
	})
}

func TestSGLangTellsAFlushAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, pub, _ := eventRig(t, kind(KindSGLang))
		sub := follow(t, pub, "SUB")
		sub.send([]byte{1})
		synctest.Wait()
		r.post("/flush_cache", "")
		if diff := cmp.Diff(batch{1, []string{"AllBlocksCleared 0"}}, sub.batch(), cmp.AllowUnexported(batch{})); diff != "" {
			t.Errorf("batch while idle (-want +got):\n%s", diff)
		}
	})
}

func TestResetIsToldWithTheNextStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, pub, _ := eventRig(t, nil)
		sub := follow(t, pub, "SUB")
		sub.send([]byte{1})
		synctest.Wait()
		if got := r.ok("/reset_prefix_cache", ""); at(got, "success") != true {
			t.Fatalf("reset: %v", got)
		}
		time.Sleep(time.Hour)
		if n := r.Stats().EventBatches; n != 0 {
			t.Errorf("%d batches while idle, want none", n)
		}
		r.start("/v1/completions", tinyRequest(1, 33, 1))
		if b := sub.batch(); b.events[0] != "AllBlocksCleared 0" {
			t.Errorf("batch %v, want the reset first", b)
		}
	})
}

func TestWindowGroupsReportTokensOfSkippedBlocks(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BlockTokens, cfg.Groups = 4, []Group{{Kind: GroupFull}, {Kind: GroupSliding, Window: 5}}
	cfg.KVEvents.Endpoint = "tcp://127.0.0.1:0"
	c := newCache(&cfg)
	tokens := make([]Token, 17)
	s := &sequence{tokens: tokens, chain: (&chainer{kind: KindVLLM, blockTokens: 4}).chain(tokens, "", "")}
	c.admit(s, 17, true)
	c.commit(s, 17)
	for i, want := range []int{4, 1} {
		if e := c.events[i]; len(e.hashes) != want || len(e.tokens) != 16 {
			t.Errorf("group %d: %d hashes and %d tokens, want %d and 16", i, len(e.hashes), len(e.tokens), want)
		}
	}
}

func TestConnectingPublisherFindsALateSubscriber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		router := newMemNet()
		var up sync.Once
		opened := make(chan struct{})
		r := newRig(t, func(c *Config) {
			c.KVEvents.Endpoint, c.KVEvents.Connect = "tcp://router:5557", true
			c.KVEvents.Dial = func(string, string) (net.Conn, error) {
				select {
				case <-opened:
					return router.dial()
				default:
					return nil, net.ErrClosed
				}
			}
		})
		time.Sleep(time.Second)
		up.Do(func() { close(opened) })
		conn, err := router.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		c, err := openZMTP(conn, "SUB")
		if err != nil {
			t.Fatal(err)
		}
		sub := &follower{t, c}
		sub.send([]byte{1})
		synctest.Wait()
		r.start("/v1/completions", tinyRequest(1, 33, 1))
		if b := sub.batch(); b.seq != 0 {
			t.Errorf("first batch has number %d", b.seq)
		}
	})
}

// hashesOf are the hashes of the first event in a message.
func hashesOf(t *testing.T, message [][]byte) string {
	t.Helper()
	v, _, err := msgp.ReadIntfBytes(message[len(message)-1])
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(v.([]any)[1].([]any)[0].(map[string]any)["block_hashes"])
}
