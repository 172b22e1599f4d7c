package openai

import "bytes"

// Traits are the properties of a request that decide what its answer can teach: a set of bits that travels from ingress to
// owner.
type Traits uint16

// The traits of a request. Where two engines may read a body differently, the trait that teaches less is set.
const (
	TraitStream        Traits = 1 << iota // the answer is a stream of events
	TraitUsage                            // usage comes without our asking
	TraitStreamOptions                    // the client sent stream_options, whatever they say
	TraitAsksIDs                          // the client itself says whether it wants token ids
	TraitEcho                             // the prompt is part of the answer
	TraitNoReasoning                      // thoughts are left out of the answer
	TraitMany                             // several prompts or several answers
	TraitSkipsCache                       // the engine computes the whole prompt again, or generates nothing
	TraitTokenPrompt                      // the prompt is token ids, in the body
	TraitOddNames                         // what else keeps caches apart is not fully passed on
	TraitChatIDs                          // a chat with its prompt as token ids, which some kinds read and others ignore
)

// Has reports whether all of the given traits are there.
func (t Traits) Has(want Traits) bool { return t&want == want }

// Any reports whether one of the given traits is there.
func (t Traits) Any(of Traits) bool { return t&of != 0 }

// MaxNameBytes bounds the names of salts and adapters that are passed on.
const MaxNameBytes = 256

// The fields of a request that decide its traits and nothing else.
const (
	fieldTokenIDs      = "return_token_ids"
	fieldPromptIDs     = "return_prompt_token_ids"
	fieldStreamOptions = "stream_options"
	fieldRank          = "routed_dp_rank"
	fieldIncludeUsage  = "include_usage"
	fieldReasoning     = "include_reasoning"
	fieldBestOf        = "best_of"
	fieldChatIDs       = "prompt_token_ids" // TensorRT-LLM; SGLang has input_ids
)

// readTraits sets what the owner needs to know of the request.
func (r *Request) readTraits() {
	d, m := &r.doc, &r.top
	r.mark(TraitStream, r.Stream)
	r.mark(TraitUsage, r.IncludeUsage)
	r.mark(TraitMany, r.N > 1 || r.Prompts > 1)
	r.mark(TraitEcho, d.isTrue(m[nEcho]))
	r.mark(TraitSkipsCache, !r.hasPrompt() || r.Route == RouteCountTokens || m[nPromptLogprobs].ok() ||
		d.isTrue(m[nEcho]) && m[nLogprobs].ok())
	_, tokens := d.tokenPrompt(m[nPrompt])
	r.mark(TraitTokenPrompt, r.Route == RouteCompletions && tokens)
	r.mark(TraitChatIDs, r.Route == RouteChat && d.kind(m[nInputIDs]) == kindArray)
	for c := d.in(d.root()); ; { // also null, and each of several with one name: parsers differ in what they make of those
		key, v, ok := c.member()
		if !ok {
			break
		}
		r.markField(key, v)
	}
	r.Salt, r.LoRA = r.passedOn(nCacheSalt), r.passedOn(nLoraPath)
	r.mark(TraitOddNames, m[nExtraKey].ok())
}

func (r *Request) mark(t Traits, on bool) {
	if on {
		r.Traits |= t
	}
}

// markField sets the traits that one member of the body tells by itself.
func (r *Request) markField(key []byte, v span) {
	if bytes.IndexByte(key, '\\') >= 0 && len(key) <= maxEscapedName {
		key = appendUnescaped(nil, key)
	}
	switch string(key) {
	case fieldTokenIDs, fieldPromptIDs:
		r.Traits |= TraitAsksIDs
	case fieldStreamOptions:
		r.Traits |= TraitStreamOptions
	case fieldReasoning:
		r.mark(TraitNoReasoning, !r.doc.isTrue(v))
	case fieldBestOf:
		n, ok := r.doc.integer(v)
		r.mark(TraitMany, r.doc.kind(v) != 0 && (!ok || n > 1))
	case fieldChatIDs:
		r.mark(TraitChatIDs, r.Route == RouteChat && r.doc.kind(v) == kindArray)
	}
}

// passedOn returns the name in a field as owners are told it: "" and a trait when it is no string or too long.
func (r *Request) passedOn(field name) string {
	v := r.top[field]
	if !v.ok() {
		return ""
	}
	odd := r.doc.kind(v) != kindString || len(r.doc.inner(v)) > MaxNameBytes
	r.mark(TraitOddNames, odd)
	if odd {
		return ""
	}
	return r.doc.text(v, MaxNameBytes)
}

// tokenPrompt returns the list of token ids that the prompt of a completion is: v itself, or the only list in it.
func (d *doc) tokenPrompt(v span) (ids span, ok bool) {
	if d.kind(v) != kindArray {
		return span{}, false
	}
	c := d.in(v)
	first, _ := c.elem()
	if d.kind(first) != kindArray {
		return v, d.kind(first) == kindNumber
	}
	_, more := c.elem()
	return first, !more
}
