package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/deploy/checks/internal/lab"
)

const (
	cancelsTotal = 10_000
	cancelsShort = 500
	cancelsWave  = 250 // at once
	// cancelsBound is from the moment at which the last client of a wave has gone until no engine works for any.
	cancelsBound = time.Second
	cancelsLimit = 10 * time.Second
	cancelsWarm  = 500
)

// cancelsEngine has answers that nobody hears the end of, and a cache that a part of a wave fills: the others wait at the
// ingress and at the owner.
var cancelsEngine = []string{"--answer-tokens", "2000", "--capacity-tokens", "60000"}

// checkCancels has clients go at random moments, over HTTP/1.1 and HTTP/2, before, in and after their bodies: nothing of them may
// be left anywhere.
func checkCancels(ctx context.Context, h *check.Harness) error {
	m, err := lab.Start(ctx, h, lab.Config{
		Names: []string{"a", "b", "c", "d"}, EngineFlags: func(string) []string { return cancelsEngine },
	})
	if err != nil {
		return err
	}
	defer m.Close()
	c := &cancels{h: h, mesh: m, rng: rand.New(rand.NewPCG(7, 1)), ends: map[string]int{}}
	total := cancelsTotal
	if h.Short {
		total = cancelsShort
	}
	if err := c.run(ctx, cancelsWarm); err != nil {
		return err
	}
	before, err := c.goroutines(ctx)
	if err != nil {
		return err
	}
	begun := time.Now()
	c.slowest, c.ends = 0, map[string]int{}
	if err := c.run(ctx, total); err != nil {
		return err
	}
	rate := float64(total) / time.Since(begun).Seconds()
	after, err := c.goroutines(ctx)
	if err != nil {
		return err
	}
	h.Figures.AtMost("cancels_engines_idle_seconds_max", c.slowest.Seconds(), cancelsBound.Seconds(),
		"from when the last client of a wave of %d has gone until no engine works; %d in all, %.0f a second, by what they got: %v", cancelsWave, total, rate, c.ends)
	h.Figures.AtMost("cancels_goroutines_more", after-before, goroutineSlack, "of %.0f on 4 agents at rest, before and after", before)
	return nil
}

// cancels is one run.
type cancels struct {
	h       *check.Harness
	mesh    *lab.Mesh
	rng     *rand.Rand
	slowest time.Duration

	mu   sync.Mutex
	ends map[string]int
}

// run has clients come and go in waves. Between them everything is at rest: an error says what is not.
func (c *cancels) run(ctx context.Context, total int) error {
	for done := 0; done < total; done += cancelsWave {
		last := c.wave(ctx)
		err := check.Await(ctx, cancelsLimit, "the engines to be idle", func() bool { return c.working(ctx) == 0 })
		if err != nil {
			return err
		}
		c.slowest = max(c.slowest, time.Since(last))
		if err := c.mesh.AwaitRest(ctx, cancelsLimit); err != nil {
			return err
		}
		c.h.Say("cancels: %d have gone, engines idle %.0f ms after the last", done+cancelsWave, time.Since(last).Seconds()*1e3)
	}
	return nil
}

// working is how many requests engines have.
func (c *cancels) working(ctx context.Context) int {
	n := 0
	for _, a := range c.mesh.Agents {
		s, err := a.EngineStats(ctx)
		if err != nil {
			n++
		}
		n += s.Running + s.Waiting
	}
	return n
}

// goroutines is how many all agents have, when connections that are kept for a while have gone.
func (c *cancels) goroutines(ctx context.Context) (sum float64, err error) {
	pause(ctx, 10*time.Second)
	all, err := c.mesh.Goroutines(ctx)
	for _, n := range all {
		sum += n
	}
	return sum, err
}

// wave returns when the last client has gone.
func (c *cancels) wave(ctx context.Context) (last time.Time) {
	old, young := newClient(), newClient()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	young.Transport.(*http.Transport).Protocols = protocols
	var wg sync.WaitGroup
	for i := range cancelsWave {
		client := old
		if i%2 == 1 {
			client = young
		}
		g := c.plan(i)
		wg.Go(func() { c.note(g.play(ctx, client, c.mesh.Agents[i%len(c.mesh.Agents)].HTTP)) })
	}
	wg.Wait()
	old.CloseIdleConnections()
	young.CloseIdleConnections()
	return time.Now()
}

func (c *cancels) note(end string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends[end]++
}

// going is a client that will go.
type going struct {
	request request
	after   time.Duration // it goes so long after it has come
	upload  float64       // share of its body that it sends
}

// plan draws one. Moments are spread evenly over their orders of magnitude: an accept takes about a millisecond, a first token
// a hundred, a turn in a queue seconds.
func (c *cancels) plan(i int) going {
	const shortest, longest = 100e-6, 3.0 // seconds
	words := 20 + c.rng.IntN(1500)
	if c.rng.IntN(20) == 0 {
		words = 20_000 // bodies above 64 KiB wait for the accept
	}
	g := going{
		request: chat("", fmt.Sprintf("Client %d of %d: ", i, c.rng.Uint64())+strings.Repeat("and then ", words/2), 2000), upload: 1,
		after: time.Duration(float64(time.Second) * shortest * math.Pow(longest/shortest, c.rng.Float64())),
	}
	if c.rng.IntN(10) == 0 {
		g.upload = c.rng.Float64()
	}
	return g
}

// play returns what the client had when it went.
func (g *going) play(ctx context.Context, client *http.Client, addr string) string {
	ctx, cancel := context.WithTimeout(ctx, g.after)
	defer cancel()
	body, w := io.Pipe()
	defer w.Close()
	// Over HTTP/1.1 the transport waits for the end of a write, which waits for the body.
	defer context.AfterFunc(ctx, func() { w.CloseWithError(ctx.Err()) })()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+g.request.path, body)
	if err != nil {
		return err.Error()
	}
	req.Header, req.ContentLength = g.request.header, int64(len(g.request.body))
	part := g.request.body[:int(g.upload*float64(len(g.request.body)))]
	go func() {
		_, _ = w.Write(part)
		if g.upload == 1 {
			w.Close()
		}
	}()
	resp, err := client.Do(req)
	if err != nil {
		return "nothing"
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Sprint(resp.StatusCode)
	}
	if n, err := io.Copy(io.Discard, resp.Body); err == nil {
		return fmt.Sprintf("a whole answer of %d bytes", n)
	}
	return "a part"
}
