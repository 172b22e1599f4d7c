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
	TraitTokenPrompt                      // the prompt is token ids
	TraitOddNames                         // salt or adapter are longer than what is passed on
)

// Has reports whether all of the given traits are there.
func (t Traits) Has(want Traits) bool { return t&want == want }

// Any reports whether one of the given traits is there.
func (t Traits) Any(of Traits) bool { return t&of != 0 }

// Style is how an engine writes fields that were not asked for.
type Style uint8

// The styles.
const (
	StyleNull   Style = iota // vLLM: the field is there and null
	StyleAbsent              // SGLang: the field is not there
)

// Ask is what an owner adds to a request to learn from the answer. The zero Ask adds nothing.
type Ask struct {
	Fields []string // set to true in the request
	Usage  bool     // stream_options.include_usage
	Style  Style
}

// Empty reports whether nothing is asked.
func (a *Ask) Empty() bool { return len(a.Fields) == 0 && !a.Usage }
