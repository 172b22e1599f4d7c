// Package engine is the leaf vocabulary of kvmesh: what an engine is called, what its owner says about it, and what
// delays the next request on it. It holds values and their wire form only; it does no I/O and keeps no state, so every
// other package may import it.
package engine

import (
	"slices"
	"strings"
)

// ID names one engine in the whole mesh: "AGENT/NAME", the name of its owner and the engine's own name there.
type ID string

// MakeID joins an agent's name and an engine's name.
func MakeID(agent, name string) ID { return ID(agent + "/" + name) }

// Agent returns the name of the engine's owner.
func (id ID) Agent() string {
	agent, _, _ := strings.Cut(string(id), "/")
	return agent
}

// Name returns the engine's name at its owner.
func (id ID) Name() string {
	_, name, _ := strings.Cut(string(id), "/")
	return name
}

// Generation is one life of an engine's cache: a restart begins the next. Generations of one engine only grow; they
// are made from the owner's wall clock, so that a restarted owner also begins a higher one.
type Generation uint64

// Kind is the software that an engine runs.
type Kind string

// The kinds of engine whose wire facts kvmesh knows. Any other server that speaks the OpenAI API is KindOther.
const (
	KindVLLM   Kind = "vllm"
	KindSGLang Kind = "sglang"
	KindTRTLLM Kind = "trtllm"
	KindOther  Kind = "other"
)

// Model is one model that an engine serves. The canonical name is what every engine of the mesh calls it in prompt
// keys; aliases are the other names under which this engine answers for it.
type Model struct {
	Name       string
	Aliases    []string
	MaxContext int // tokens; 0 when the engine does not say

	// Layout says where the engine renders what, as internal/openai's Layout, when HasLayout: it was found by asking.
	Layout    uint16
	HasLayout bool
}

// Answers reports whether name is the model's canonical name or one of its aliases.
func (m Model) Answers(name string) bool { return m.Name == name || slices.Contains(m.Aliases, name) }

// Engine is what an owner says about one of its engines: facts that change slowly and travel in announcements.
type Engine struct {
	ID             ID
	Kind           Kind
	Generation     Generation
	Models         []Model
	BlockTokens    int   // tokens in a block; 0 when unknown
	CapacityTokens int64 // KV cache size in tokens; 0 when unknown
	MaxRunning     int   // requests the engine runs at once; 0 when unknown

	Residency Residency // what its digests rest on
	Evidence  Evidence  // what they are checked by
	Scale     float64   // share of a claimed overlap that turns out true, in steps of a sixteenth; 0 when nothing is known
	Unstable  bool      // it renders conversations anew in each turn, so that residency is of little use

	Zone string // where it stands, in the operator's words; at most MaxZone bytes; "" when nobody said
}

// OverlapScale returns the share of a claimed overlap that can be counted on, above 0 and at most 1.
func (e *Engine) OverlapScale() float64 {
	if e.Scale == 0 {
		return 1
	}
	return e.Scale
}

// Unverified reports whether nothing checks what the engine's digests claim.
func (e *Engine) Unverified() bool { return e.Residency != ResidencyNone && e.Evidence == EvidenceNone }

// Residency is how an owner knows what its engine holds.
type Residency uint8

// The ways.
const (
	ResidencyNone   Residency = iota // it keeps no prefix cache
	ResidencyMirror                  // its owner imitates it
	ResidencyEvents                  // it tells
	numResidencies
)

// String returns the word for r in status and metrics.
func (r Residency) String() string { return [...]string{"none", "mirror", "events"}[r] }

// Evidence is what predictions of cached tokens are checked by.
type Evidence uint8

// The kinds of evidence.
const (
	EvidenceNone     Evidence = iota // nothing: the engine is unverified
	EvidenceCounters                 // sums from its metrics
	EvidenceUsage                    // each answer's usage
	numEvidences
)

// String returns the word for e in status and metrics.
func (e Evidence) String() string { return [...]string{"none", "counters", "usage"}[e] }

// Serves returns the model that answers to name.
func (e *Engine) Serves(name string) (Model, bool) {
	for _, m := range e.Models {
		if m.Answers(name) {
			return m, true
		}
	}
	return Model{}, false
}

// Flags are the states of an engine that take it out of, or change, a decision.
type Flags uint8

// The flags of a Load.
const (
	Down     Flags = 1 << iota // the engine does not answer its owner
	Draining                   // cordoned: no new requests
	Full                       // waiting while KV usage >= 0.95, or running at the engine's maximum
	// Ejected takes nothing while others can serve: its owner finds it broken, or it returns and has as many requests as it
	// may for now.
	Ejected
)

// Load is what delays the next request on an engine, as its owner sees it at one moment.
type Load struct {
	Seq           uint64  // grows with every reading of one owner; an older Load never replaces a newer one
	QueuedSeconds float64 // prefill queued at the engine, in its own seconds, less what is done
	InFlight      int     // requests booked or reported, waiting ones included
	Waiting       int     // requests without a first token yet
	KVUsage       float64 // share of KV blocks in use, 0 to 1
	PrefillRate   float64 // learned prefill speed, tokens/s; 0 until learned
	BytesPerToken float64 // learned size of a prompt token in canonical bytes; 0 until learned
	AcceptRate    float64 // accepted requests a second, mean over 30 s
	BusyShare     float64 // share of time with prefill work, mean over 30 s, 0 to 1

	// Prefill of n new tokens in a context of ctx, those included, takes
	// PrefillFixed + n/PrefillRate + PrefillBend·n·(ctx − n/2) seconds.
	PrefillFixed float64 // learned seconds that every prompt costs; 0 until learned
	PrefillBend  float64 // learned seconds per token squared, of attention; 0 until learned
	RequestCost  float64 // learned seconds that one more running request costs the others; 0 until learned

	Flags Flags
}

// Usable reports whether new requests may go to the engine at all.
func (l Load) Usable() bool { return l.Flags&(Down|Draining|Full) == 0 }

// The values of a Load that stand until something is learned: 16,000 tokens/s is a 32B model on two H100, and 4 bytes
// a token is English text. A wrong default costs some misrouted requests until the first answers correct it.
const (
	DefaultPrefillRate   = 16000.0
	DefaultBytesPerToken = 4.0
)
