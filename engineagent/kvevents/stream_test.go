package kvevents

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/cachestate"
)

var rewrite = flag.Bool("rewrite", false, "write what the streams show into testdata; read the diff")

// model is a Sink that keeps the blocks that it is told of.
type model struct {
	pause time.Duration // that a batch takes

	mu   sync.Mutex
	held map[int]map[uint64]bool // by rank
	log  []string                // of what was lost and why
}

func newModel() *model { return &model{held: map[int]map[uint64]bool{}} }

func (s *model) byRank() map[int]map[uint64]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

func (s *model) Apply(rank int, events []cachestate.BlockEvent) {
	time.Sleep(s.pause)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[rank] == nil {
		s.held[rank] = map[uint64]bool{}
	}
	for _, e := range events {
		switch e.Kind {
		case cachestate.BlocksStored:
			for _, h := range e.Hashes {
				s.held[rank][h] = true
			}
		case cachestate.BlocksRemoved:
			for _, h := range e.Hashes {
				delete(s.held[rank], h)
			}
		case cachestate.BlocksCleared:
			s.log = append(s.log, "cleared")
			clear(s.held[rank])
		}
	}
}

func (s *model) Lost(rank int, why string)      { s.drop("lost", rank, why) }
func (s *model) Restarted(rank int, why string) { s.drop("restarted", rank, why) }

func (s *model) drop(what string, rank int, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	why, _, _ = strings.Cut(why, ": ")
	s.log = append(s.log, fmt.Sprintf("%s %d: %s", what, rank, why))
	delete(s.held, rank)
}

// stream is a publisher, a follower of it and what is believed of it.
type stream struct {
	t *testing.T
	*publisher
	*Follower
	*model
	source  Source
	listen  func(ctx context.Context, network, address string) (net.Listener, error)
	reroute func(address string) (net.Conn, bool) // instead of the publisher
	lines   *bytes.Buffer                         // of the log
	sawStat Stats                                 // that were shown
	sawLog  int
	sawAsks int
}

func newStream(t *testing.T, p *publisher, replay bool) *stream {
	t.Helper()
	s := &stream{t: t, publisher: p, model: newModel()}
	s.source = Source{Endpoint: pubEndpoint, Topic: "kv@", Rank: 7}
	if replay {
		s.source.Replay = "tcp://" + replayAddress
	}
	return s
}

// begin starts the follower; the function that it returns ends it.
func (s *stream) begin() (end func()) {
	s.lines = &bytes.Buffer{}
	s.Follower = NewFollower(s.source, Options{
		Dial: s.route, Listen: s.listen, Jitter: func() float64 { return 1 },
		Logger: slog.New(slog.NewTextHandler(s.lines, nil)),
	}, s.model)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	synctest.Wait()
	return func() {
		cancel()
		s.cut(time.Hour) // servers of the publisher end too
		if err := <-done; err != nil {
			s.t.Errorf("Run = %v", err)
		}
	}
}

// route is the network.
func (s *stream) route(ctx context.Context, network, address string) (net.Conn, error) {
	if s.reroute != nil {
		if conn, ok := s.reroute(address); ok {
			return conn, nil
		}
	}
	return s.dial(ctx, network, address)
}

// logged is the log so far.
func (s *stream) logged() string {
	synctest.Wait()
	return s.lines.String()
}

// run does one line of a script and returns what it shows.
func (s *stream) run(line string) string {
	s.t.Helper()
	word, arg, _ := strings.Cut(line, " ")
	n, _ := strconv.Atoi(arg)
	d, _ := time.ParseDuration(arg)
	repeat := func(how delivery) {
		for range max(n, 1) {
			s.store(how)
			synctest.Wait() // whether a replay that one brings has the next would be chance
		}
	}
	switch word {
	case "send": // n batches
		repeat(delivered)
	case "lose": // n batches that no subscriber sees
		repeat(lost)
	case "vanish": // nor a replay has
		repeat(vanished)
	case "delay": // n batches until the next flush
		repeat(delayed)
	case "flush": // the first n delayed batches, or all
		s.flush(n)
	case "repeat": // the last batch
		s.change(func(p *publisher) { p.sendLocked(p.lastMsg) })
	case "clear": // the cache, and say so
		s.clear(delivered)
	case "clear-idle": // the cache, and say so later
		s.clear(delayed)
	case "remove-oddly": // all blocks, in an event that does not tell which
		s.removeOddly()
	case "garbage": // a batch that cannot be read
		s.publish(delivered, []byte("garbage"))
	case "no-batch": // a message without a number
		s.change(func(p *publisher) { p.sendLocked(messageOf([]byte("kv@e@m"), []byte("hello"))) })
	case "overrun": // the replay buffer keeps the last n batches only
		s.change(func(p *publisher) { p.kept = p.kept[len(p.kept)-n:] })
	case "mute": // replays are not answered any more
		s.change(func(p *publisher) { p.mute = true })
	case "unmute":
		s.change(func(p *publisher) { p.mute = false })
	case "break-replay": // the next answer after n batches
		s.change(func(p *publisher) { p.cutAt = n })
	case "drop-replay": // the n-th batch of the next answer
		s.change(func(p *publisher) { p.dropAt = n })
	case "slow-replay": // replays take so long for a batch
		s.change(func(p *publisher) { p.slow = d })
	case "jump": // to another number, as nothing does
		s.change(func(p *publisher) { p.next += uint64(n) })
	case "cut":
		s.cut(d)
	case "stall":
		s.stall(true)
	case "unstall":
		s.stall(false)
	case "restart":
		s.publisher.restart()
	case "restart-unseen": // the connections stay, as behind a proxy
		s.change(func(p *publisher) {
			servers, subs := p.servers, p.subs
			p.servers, p.subs = nil, nil
			p.mu.Unlock()
			p.restart()
			p.mu.Lock()
			p.servers, p.subs = servers, subs
		})
	case "wait":
		if d == 0 {
			s.t.Fatalf("%q has no duration", line)
		}
		time.Sleep(d)
	case "show", "peek": // what is believed: nothing wrong, but for a peek, before the stream is back
		synctest.Wait()
		return s.show(word == "peek")
	default:
		s.t.Fatalf("no command is called %q", word)
	}
	synctest.Wait()
	return ""
}

