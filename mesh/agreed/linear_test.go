package agreed

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
)

var histories = flag.Int("histories", 2, "histories of TestHistoriesAreLinearizable")

// operation is what a client asked for: the policy text is a register, whose texts are all different.
type operation struct {
	kind string // "write", "swap" or "read"
	text string // that is written
	old  string // that a swap is based on
}

// outcome is what it was told.
type outcome struct {
	kind string // "done", "conflict" or "unknown"
	text string // that was read
}

// register says what may follow on a text. What ended in an unknown way came to be at some time, or did not.
var register = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{""} },
	Step: func(state, input, output any) []any {
		now, in, out := state.(string), input.(operation), output.(outcome)
		switch {
		case in.kind == "read":
			return when(out.text == now, now)
		case out.kind == "conflict":
			return when(in.old != now, now)
		case out.kind == "unknown" && (in.kind == "write" || in.old == now):
			return []any{now, in.text}
		case out.kind == "unknown":
			return []any{now}
		}
		return when(in.kind == "write" || in.old == now, in.text)
	},
	Equal:             func(a, b any) bool { return a == b },
	DescribeOperation: func(input, output any) string { return fmt.Sprint(input, " ", output) },
}).ToModel()

func when(ok bool, state any) []any {
	if ok {
		return []any{state}
	}
	return nil
}

// recorder numbers calls and returns in the order in which they happened.
type recorder struct {
	clock atomic.Int64
	mu    sync.Mutex
	all   []porcupine.Operation
}

func (r *recorder) record(client int, in operation, do func() outcome) {
	call := r.clock.Add(1)
	out := do()
	end := r.clock.Add(1)
	switch {
	case out.kind == "unknown" && in.kind == "read":
		return // says nothing
	case out.kind == "unknown":
		end = 1 << 60 // it may come to be at any time from now on
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: end})
}

// client writes, swaps and reads on agents by chance until the time is over.
func (c *cluster) client(id int, r *recorder, rng *rand.Rand, until time.Time) {
	read := State{}
	for n := 0; time.Now().Before(until); n++ {
		all := c.running()
		g := c.group(all[rng.IntN(len(all))])
		if g == nil {
			continue
		}
		text := fmt.Sprint(id, "-", n)
		switch cmd := policy(text, text); rng.IntN(3) {
		case 0:
			r.record(id, operation{kind: "write", text: text}, func() outcome { return c.write(g, *cmd) })
		case 1:
			cmd.BasedOn = read.Policy.Index
			if cmd.BasedOn > 0 {
				r.record(id, operation{"swap", text, read.Policy.Text}, func() outcome { return c.write(g, *cmd) })
			}
		default:
			r.record(id, operation{kind: "read"}, func() outcome {
				s, err := g.Read(c.t.Context())
				if err != nil {
					return outcome{kind: "unknown"}
				}
				read = *s
				return outcome{"done", s.Policy.Text}
			})
		}
		time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
	}
}

func (c *cluster) write(g *Group, cmd Command) outcome {
	r, err := g.Propose(c.t.Context(), cmd)
	switch {
	case err == nil:
		return outcome{kind: "done"}
	case errors.Is(err, ErrRefused) && r.Refusal == RefusedConflict:
		return outcome{kind: "conflict"}
	}
	return outcome{kind: "unknown"}
}

// trouble cuts, kills and heals until the time is over.
func (c *cluster) trouble(rng *rand.Rand, until time.Time) {
	all := c.running()
	for time.Now().Before(until) {
		time.Sleep(time.Duration(1000+rng.IntN(4000)) * time.Millisecond)
		switch rng.IntN(5) {
		case 0, 1:
			side := []string{}
			for _, name := range all {
				if rng.IntN(2) == 0 {
					side = append(side, name)
				}
			}
			c.partition(side)
		case 2:
			c.partition()
		case 3:
			if len(c.running()) > 2 {
				c.killAgent(all[rng.IntN(len(all))])
			}
		case 4:
			c.startDead(all)
		}
	}
	c.partition()
	c.startDead(all)
}

func (c *cluster) startDead(all []string) {
	for _, name := range all {
		if c.group(name) == nil {
			c.start(name)
		}
	}
}

func TestHistoriesAreLinearizable(t *testing.T) {
	verdicts, operations := map[porcupine.CheckResult]int{}, 0
	for range *histories {
		seed := rand.Uint64()
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			var history []porcupine.Operation
			synctest.Test(t, func(t *testing.T) { history = recordHistory(t, seed) })
			verdicts[judge(t, history)]++
			operations += len(history)
		})
	}
	t.Logf("figure histories_linearizable %d histories", verdicts[porcupine.Ok])
	t.Logf("figure histories_not_linearizable %d histories", verdicts[porcupine.Illegal])
	t.Logf("figure histories_not_judged %d histories", verdicts[porcupine.Unknown])
	t.Logf("figure histories_operations %d operations", operations)
}

// recordHistory returns what clients did in a minute.
func recordHistory(t *testing.T, seed uint64) []porcupine.Operation {
	c, r := newCluster(t), &recorder{}
	c.found(5)
	until := time.Now().Add(time.Minute)
	var wg sync.WaitGroup
	for id := range 4 {
		wg.Go(func() { c.client(id, r, rand.New(rand.NewPCG(seed, uint64(id))), until) })
	}
	wg.Go(func() { c.trouble(rand.New(rand.NewPCG(seed, 99)), until) })
	wg.Wait()
	c.await(20*time.Second, "a leader after all is healed", func() bool {
		_, err := c.group("v1").Propose(t.Context(), *policy("last", "last"))
		return err == nil
	})
	c.await(10*time.Second, "one state", func() bool { return c.everywhere("last") })
	return r.all
}

// judge looks for an order that explains a history. It is no part of the simulation, whose time stands still meanwhile, so
// that the search would have no bound: that for a history without such an order can take for ever.
func judge(t *testing.T, history []porcupine.Operation) porcupine.CheckResult {
	verdict := porcupine.CheckOperationsTimeout(register, history, time.Minute)
	unknown := 0
	for _, op := range history {
		if op.Output.(outcome).kind == "unknown" {
			unknown++
		}
	}
	t.Logf("%d operations, %d of unknown outcome: %s", len(history), unknown, verdict)
	if verdict == porcupine.Illegal || len(history) < 50 || unknown == len(history) {
		t.Errorf("history of %d operations is %s", len(history), verdict)
	}
	if verdict == porcupine.Unknown {
		t.Error("the history could not be checked in time")
	}
	return verdict
}
