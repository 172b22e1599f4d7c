package simcluster

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"
)

// load is a steady stream of chat requests through several agents. Half of the prompts begin with one of a few system
// messages, so that decisions go by digests; the others are new, so that digests change.
type load struct {
	c       *Cluster
	rng     *rand.Rand
	systems []string
	cancel  context.CancelFunc // nil while it is off
	wg      sync.WaitGroup     // the loop and the requests under way

	mu      sync.Mutex
	up      map[int]func() bool // of agents that clients send to: whether it was ready once since its start
	replies []reply
}

// reply is one request of a load and how it went.
type reply struct {
	*exchange
	owner   int    // the agent whose engine answered; -1 for none
	problem string // what is wrong with it; "" when it is whole
	claimed int    // tokens of overlap that it was sent there for, above those that the engine had
}

func newLoad(c *Cluster) *load {
	l := &load{c: c, rng: c.Rand(), up: map[int]func() bool{}}
	for i := range c.agents {
		if c.Running(i) {
			l.use(i)
		}
	}
	for n := range uint64(8) {
		l.systems = append(l.systems, text(1000+n, 8000))
	}
	return l
}

// use has clients send to agent i, which starts, from when it is ready. Where a load balancer stands before the agents, it
// knows.
func (l *load) use(i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ready, was := l.c.agents[i].node.Ready, false
	l.up[i] = func() bool {
		was = was || ready()
		return was
	}
}

// avoid has clients send nothing more to agent i.
func (l *load) avoid(i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.up, i)
}

// on sends rate requests a second to agents in turn, to those that can be used.
func (l *load) on(rate float64, agents []int) {
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	l.wg.Go(func() {
		tick := time.NewTicker(time.Duration(float64(time.Second) / rate))
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if i := agents[n%len(agents)]; l.usable(i) {
				body := l.prompt()
				l.wg.Go(func() { l.keep(l.c.exchange(context.Background(), i, body)) })
			}
		}
	})
}

// off ends the load and waits for the answers.
func (l *load) off() {
	if l.cancel != nil {
		l.cancel()
	}
	l.wg.Wait()
	l.cancel = nil
}

func (l *load) usable(i int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.up[i]
	return was != nil && was()
}

func (l *load) prompt() string {
	seed := l.rng.Uint64()
	if l.rng.IntN(2) == 0 {
		return ChatBody("", text(seed, 3000))
	}
	return ChatBody(l.systems[l.rng.IntN(len(l.systems))], text(seed, 200))
}

// keep keeps what matters of a request. Answers of ten minutes would take some memory.
func (l *load) keep(x *exchange) {
	r := reply{exchange: x, owner: -1, problem: x.fault()}
	if x.answer != nil {
		for j := range l.c.config.Agents {
			if x.answer.Engine() == EngineID(j) {
				r.owner = j
			}
		}
		r.claimed = overclaimed(x.answer)
		x.answer = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.replies = append(l.replies, r)
}

// all returns the replies that have come so far.
func (l *load) all() []reply {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.replies)
}

// overclaimed returns by how many tokens the overlap of the decision was above what the engine had cached.
func overclaimed(a *Answer) int {
	claim, err := strconv.Atoi(a.Header.Get("X-Kvmesh-Overlap"))
	_, after, found := bytes.Cut(a.Body, []byte(`"cached_tokens":`))
	if err != nil || !found {
		return 0
	}
	digits := bytes.IndexFunc(after, func(r rune) bool { return r < '0' || r > '9' })
	had, err := strconv.Atoi(string(after[:max(digits, 0)]))
	if err != nil {
		return 0
	}
	return max(0, claim-had)
}
