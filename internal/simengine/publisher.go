package simengine

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"
)

// publisher sends batches of KV events to subscribers and keeps the last ones for replay. Without sockets it only counts
// and keeps, so batches from before Serve can be replayed too.
type publisher struct {
	cfg    EventsConfig
	enc    encoder
	logger *slog.Logger

	mu      sync.Mutex
	life    uint64 // number of the life whose batches are taken
	next    uint64 // sequence number of the next batch; 0 in every life
	kept    []keptBatch
	oldest  int // index in kept of the oldest batch, once kept is full
	plan    plan
	subs    map[*subscriber]struct{}
	bound   string // address of the PUB socket
	replays string // address of the ROUTER socket

	conns    map[net.Conn]struct{} // of both sockets
	cutUntil time.Time             // no connection is let in before
}

type keptBatch struct {
	seq     uint64
	payload []byte
}

// subscriber is one connection to the PUB socket.
type subscriber struct {
	conn   *zmtpConn
	queue  chan []byte // whole messages; a full queue drops, as PUB does at its high-water mark
	topics []string    // under the publisher's lock
}

func newPublisher(cfg *Config) *publisher {
	return &publisher{
		cfg: cfg.KVEvents, enc: newEncoder(cfg), logger: cfg.Logger.With("component", "kv_events"),
		subs: map[*subscriber]struct{}{}, conns: map[net.Conn]struct{}{},
	}
}

// publish numbers, keeps and sends one batch of a life that is not over.
func (p *publisher) publish(life uint64, at time.Time, events []kvEvent) {
	if p.cfg.Endpoint == "" {
		return
	}
	payload := p.enc.batch(at, events)
	p.mu.Lock()
	defer p.mu.Unlock()
	if life != p.life {
		return
	}
	b := keptBatch{p.next, payload}
	p.next++
	send, keep := p.plan.next(b)
	if keep {
		p.keep(b)
	}
	for _, b := range send {
		p.send(b)
	}
}

func (p *publisher) keep(b keptBatch) {
	if len(p.kept) < p.cfg.BufferSteps {
		p.kept = append(p.kept, b)
		return
	}
	p.kept[p.oldest] = b
	p.oldest = (p.oldest + 1) % len(p.kept)
}

func seqFrame(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

func (p *publisher) send(b keptBatch) {
	if len(p.subs) == 0 {
		return
	}
	message := appendMessage(nil, []byte(p.cfg.Topic), seqFrame(b.seq), b.payload)
	for s := range p.subs {
		if !s.wants(p.cfg.Topic) {
			continue
		}
		select {
		case s.queue <- message:
		default: // the subscriber sees a gap
		}
	}
}

func (s *subscriber) wants(topic string) bool {
	for _, t := range s.topics {
		if len(t) <= len(topic) && topic[:len(t)] == t {
			return true
		}
	}
	return false
}

// batches is the number of batches published.
func (p *publisher) batches() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(p.next)
}

// start opens the sockets and serves them in goroutines of wg until ctx ends.
func (p *publisher) start(ctx context.Context, wg *sync.WaitGroup) error {
	if p.cfg.Endpoint == "" {
		return nil
	}
	if p.cfg.Connect {
		wg.Go(func() { p.dial(ctx) })
	} else if err := p.listen(ctx, wg, p.cfg.Endpoint, &p.bound, p.servePub); err != nil {
		return err
	}
	if p.cfg.ReplayEndpoint == "" {
		return nil
	}
	return p.listen(ctx, wg, p.cfg.ReplayEndpoint, &p.replays, p.serveReplay)
}

// listen accepts connections and runs serve on each.
func (p *publisher) listen(
	ctx context.Context, wg *sync.WaitGroup, endpoint string, bound *string, serve func(context.Context, net.Conn),
) error {
	addr, err := tcpAddress(endpoint)
	if err != nil {
		return err
	}
	open := p.cfg.Listen
	if open == nil {
		open = net.Listen
	}
	ln, err := open("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", endpoint, err)
	}
	p.mu.Lock()
	*bound = ln.Addr().String()
	p.mu.Unlock()
	wg.Go(func() {
		stop := context.AfterFunc(ctx, func() { ln.Close() })
		defer stop()
		p.accept(ctx, ln, serve)
	})
	return nil
}

func (p *publisher) accept(ctx context.Context, ln net.Listener, serve func(context.Context, net.Conn)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := ln.Accept()
		if err != nil {
			if ctx.Err() == nil {
				p.logger.Warn("accept failed", "err", err)
			}
			return
		}
		wg.Go(func() { serve(ctx, conn) })
	}
}

// redialEvery is libzmq's interval between attempts to connect.
const redialEvery = 100 * time.Millisecond

// dial keeps one connection to a subscriber that binds.
func (p *publisher) dial(ctx context.Context) {
	open := p.cfg.Dial
	if open == nil {
		open = (&net.Dialer{Timeout: handshakeTime}).Dial
	}
	addr, _ := tcpAddress(p.cfg.Endpoint) // checked by Validate
	for ctx.Err() == nil {
		if conn, err := open("tcp", addr); err == nil {
			p.servePub(ctx, conn)
		}
		select {
		case <-ctx.Done():
		case <-time.After(redialEvery):
		}
	}
}

