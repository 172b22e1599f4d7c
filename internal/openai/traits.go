package openai

// Traits are the properties of a request that decide what its answer can teach: a set of bits that travels from ingress to
// owner.
type Traits uint16

// The traits of a request.
const (
	TraitStream        Traits = 1 << iota // the answer is a stream of events
	TraitUsage                            // usage comes without our asking
	TraitStreamOptions                    // the client sent stream_options
	TraitAsksIDs                          // the client itself says whether it wants token ids
	TraitEcho                             // the prompt is part of the answer
	TraitNoReasoning                      // thoughts are left out of the answer
	TraitMany                             // several prompts or several answers
	TraitSkipsCache                       // the engine computes the whole prompt again
	TraitTokenPrompt                      // the prompt is token ids, in the body
	TraitOddNames                         // salt or adapter are longer than what is passed on
)

// Has reports whether all of the given traits are there.
func (t Traits) Has(want Traits) bool { return t&want == want }

// Any reports whether one of the given traits is there.
func (t Traits) Any(of Traits) bool { return t&of != 0 }

// MaxNameBytes bounds the names of salts and adapters that are passed on.
const MaxNameBytes = 256

// readTraits sets what the owner needs to know of the request.
func (r *Request) readTraits() {
	d, m := &r.doc, &r.top
	set := func(t Traits, on bool) {
		if on {
			r.Traits |= t
		}
	}
	set(TraitStream, r.Stream)
	set(TraitUsage, r.IncludeUsage)
	set(TraitMany, r.N > 1 || r.Prompts > 1)
	set(TraitEcho, d.isTrue(m[nEcho]))
	set(TraitSkipsCache, r.Keyless == "prompt_logprobs" || r.Keyless == "pooling")
	set(TraitTokenPrompt, r.Route == RouteCompletions && d.kind(m[nPrompt]) == kindArray && r.tokenPrompt())
	set(TraitOddNames, m[nCacheSalt].hi-m[nCacheSalt].lo > MaxNameBytes || m[nLoraPath].hi-m[nLoraPath].lo > MaxNameBytes)
	r.Salt, r.LoRA = d.text(m[nCacheSalt], MaxNameBytes), d.text(m[nLoraPath], MaxNameBytes)
	for c := d.in(d.root()); ; {
		key, v, ok := c.member()
		if !ok {
			return
		}
		switch string(key) { // also when null: of two members with one name engines take the last
		case fieldTokenIDs, fieldPromptIDs:
			r.Traits |= TraitAsksIDs
		case "stream_options":
			r.Traits |= TraitStreamOptions
		case "include_reasoning":
			set(TraitNoReasoning, !d.isTrue(v))
		case "best_of":
			n, ok := d.integer(v)
			set(TraitMany, !ok || n > 1)
		}
	}
}

// tokenPrompt reports whether the prompt begins with a token id.
func (r *Request) tokenPrompt() bool {
	c := r.doc.in(r.top[nPrompt])
	v, ok := c.elem()
	return ok && r.doc.kind(v) == kindNumber
}

// PromptIDs returns the token ids of a completion whose prompt is token ids: TraitTokenPrompt. It returns nil for others.
func PromptIDs(body []byte) []uint32 {
	r, err := Parse(RouteCompletions, body)
	if err != nil || !r.Traits.Has(TraitTokenPrompt) {
		return nil
	}
	return ParseIDs(r.doc.b[r.top[nPrompt].lo:r.top[nPrompt].hi])
}

// maxIDs bounds the ids of one prompt.
const maxIDs = 1 << 24

// ParseIDs reads a JSON array of token ids. It returns nil for anything else.
func ParseIDs(list []byte) []uint32 {
	if len(list) < 2 || list[0] != '[' || list[len(list)-1] != ']' {
		return nil
	}
	d := doc{b: list}
	c := d.in(span{0, uint32(len(list))})
	out := make([]uint32, 0, min(len(list)/3, maxIDs))
	for len(out) < maxIDs {
		id, ok := c.token()
		if !ok {
			break
		}
		out = append(out, id)
	}
	if !c.ended {
		return nil
	}
	return out
}
