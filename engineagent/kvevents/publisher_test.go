package kvevents

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"
)

// publisher is an engine's PUB and ROUTER in memory, with the faults of both, and what its cache holds. Connections are
// those of one bubble.
type publisher struct {
	t     *testing.T
	minor byte // of ZMTP 3
	topic bool // replays name the topic

	mu      sync.Mutex
	life    uint64
	next    uint64
	kept    []stored
	holds   map[uint64]bool // blocks
	fresh   uint64          // number of the next block
	subs    map[chan []byte]*server
	servers map[*server]bool
	down    time.Time     // connections are refused before
	stalled bool          // connections hang, and what is sent is lost
	mute    bool          // replays are not answered
	slow    time.Duration // a batch of a replay takes
	cutAt   int           // batches after which an answer breaks off, once; 0 is never
	dropAt  int           // the batch of an answer that is left out, once; 0 is none
	replays int           // requests for a replay
	lastMsg []byte
	delayed [][]byte
}

type stored struct {
	seq     uint64
	payload []byte
}

func newPublisher(t *testing.T) *publisher {
	return &publisher{
		t: t, minor: 1, holds: map[uint64]bool{}, subs: map[chan []byte]*server{}, servers: map[*server]bool{},
	}
}

const (
	pubAddress    = "engine:5557"
	pubEndpoint   = "tcp://" + pubAddress
	replayAddress = "engine:5558"
)

var errRefused = errors.New("connection refused")

// dial is the network.
func (p *publisher) dial(ctx context.Context, _, address string) (net.Conn, error) {
	p.mu.Lock()
	refused, stalled := time.Now().Before(p.down), p.stalled
	p.mu.Unlock()
	switch {
	case stalled:
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	case refused:
		return nil, errRefused
	}
	ours, theirs := net.Pipe()
	go p.serve(theirs, address)
	return ours, nil
}

// server is the publisher's side of a connection.
type server struct {
	net.Conn
	r *bufio.Reader
}

func newServer(conn net.Conn) *server { return &server{conn, bufio.NewReader(conn)} }

func (p *publisher) serve(conn net.Conn, address string) {
	defer conn.Close()
	s := newServer(conn)
	socket := "XPUB"
	if address == replayAddress {
		socket = "ROUTER"
	}
	if !s.greet(p.minor, socket) {
		return
	}
	p.mu.Lock()
	p.servers[s] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.servers, s)
	}()
	if address == replayAddress {
		p.serveReplay(s)
	} else {
		p.servePub(s)
	}
}

func (s *server) greet(minor byte, socket string) bool {
	out := make([]byte, 64)
	out[0], out[9], out[10], out[11] = 0xff, 0x7f, 3, minor
	copy(out[12:], "NULL")
	ready := "\x05READY\x0bSocket-Type\x00\x00\x00" + string(rune(len(socket))) + socket
	out = append(append(out, 4, byte(len(ready))), ready...)
	go s.Write(out)
	if _, err := io.ReadFull(s.r, make([]byte, 64)); err != nil {
		return false
	}
	_, _, err := s.frame()
	return err == nil
}

// frame reads a short frame: a client sends no others.
func (s *server) frame() (flags byte, body []byte, err error) {
	head := make([]byte, 2)
	if _, err := io.ReadFull(s.r, head); err != nil {
		return 0, nil, err
	}
	body = make([]byte, head[1])
	_, err = io.ReadFull(s.r, body)
	return head[0], body, err
}

func messageOf(frames ...[]byte) []byte {
	var b []byte
	for i, f := range frames {
		flags := byte(2)
		if i < len(frames)-1 {
			flags |= 1
		}
		b = append(binary.BigEndian.AppendUint64(append(b, flags), uint64(len(f))), f...)
	}
	return b
}

// servePub writes what is sent once the first subscription came, and answers signs of life unless it is stalled.
func (p *publisher) servePub(s *server) {
	queue := make(chan []byte, 100_000)
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.subs[queue] != nil {
			delete(p.subs, queue)
			close(queue)
		}
	}()
	for {
		flags, body, err := s.frame()
		if err != nil {
			return
		}
		command := flags&4 != 0
		p.mu.Lock()
		switch {
		case command && strings.HasPrefix(string(body), "\x04PING"):
			if !p.stalled && p.subs[queue] != nil {
				queue <- append([]byte{4, 5}, "\x04PONG"...)
			}
		case p.subs[queue] == nil:
			if want := map[byte]string{0: "\x01kv@", 1: "\x09SUBSCRIBEkv@"}[p.minor]; string(body) != want {
				p.t.Errorf("subscription %q, want %q", body, want)
			}
			p.subs[queue] = s
			go func() {
				for m := range queue {
					if _, err := s.Write(m); err != nil {
						s.Close()
					}
				}
			}()
		}
		p.mu.Unlock()
	}
}