// servePub is one subscriber's life: its subscriptions are read here, batches are written beside.
func (p *publisher) servePub(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer p.leave(conn)
	if !p.enter(conn) {
		return
	}
	zc, err := openZMTP(conn, "PUB")
	if err != nil {
		p.logger.Debug("subscriber refused", "err", err)
		return
	}
	s := &subscriber{conn: zc, queue: make(chan []byte, p.cfg.HWM)}
	p.mu.Lock()
	p.subs[s] = struct{}{}
	p.mu.Unlock()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(s.write)
	p.readSubscriptions(s)
	p.mu.Lock()
	delete(p.subs, s)
	p.mu.Unlock()
	conn.Close()
	close(s.queue) // nobody sends to it any more: it is not in subs
}

func (s *subscriber) write() {
	broken := false
	for m := range s.queue {
		if broken {
			continue
		}
		if _, err := s.conn.conn.Write(m); err != nil {
			broken = true
			s.conn.conn.Close()
		}
	}
}

// readSubscriptions returns when the connection ends.
func (p *publisher) readSubscriptions(s *subscriber) {
	onCommand := func(body []byte) {
		if answer := pong(body); answer != nil {
			p.enqueue(s, answer)
		}
	}
	for {
		frames, err := s.conn.message(onCommand)
		if err != nil {
			return
		}
		if f := frames[0]; len(frames) == 1 && len(f) > 0 {
			p.subscribe(s, f[0], string(f[1:]))
		}
	}
}

// maxTopics bounds the subscriptions of one connection.
const maxTopics = 1000

func (p *publisher) subscribe(s *subscriber, op byte, topic string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case op == 1 && len(s.topics) < maxTopics:
		s.topics = append(s.topics, topic)
	case op == 0:
		for i, t := range s.topics {
			if t == topic {
				s.topics = append(s.topics[:i], s.topics[i+1:]...)
				return
			}
		}
	}
}

func (p *publisher) enqueue(s *subscriber, message []byte) {
	select {
	case s.queue <- message:
	default:
	}
}

// replayEnd closes a replay: all ones where a sequence number would be, and an empty payload.
var replayEnd = bytes.Repeat([]byte{0xff}, 8)

// serveReplay answers requests of two frames, the delimiter and the first sequence number wanted.
func (p *publisher) serveReplay(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer p.leave(conn)
	if !p.enter(conn) {
		return
	}
	zc, err := openZMTP(conn, "ROUTER")
	if err != nil {
		p.logger.Debug("replay client refused", "err", err)
		return
	}
	var failed error
	onCommand := func(body []byte) {
		if answer := pong(body); answer != nil {
			_, failed = conn.Write(answer)
		}
	}
	for failed == nil {
		frames, err := zc.message(onCommand)
		if err != nil {
			return
		}
		if len(frames) != 2 || len(frames[0]) != 0 || len(frames[1]) != 8 {
			p.logger.Warn("replay request ignored", "frames", len(frames))
			continue
		}
		failed = p.replay(conn, binary.BigEndian.Uint64(frames[1]))
	}
}

// replay sends what is kept from a sequence number on. That older batches are gone is not said: the first number shows it.
func (p *publisher) replay(w io.Writer, from uint64) error {
	for _, b := range p.keptFrom(from) {
		if _, err := w.Write(p.replayMessage(seqFrame(b.seq), b.payload)); err != nil {
			return err
		}
	}
	_, err := w.Write(p.replayMessage(replayEnd, nil))
	return err
}

// replayMessage: newer vLLM sends the topic too, empty in the message that ends a replay.
func (p *publisher) replayMessage(seq, payload []byte) []byte {
	if !p.cfg.ReplayTopic {
		return appendMessage(nil, nil, seq, payload)
	}
	topic := []byte(p.cfg.Topic)
	if payload == nil {
		topic = nil
	}
	return appendMessage(nil, nil, topic, seq, payload)
}

func (p *publisher) keptFrom(from uint64) []keptBatch {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []keptBatch
	for i := range p.kept {
		if b := p.kept[(p.oldest+i)%len(p.kept)]; b.seq >= from {
			out = append(out, b)
		}
	}
	return out
}

// endpoint is where the PUB socket is, with the port that the system chose once Serve runs.
func (p *publisher) endpoint() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return boundOr(p.bound, p.cfg.Endpoint)
}

// replayEndpoint is the same for the ROUTER socket.
func (p *publisher) replayEndpoint() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return boundOr(p.replays, p.cfg.ReplayEndpoint)
}

// boundOr is the configured endpoint with the port of the socket that is bound, if one is.
func boundOr(bound, configured string) string {
	_, port, err := net.SplitHostPort(bound)
	host, _, _ := net.SplitHostPort(configured[min(len("tcp://"), len(configured)):])
	if err != nil {
		return configured
	}
	return "tcp://" + net.JoinHostPort(host, port)
}

// splitHostPort cuts "tcp://HOST:PORT"; every interface is "*".
func splitHostPort(endpoint string) (host string, port int) {
	host, p, _ := net.SplitHostPort(endpoint[len("tcp://"):])
	port, _ = strconv.Atoi(p)
	if host == "" || host == "::" || host == "0.0.0.0" {
		host = "*"
	}
	return host, port
}
