package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// conformanceCache names the folder in which deploy/conformance/setup installed a real vLLM.
const conformanceCache = "KVMESH_CONFORMANCE_CACHE"

// realEngine is one way to start it.
type realEngine struct {
	name   string
	block  int
	blocks int
	env    []string
	args   []string
}

func realEngines() []realEngine {
	return []realEngine{
		{"b32_sha256", 32, 400, nil, []string{"--prefix-caching-hash-algo", "sha256"}},
		{"b128_cbor", 128, 100, nil, []string{"--prefix-caching-hash-algo", "sha256_cbor"}},
		{"b32_bytes", 32, 400, []string{"VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0"}, []string{"--prefix-caching-hash-algo", "xxhash_cbor"}},
	}
}

const (
	conformanceTurns  = 300
	conformancePrompt = 50
	realStart         = 8 * time.Minute // on a slow machine
)

// checkConformance runs a real vLLM beside an agent. What it holds of a prompt shows only when the prompt is sent: so each
// estimate is compared with the cached tokens that the engine then reports.
func checkConformance(ctx context.Context, h *check.Harness) error {
	dir := os.Getenv(conformanceCache)
	if dir == "" {
		return errors.New("no real engine is installed: run deploy/conformance/run")
	}
	for i, e := range realEngines() {
		if h.Short && i > 0 {
			break
		}
		c := conformance{h: h, dir: dir, engine: e, figure: "conformance_" + e.name, rng: rand.New(rand.NewPCG(50, 1))}
		if err := c.run(ctx, i == 0); err != nil {
			h.Figures.Broken(c.figure, err)
		}
	}
	return ctx.Err()
}

// conformance is one run at one real engine.
type conformance struct {
	h      *check.Harness
	dir    string
	engine realEngine
	figure string
	rng    *rand.Rand
	addr   string // of the engine
	proc   *check.Process
	p      *player
}

func (c *conformance) run(ctx context.Context, restart bool) (err error) {
	if c.addr, err = c.threePorts(ctx); err != nil {
		return err
	}
	if err := c.start(ctx); err != nil {
		return err
	}
	defer func() { c.stop() }()
	r, err := startRig(ctx, c.h, plan{external: c.addr})
	if err != nil {
		return err
	}
	defer r.close()
	version, err := r.get("http://" + c.addr + "/version")
	if err != nil {
		return err
	}
	c.h.Say("%s: vLLM %s, blocks of %d, %v %v", c.figure, bytes.TrimSpace(version), c.engine.block, c.engine.args, c.engine.env)
	m := &mix{writer: newWriter(51, 0.2, 24), streams: 0.5, salts: 0.2, rng: rand.New(rand.NewPCG(51, 2)), chats: 10_000}
	m.writer.most = 1500
	c.p = &player{r: r, node: r.nodes[0], mix: m, lone: true}
	if err := c.p.awaitEvents(); err != nil {
		return err
	}
	steps := []func(context.Context) error{c.traffic, c.again, c.parted, c.identical, c.cleared}
	if restart {
		steps = append(steps, c.restarted)
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return c.p.learning(c.figure)
}

// threePorts returns an address whose next two ports are free too: those of KV events and their replay.
func (c *conformance) threePorts(ctx context.Context) (string, error) {
	for range 100 {
		addr, err := c.h.Ports.Addr(ctx)
		if err != nil {
			return "", err
		}
		port := portOf(addr)
		one, err1 := c.h.Ports.Addr(ctx)
		two, err2 := c.h.Ports.Addr(ctx)
		if err := errors.Join(err1, err2); err != nil {
			return "", err
		}
		if portOf(one) == port+1 && portOf(two) == port+2 {
			return addr, nil
		}
	}
	return "", errors.New("find three free ports in a row")
}

func portOf(addr string) int {
	_, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(port) // an address of ours
	return n
}

// start starts the engine and waits until it answers.
func (c *conformance) start(ctx context.Context) (err error) {
	e := c.engine
	log := filepath.Join(c.h.Dir, c.figure+".log")
	args := append([]string{
		filepath.Join(c.h.Root, "deploy", "conformance", "serve"), c.dir, strconv.Itoa(portOf(c.addr)), strconv.Itoa(e.block), strconv.Itoa(e.blocks),
	}, e.args...)
	c.proc, err = c.h.StartCommand(ctx, check.Command{Dir: c.h.Root, Args: args, Env: e.env, Log: log, Group: true}, "vllm")
	if err != nil {
		return err
	}
	begin := time.Now()
	probe := &rig{ctx: ctx, client: newClient()}
	words, ended := "", false
	err = check.Await(ctx, realStart, "vLLM to answer", func() bool {
		if words, ended = c.proc.Ended(); ended {
			return true
		}
		_, err := probe.get("http://" + c.addr + "/health")
		return err == nil
	})
	if ended {
		err = fmt.Errorf("vLLM ended: %s", words)
	}
	c.h.Say("%s: vLLM answers after %.0f s", c.figure, time.Since(begin).Seconds())
	return err
}

// stop ends the engine as an operator does: it takes seconds, and its children end with it.
func (c *conformance) stop() {
	_ = c.proc.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-c.proc.Done:
	case <-time.After(30 * time.Second):
	}
	c.proc.Kill()
}

