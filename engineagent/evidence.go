package engineagent

import (
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// evidence compares the overlap that was predicted with what the engine says it had cached, and holds the mirror's
// capacity to what turned out true.
type evidence struct {
	first     float64   // what trust begins with: 1, or 1/N for N ranks that cannot be addressed
	trust     float64   // share of the overlap predicted from KV events that turned out true, at most 1; running mean
	scale     float64   // share of the engine's KV capacity that the mirror may use. Invariant: minScale <= scale <= 1
	corrected time.Time // when scale was last lowered
	meanError float64   // predicted less reported, as a share of the prompt; running mean over 50 prompts
	source    engine.Evidence
	silent    int // usages in a row that told no cached tokens
	window    counterWindow
}

const (
	// shrinkBy and growBy: a belief in too much cache sends prompts to the wrong engine, a belief in too little only
	// misses some; so one refuted prediction weighs as much as fifty that came true.
	shrinkBy = 0.9
	growBy   = 0.002
	// raiseBy answers proof that the belief is too small.
	raiseBy = 1.05
	// minScale is low enough for a mirror that is wrong altogether to stop attracting, and high enough to notice when
	// it is right again.
	minScale = 0.05
	// trustRate is how fast trust follows: KV events are either right or systematically wrong, as with a cache group that
	// is not understood.
	trustRate = 1.0 / 32
)

// maxSilent is how many usages in a row may tell no cached tokens before they count as no evidence. SGLang leaves the
// field out when it is zero, so a few mean only that nothing was cached.
const maxSilent = 20

// heard notes whether the usage of a prompt with keys told its cached tokens.
func (e *evidence) heard(known bool) {
	switch {
	case known:
		e.source, e.silent = engine.EvidenceUsage, 0
	case e.silent < maxSilent:
		e.silent++
	case e.source == engine.EvidenceUsage:
		e.source = engine.EvidenceNone // counters may take its place
	}
}

// restarted forgets what the last process said and how true that was. The scale stays: it is what its cache, in the same
// memory, turned out to hold.
func (e *evidence) restarted() {
	e.source, e.silent, e.meanError, e.trust, e.window = engine.EvidenceNone, 0, 0, e.first, counterWindow{}
}

// prediction is what was believed about one prompt, or about all prompts of a window.
type prediction struct {
	made            time.Time
	overlap, prompt int  // tokens
	slack           int  // tokens by which blocks and averages may be off
	blocks          bool // it rests on KV events, not on the mirror
	sum             bool // of a window, at whose edges prompts may be counted on one side only
}

// judge corrects the scale by what the engine reports. A prediction made before the last correction is no evidence
// against it: a burst of prompts that share one wrong belief is one mistake.
func (e *evidence) judge(p prediction, cached int, now time.Time) {
	if p.prompt > 0 {
		e.meanError += (float64(p.overlap-cached)/float64(p.prompt) - e.meanError) / 50
	}
	if p.blocks {
		share := min(float64(cached)/float64(max(p.overlap, 1)), 1)
		if p.sum && p.overlap-cached <= p.slack {
			share = 1
		}
		e.trust += (share - e.trust) * trustRate
		return
	}
	// An eviction takes most of a prompt away; a text that is denser than the mean only some.
	if p.overlap-cached > max(p.slack, p.overlap/2) {
		if !p.made.Before(e.corrected) {
			e.scale = max(e.scale*shrinkBy, minScale)
			e.corrected = now
		}
		return
	}
	switch {
	case cached-p.overlap > max(p.slack, cached/2): // what was given up is still there
		e.scale = min(e.scale*raiseBy, 1)
	case p.overlap > 0:
		e.scale = min(e.scale+growBy, 1)
	}
}

// counterPeriod is how long counters are gathered before they are judged: long enough for several prompts, so that the
// one at the edge of the window matters little.
const counterPeriod = 10 * time.Second

// counterWindow sums predictions between two readings of an engine whose answers carry no evidence.
type counterWindow struct {
	since     time.Time // zero when not begun
	hits      float64   // the engine's counter then
	predicted int       // overlap of the prompts that got their first content since
	blocks    int       // of that, what rests on KV events
	prompt    int       // their length
	foreign   bool      // prompts without a prediction were counted too
}

func (w *counterWindow) add(overlap, prompt int, blocks bool) {
	w.predicted += overlap
	w.prompt += prompt
	if blocks {
		w.blocks += overlap
	}
}

// close returns the window's prediction and the tokens that were cached, once it is long enough and only our own.
func (w *counterWindow) close(hits float64, now time.Time) (p prediction, cached int, ok bool) {
	if !w.since.IsZero() && now.Sub(w.since) < counterPeriod {
		return prediction{}, 0, false
	}
	p = prediction{
		made: w.since, overlap: w.predicted, prompt: w.prompt, slack: max(1024, w.prompt/10),
		blocks: 2*w.blocks > w.predicted, sum: true,
	}
	ok = !w.since.IsZero() && !w.foreign && w.prompt > 0 && hits >= w.hits
	cached = clampInt(hits-w.hits, 1<<40)
	*w = counterWindow{since: now, hits: hits}
	return p, cached, ok
}