func (p *publisher) serveReplay(s *server) {
	for {
		_, delimiter, err := s.frame()
		if err != nil {
			return
		}
		_, from, err := s.frame()
		if err != nil || len(delimiter) != 0 || len(from) != 8 {
			p.t.Errorf("replay request %q %q %v", delimiter, from, err)
			return
		}
		p.mu.Lock()
		p.replays++
		var batches []stored
		for _, b := range p.kept {
			if b.seq >= binary.BigEndian.Uint64(from) {
				batches = append(batches, b)
			}
		}
		mute, slow, cutAt, dropAt := p.mute, p.slow, p.cutAt, p.dropAt
		p.cutAt, p.dropAt = 0, 0
		p.mu.Unlock()
		if mute {
			continue
		}
		for i, b := range batches {
			if i+1 == dropAt {
				continue
			}
			if cutAt > 0 && i == cutAt {
				return
			}
			time.Sleep(slow)
			m := p.replayed([]byte("kv@e@m"), binary.BigEndian.AppendUint64(nil, b.seq), b.payload)
			if _, err := s.Write(m); err != nil {
				return
			}
		}
		s.Write(p.replayed(nil, replayEnd, nil))
	}
}

func (p *publisher) replayed(topic, seq, payload []byte) []byte {
	if p.topic {
		return messageOf(nil, topic, seq, payload)
	}
	return messageOf(nil, seq, payload)
}

// How a batch is delivered.
type delivery uint8

const (
	delivered delivery = iota
	lost               // no subscriber sees it
	vanished           // nor does a replay
	delayed            // subscribers see it with the next flush
)

// publish numbers one batch of events that change the cache.
func (p *publisher) publish(how delivery, payload []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	seq := p.next
	p.next++
	if how != vanished {
		p.kept = append(p.kept, stored{seq, payload})
	}
	m := messageOf([]byte("kv@e@m"), binary.BigEndian.AppendUint64(nil, seq), payload)
	switch how {
	case delivered:
		p.lastMsg = m
		p.sendLocked(m)
	case delayed:
		p.delayed = append(p.delayed, m)
	case lost, vanished:
	}
}

func (p *publisher) sendLocked(m []byte) {
	if p.stalled || m == nil {
		return
	}
	for queue := range p.subs {
		queue <- m
	}
}

// flush sends the first n delayed batches; 0 is all.
func (p *publisher) flush(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n == 0 || n > len(p.delayed) {
		n = len(p.delayed)
	}
	for _, m := range p.delayed[:n] {
		p.sendLocked(m)
	}
	p.delayed = p.delayed[n:]
}

// store publishes a batch with a new block; every third one also drops the oldest.
func (p *publisher) store(how delivery) {
	p.mu.Lock()
	p.fresh++
	block := p.life<<32 | p.fresh
	removed := uint64(0)
	if p.fresh%3 == 0 {
		for b := range p.holds {
			if removed == 0 || b < removed {
				removed = b
			}
		}
	}
	delete(p.holds, removed)
	p.holds[block] = true
	p.mu.Unlock()
	p.publish(how, encodeBatch(0, removed, block))
}

// encodeBatch is a batch of vLLM 0.10.2: blocks are removed and stored, unless they are 0.
func encodeBatch(rank int, removed, block uint64) []byte {
	var events [][]byte
	if removed != 0 {
		e := msgp.AppendString(msgp.AppendArrayHeader(nil, 3), "BlockRemoved")
		events = append(events, msgp.AppendString(msgp.AppendUint64(msgp.AppendArrayHeader(e, 1), removed), "GPU"))
	}
	if block != 0 {
		e := msgp.AppendString(msgp.AppendArrayHeader(nil, 7), "BlockStored")
		e = msgp.AppendNil(msgp.AppendUint64(msgp.AppendArrayHeader(e, 1), block))
		e = msgp.AppendInt(msgp.AppendArrayHeader(e, 0), 0)
		events = append(events, msgp.AppendString(msgp.AppendNil(e), "GPU"))
	}
	return wrapBatch(rank, events...)
}

func wrapBatch(rank int, events ...[]byte) []byte {
	b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), float64(time.Now().UnixMilli())/1000)
	b = msgp.AppendArrayHeader(b, uint32(len(events)))
	for _, e := range events {
		b = append(b, e...)
	}
	return msgp.AppendInt(b, rank)
}

func clearedEvent() []byte {
	return msgp.AppendString(msgp.AppendArrayHeader(nil, 1), "AllBlocksCleared")
}

func (p *publisher) removeOddly() {
	p.mu.Lock()
	clear(p.holds)
	p.mu.Unlock()
	removed := msgp.AppendNil(msgp.AppendString(msgp.AppendArrayHeader(nil, 2), "BlockRemoved"))
	p.publish(delivered, wrapBatch(0, removed))
}

func (p *publisher) clear(how delivery) {
	p.mu.Lock()
	clear(p.holds)
	p.mu.Unlock()
	p.publish(how, wrapBatch(0, clearedEvent()))
}

// cut closes all connections and refuses others for a time.
func (p *publisher) cut(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = time.Now().Add(d)
	p.closeLocked()
}

func (p *publisher) closeLocked() {
	for s := range p.servers {
		s.Close()
	}
	for queue := range maps.Clone(p.subs) {
		delete(p.subs, queue)
		close(queue)
	}
	p.lastMsg, p.delayed = nil, nil // what waits for a connection is gone with it
}

// stall lets everything hang until it ends, when the old connections are dead.
func (p *publisher) stall(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stalled = on; !on {
		p.closeLocked()
	}
}

// restart is another process with an empty cache.
func (p *publisher) restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.life++
	p.next, p.kept, p.fresh = 0, nil, 0
	clear(p.holds)
	p.closeLocked()
}