// traffic plays conversations with tools and salts, half of the answers as streams.
func (c *conformance) traffic(context.Context) error {
	turns := conformanceTurns
	if c.h.Short {
		turns /= 3
	}
	if err := c.p.play(turns); err != nil {
		return err
	}
	c.p.figures(c.figure, eventsBound)
	return nil
}

// resend sends a prompt once more, for a single token, and returns what was expected and what was cached.
func (c *conformance) resend(r request) (estimate, answer, error) {
	r.Stream, r.StreamOptions, r.MaxTokens = false, nil, 1
	time.Sleep(quiet / 4)
	body := r.body()
	e, err := c.p.r.estimate(c.p.node, body)
	if err != nil {
		return e, answer{}, err
	}
	a, err := c.p.r.chat(c.p.r.ctx, c.p.node.http, body, false)
	return e, a, err
}

// ends resends recent prompts: those whose rendering is known must be known in whole blocks.
func (c *conformance) ends(name, note string) error {
	known, wrong, held, first := 0, 0, 0, ""
	var off []float64
	recent := c.p.recent[max(0, len(c.p.recent)-conformancePrompt):]
	for _, r := range recent {
		e, a, err := c.resend(r)
		if err != nil {
			return err
		}
		if a.cached > 0 {
			held++
		}
		off = append(off, abs(e.Overlap-a.cached)/float64(a.prompt))
		if !e.Exact {
			continue
		}
		known++
		if e.Overlap/c.engine.block != a.cached/c.engine.block {
			wrong++
			if first == "" {
				first = fmt.Sprintf("; the first: estimate %+v, cached %d of %d", e, a.cached, a.prompt)
			}
		}
	}
	c.h.Figures.Zero(c.figure+"_"+name+"_wrong", float64(wrong),
		"of %d prompts sent before, %s, %d whose rendering is known; %d found something cached; mean error over all %.4f%s",
		len(recent), note, known, held, mean(off), first)
	return nil
}

func (c *conformance) again(context.Context) error { return c.ends("prompt_ends", "sent again") }

// parted sends prompts that part from recent ones where a key ends.
func (c *conformance) parted(context.Context) error {
	layout, err := c.p.layout()
	if err != nil {
		return err
	}
	var s spread
	for i := range conformancePrompt {
		sent := c.p.recent[len(c.p.recent)-1-i%len(c.p.recent)]
		rest := c.p.mix.writer.prose(60)
		e, a, err := c.resend(randomPlace(&sent, c.rng).boundary(layout, &sent, rest).variant(&sent, rest))
		if err != nil {
			return err
		}
		s.add(c.engine.block, e, truth{Prompt: a.prompt, Hit: a.cached, Resident: a.cached})
	}
	c.h.Figures.AtMost(c.figure+"_too_high_share", float64(s.farPositions)/float64(len(s.positions)), 2*maxFar,
		"of %d positions, those believed more than max(1 block, 2 %% of the prompt) above what was cached; of %d prompts that part from a recent one %d; the worst %d blocks%s",
		len(s.positions), s.n, s.far, s.past, s.worst)
	c.h.Figures.AtMost(c.figure+"_difference_mean", s.sum/float64(s.n), 1, "of |estimate − cached| ÷ max(1 block, 2 %% of the prompt), %.3f of it too high", s.over/float64(s.n))
	return nil
}