func (s *stream) change(change func(*publisher)) {
	s.publisher.mu.Lock()
	defer s.publisher.mu.Unlock()
	change(s.publisher)
}

// show says what is believed, and what happened since it last did.
func (s *stream) show(peek bool) string {
	s.t.Helper()
	s.publisher.mu.Lock()
	truth, asks := maps.Clone(s.holds), s.replays
	s.publisher.mu.Unlock()
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	wrong, right := 0, 0
	for _, blocks := range s.held {
		for b := range blocks {
			if truth[b] {
				right++
			} else {
				wrong++
			}
		}
	}
	if wrong > 0 && !peek {
		s.t.Errorf("%d wrong keys are believed", wrong)
	}
	now, was := s.Stats(), s.sawStat
	out := fmt.Sprintf("%d of %d", right, len(truth))
	if !now.Connected {
		out += ", not connected"
	}
	for _, c := range []struct {
		name     string
		now, was uint64
	}{
		{"wrong", uint64(wrong), 0},
		{"gaps", now.Gaps, was.Gaps},
		{"replayed", now.Replayed, was.Replayed},
		{"repeated", now.Repeated, was.Repeated},
		{"late", now.Late, was.Late},
		{"broken", now.Broken, was.Broken},
		{"asks", uint64(asks), uint64(s.sawAsks)},
	} {
		if c.now > c.was {
			out += fmt.Sprintf(", %s %d", c.name, c.now-c.was)
		}
	}
	for _, l := range s.log[s.sawLog:] {
		out += "\n      " + l
	}
	s.sawStat, s.sawLog, s.sawAsks = now, len(s.log), asks
	return out
}

// play runs a script and returns what each "show" shows. Lines before "follow" come before the follower.
func play(t *testing.T, script []string, p *publisher, replay bool) []string {
	t.Helper()
	s := newStream(t, p, replay)
	var shown []string
	var end func()
	if !slices.Contains(script, "follow") {
		end = s.begin()
	}
	for _, line := range script {
		if line == "follow" {
			end = s.begin()
		} else if out := s.run(line); out != "" {
			shown = append(shown, out)
		}
	}
	end()
	time.Sleep(time.Minute) // slow replays end
	return shown
}

// readScript returns the commands of a script, without comments and without what they showed.
func readScript(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, " \n"); line != "" && line[0] != '#' && line[0] != ' ' {
			lines = append(lines, line)
		}
	}
	return lines
}

// annotate puts what was shown below each "show" of the script: once for the two forms of replay, which must agree, and
// once for an engine without replay.
func annotate(text string, withReplay, without []string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, " ") {
			continue
		}
		out.WriteString(line)
		if word := strings.TrimSpace(line); word == "show" || word == "peek" {
			fmt.Fprintf(&out, "  replay: %s\n  none:   %s\n", withReplay[0], without[0])
			withReplay, without = withReplay[1:], without[1:]
		}
	}
	return out.String()
}

// TestStreams plays each script in testdata/streams against engines of both versions of ZMTP and with both forms of
// replay, and without replay.
func TestStreams(t *testing.T) {
	files, err := filepath.Glob("testdata/streams/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { testStream(t, file) })
	}
}

func testStream(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	script := readScript(string(text))
	var shown [3][]string
	for i := range shown {
		synctest.Test(t, func(t *testing.T) {
			p := newPublisher(t)
			p.topic, p.minor = i == 1, byte(i%2)
			if slices.Contains(script, "stall") {
				p.minor = 1 // TCP's keepalive, which older peers depend on, is not in this network
			}
			shown[i] = play(t, script, p, i < 2)
		})
	}
	if diff := cmp.Diff(shown[0], shown[1]); diff != "" {
		t.Errorf("the two forms of replay differ (-without topic +with):\n%s", diff)
	}
	got := annotate(string(text), shown[0], shown[2])
	if diff := cmp.Diff(string(text), got); diff != "" && !*rewrite {
		t.Errorf("shows something else (-want +got):\n%s", diff)
	}
	if *rewrite && !bytes.Equal(text, []byte(got)) {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
