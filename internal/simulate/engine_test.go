package simulate

import (
	"testing"
	"time"
)

func TestFIFOServesOnePromptAtATime(t *testing.T) {
	w := bench(t, "oracle", 1, MachineFIFO)
	a, b := w.ask(100, 4, 11), w.ask(200, 2, 1)
	log := w.give(a, b)
	w.drain()
	// 2,048 tokens: 0.015 + 0.128 × (1 + 1,024/65,536).
	first := 0.015 + 0.128*(1+1024.0/65536)
	// 1,024 tokens beside one decoding request: 0.015 + 0.064 × (1 + 512/65,536) × 1.004.
	second := first + 0.015 + 0.064*(1+512.0/65536)*1.004
	// Ten more tokens at 20.1 ms; half slower while the other prompt is prefilled.
	tokens := (second - first) / (0.0201 * 1.5)
	end := second + (10-tokens)*0.0201
	if !near(log.began[a], first) || !near(log.began[b], second) || !near(log.ended[b], second) || !near(log.ended[a], end) {
		t.Errorf("first tokens at %v and %v, ends at %v and %v; want %.6f, %.6f, %.6f, %.6f",
			log.began[a], log.began[b], log.ended[a], log.ended[b], first, second, end, second)
	}
}

func TestFIFOReusesBlocksOncePrefilled(t *testing.T) {
	w := bench(t, "oracle", 1, MachineFIFO)
	a, b, c := w.ask(100, 4, 1), w.ask(100, 4, 1), w.ask(100, 8, 1)
	b.chain = append(b.chain, 900)
	b.input += traceBlockTokens
	log := w.give(a, b)
	w.drain()
	// All but the fifth block is there when the second prefill begins, though not when it was accepted.
	first := 0.015 + 0.128*(1+1024.0/65536)
	second := first + 0.015 + 0.032*(1+(2560-256.0)/65536)
	if !near(log.began[b], second) {
		t.Errorf("second prompt took until %v; want %.6f", log.began[b], second)
	}
	w.nodes[0].accept(c)
	if c.newTokens != 4*traceBlockTokens {
		t.Errorf("the owner expects %d new tokens; want %d", c.newTokens, 4*traceBlockTokens)
	}
}

func TestSlowEngineTakesLonger(t *testing.T) {
	w := bench(t, "oracle", 1, MachineFIFO)
	w.nodes[0].machine.(*fifo).speed = 0.5
	a := w.ask(100, 4, 2)
	log := w.give(a)
	w.drain()
	first := 2 * (0.015 + 0.128*(1+1024.0/65536))
	if !near(log.began[a], first) || !near(log.ended[a], first+2*0.0201) {
		t.Errorf("first token at %v, end at %v; want %.6f and %.6f", log.began[a], log.ended[a], first, first+2*0.0201)
	}
}

func TestStepEngineMixesPrefillAndDecode(t *testing.T) {
	w := bench(t, "oracle", 1, MachineStep)
	w.nodes[0].cache.capacity = 1000
	a := w.ask(1000, 256, 3) // 4,096 tokens: two steps of 2,048
	log := w.give(a)
	w.drain()
	// 0.256 + 0.256 s of prefill give the first token, then two steps of 6.35 ms.
	if !near(log.began[a], 0.512) || !near(log.ended[a], 0.512+2*0.00635) {
		t.Errorf("first token at %v, end at %v; want 0.512 and 0.5247", log.began[a], log.ended[a])
	}
	b, c := w.ask(1000, 256, 1), w.ask(5000, 64, 1)
	at := w.now
	log = w.give(b, c)
	w.drain()
	// b is there but for its last token, which is computed in a step of 6 ms; c came while that ran, and takes 1,024 / 8,000 s.
	if !near(log.began[b]-at, 0.006) || !near(log.began[c]-at, 0.006+0.128) {
		t.Errorf("first tokens after %v and %v; want 6 ms and 134 ms", log.began[b]-at, log.began[c]-at)
	}
}

func TestStepEngineKeepsBlocksOfAnswers(t *testing.T) {
	w := bench(t, "oracle", 1, MachineStep)
	a := w.ask(1000, 4, 40)
	a.answer = append(a.answer, 2000, 2001)
	w.give(a)
	w.drain()
	n := w.nodes[0]
	if got := n.cache.match([]block{1000, 1001, 1002, 1003, 2000, 2001}); got != 6 {
		t.Errorf("%d blocks of prompt and answer are resident; want 6", got)
	}
	if n.cache.reserved != 0 || n.cache.idle != 6 {
		t.Errorf("%d blocks reserved, %d unpinned after the end; want 0 and 6", n.cache.reserved, n.cache.idle)
	}
}

func TestStepEngineEmptiesItsCacheToTheLowMark(t *testing.T) {
	w := bench(t, "oracle", 1, MachineStep) // 200 blocks
	var log *times
	for i := range 10 {
		log = w.give(w.ask(block(1000+100*i), 20, 1))
		w.drain()
	}
	// The tenth prompt would fill the cache to 200 blocks: above 184, down to 170.
	if used := w.nodes[0].cache.used(); used != 170 {
		t.Errorf("%d blocks in use; want 170", used)
	}
	if len(log.ended) != 1 {
		t.Error("the last request did not end")
	}
}

func TestPromptLongerThanTheCacheIsServedWithoutIt(t *testing.T) {
	for _, machine := range []Machine{MachineFIFO, MachineStep} {
		w := bench(t, "oracle", 1, machine)
		long, after := w.ask(1000, 300, 1), w.ask(5000, 2, 1)
		log := w.give(long, after)
		w.drain()
		if n := w.nodes[0]; len(log.ended) != 2 || len(n.cache.at) != 2 || n.cache.reserved != 0 {
			t.Errorf("%s: %d of 2 served, %d blocks resident, %d reserved", machine, len(log.ended), len(n.cache.at), n.cache.reserved)
		}
	}
}

func TestOwnersQueueLetsTheShorterOneGoFirst(t *testing.T) {
	w := bench(t, "best-exact", 1, MachineFIFO)
	long, longer, short := w.ask(100, 20, 1), w.ask(200, 30, 1), w.ask(300, 1, 1)
	log := w.give(long, longer, short)
	w.drain()
	if log.began[long] >= log.began[short] || log.began[short] >= log.began[longer] {
		t.Errorf("first tokens at %v, %v and, of the short one, %v", log.began[long], log.began[longer], log.began[short])
	}
}

func TestDeadEngineGivesItsRequestsBack(t *testing.T) {
	for _, machine := range []Machine{MachineFIFO, MachineStep} {
		w := bench(t, "best-exact", 1, machine)
		w.give(w.ask(100, 20, 1), w.ask(200, 30, 1), w.ask(300, 1, 1))
		n := w.nodes[0]
		w.now = time.Millisecond
		if lost := n.die(); len(lost) != 3 || n.inFlight != 0 || n.queued != 0 || n.book.Booked() != 0 {
			t.Errorf("%s: %d requests lost, %d in flight, %d tokens queued, %d booked", machine, len(lost), n.inFlight, n.queued, n.book.Booked())
		}
		n.born()
		log := w.give(w.ask(400, 1, 1))
		w.drain()
		if len(log.ended) != 1 {
			t.Errorf("%s: an engine that is back does not serve", machine)
		}
	}
}