// identical streams prompts of new text through the agent and, from an empty cache as well, twice from the engine itself.
// Where those two differ the engine is not deterministic. Nor are its chunks: tokens that are ready at the same time share
// one, so the texts of neighbouring chunks are put together.
func (c *conformance) identical(ctx context.Context) error {
	r, unsteady, sum := c.p.r, 0, identity{}
	const streams = 30
	for i := range streams {
		req := c.p.mix.writer.chat(1).request
		shape(&req, i)
		zero, seed := 0.0, 7
		req.Temperature, req.Seed, req.N = &zero, &seed, 0
		var got [3]answer
		for k, addr := range []string{c.p.node.http, c.addr, c.addr} {
			if _, err := r.post(ctx, "http://"+c.addr+"/reset_prefix_cache", nil); err != nil {
				return err
			}
			var err error
			if got[k], err = r.stream(addr, &req); err != nil {
				return err
			}
		}
		switch {
		case !bytes.Equal(merged(got[1].raw), merged(got[2].raw)):
			unsteady++
		default:
			sum.add(&req, merged(got[0].raw), merged(got[1].raw))
		}
	}
	c.h.Figures.Zero(c.figure+"_different", float64(sum.different), "of %d streams that were the same twice from the engine itself, and %d that were not; %d asked for usage%s",
		sum.all, unsteady, sum.usage, sum.first)
	return nil
}

// cleared empties the cache while nothing runs: vLLM tells only with the next request.
func (c *conformance) cleared(ctx context.Context) error {
	if err := c.p.play(conformancePrompt); err != nil {
		return err
	}
	if _, err := c.p.r.post(ctx, "http://"+c.addr+"/reset_prefix_cache", nil); err != nil {
		return err
	}
	return c.afterwards("cleared", "after the cache was cleared and one request had come")
}

// restarted ends the engine's process and starts another.
func (c *conformance) restarted(ctx context.Context) error {
	c.stop()
	if err := c.start(ctx); err != nil {
		return err
	}
	err := check.Await(ctx, 20*time.Second, "the agent to see the engine again", c.p.r.ready)
	if err != nil {
		return err
	}
	return c.afterwards("restarted", "after another process of the engine had begun and one request had come")
}

// afterwards sends one new prompt and looks, within 2 s, at what is believed of the old ones: nothing of them is left but
// the text that they share with it.
func (c *conformance) afterwards(name, note string) error {
	w := c.p.mix.writer
	fresh := request{Model: model, MaxTokens: 1, Messages: []message{{Role: "user", Content: "fresh " + w.prose(1000)}}}
	recent := c.p.recent
	err := check.Await(c.p.r.ctx, 10*time.Second, "an answer", func() bool {
		_, err := c.p.r.chat(c.p.r.ctx, c.p.node.http, fresh.body(), false)
		return err == nil
	})
	if err != nil {
		return err
	}
	begin, left := time.Now(), 0
	for time.Since(begin) < 5*time.Second {
		left = 0
		for i := range recent {
			e, err := c.p.r.estimate(c.p.node, recent[i].body())
			if err != nil {
				return err
			}
			if e.Overlap >= c.engine.block {
				left++
			}
		}
		if left == 0 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	c.h.Figures.AtMost(c.figure+"_"+name+"_seconds", time.Since(begin).Seconds(), 2, "%s, until nothing of %d prompts is believed to be there; %d are at last", note, len(recent), left)
	return c.ends(name+"_ends", note)
}

var content = regexp.MustCompile(`("delta":\{(?:"role":"assistant",)?"content":")((?:[^"\\]|\\.)*)(")`)

// merged takes the texts out of a stream's events and puts them together behind it: where an answer is cut into chunks is a
// matter of time. Of neighbouring events that are then the same, one is left.
func merged(stream []byte) []byte {
	var out, last, text []byte
	for event := range bytes.SplitAfterSeq(normal(stream), []byte("\n\n")) {
		if m := content.FindSubmatch(event); m != nil {
			text = append(text, m[2]...)
			event = content.ReplaceAll(event, []byte("$1$3"))
			if bytes.Equal(event, last) {
				continue
			}
		}
		out, last = append(out, event...), event
	}
	return append(out, text...)
}

func abs(n int) float64 { return float64(max(n, -n)) }
