package engineagent

import (
	"fmt"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// Notes returns what an operator should know and could mend, in words, none when all is well.
func (a *Agent) Notes() []string {
	stats := a.eventStats()
	a.mu.Lock()
	defer a.mu.Unlock()
	var notes []string
	add := func(format string, args ...any) {
		notes = append(notes, fmt.Sprintf("engine %s ", a.cfg.ID.Name())+fmt.Sprintf(format, args...))
	}
	if !a.life.up {
		return nil // that it is down is told elsewhere
	}
	if s := a.Standing(); s.Ejected || s.Returning || s.Quiet {
		add("%s", standingNote(&s))
	}
	if words := a.evidenceNoteLocked(); words != "" {
		add("%s", words)
	}
	if !a.reuses {
		add("keeps no prefix cache: requests are routed to it by load alone")
	}
	switch {
	case a.cfg.Events.Off:
	case a.events.complaint != "":
		add("tells its KV events where they cannot be followed: %s", a.events.complaint)
	case !a.events.followed && a.reuses && (a.engine.Kind != engine.KindTRTLLM || a.asked): // which tells none at rest
		if advice := eventAdvice(a.engine.Kind); advice != "" {
			add("tells no KV events, so what it holds is guessed: %s", advice)
		}
	case stats.connected < stats.sources:
		add("cannot be followed: %d of %d sources of KV events are connected", stats.connected, stats.sources)
	case a.events.lost > 0 && a.cfg.Now().Sub(a.events.lostAt) < lostNews:
		add("lost KV events at %s UTC and was counted as empty then (%d times so far): %s",
			a.events.lostAt.UTC().Format(time.TimeOnly), a.events.lost, a.events.lostWhy)
	}
	if stats.skipped > 0 {
		add("told %d KV events that were not understood and left out: it may be of a newer release than this agent knows", stats.skipped)
	}
	if a.blocks != nil && a.blocks.Stats().Unverified {
		add("has a cache group of an unknown kind: its overlap is scaled by what it reports")
	}
	for _, words := range a.capability.advice(a.events.followed) {
		add("%s", words)
	}
	if a.blocks != nil && a.blocks.BlockTokens() == 1 && a.engine.Kind != engine.KindSGLang {
		add("sends one KV event for each token: larger blocks cost less")
	}
	if a.unstableLocked() {
		add("renders a conversation anew in each turn: its prompts share little of their beginning, and are routed by load alone")
	}
	return notes
}

// lostNews is how long a loss of KV events is told: what was empty then is filled again, and the metric counts.
const lostNews = time.Hour

// evidenceNoteLocked says what is missing for every answer to check what was predicted of it, "" when nothing is. SGLang
// says itself which flags it has: see capability.advice.
func (a *Agent) evidenceNoteLocked() string {
	switch {
	case a.evidence.silent < maxSilent:
		return ""
	case a.evidence.source == engine.EvidenceNone:
		return "is unverified: it reports no cached tokens: " + evidenceAdvice(a.engine.Kind)
	case a.engine.Kind == engine.KindVLLM:
		return "reports cached tokens in its metrics only, for all prompts together: " + evidenceAdvice(a.engine.Kind)
	}
	return ""
}

// evidenceAdvice says what makes an engine of the kind report cached tokens.
func evidenceAdvice(k engine.Kind) string {
	switch k {
	case engine.KindVLLM:
		return "start it with --enable-prompt-tokens-details"
	case engine.KindSGLang:
		return "start it with --enable-cache-report --enable-metrics"
	case engine.KindTRTLLM, engine.KindOther:
	}
	return "nothing can check what is predicted of it"
}

// eventAdvice says what makes an engine of the kind tell its KV events.
func eventAdvice(k engine.Kind) string {
	const zmq = `"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657"}'`
	switch k {
	case engine.KindVLLM:
		return `start it with --kv-events-config '{"enable_kv_cache_events":true,` + zmq
	case engine.KindSGLang:
		return `start it with --page-size 16 --kv-events-config '{` + zmq
	case engine.KindTRTLLM:
		return "set event_buffer_max_size in its kv_cache_config"
	case engine.KindOther: // has none
	}
	return ""
}
