package openai

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
)

// Continuation is what another engine needs to know of a streamed request, besides token ids, to go on with its answer.
type Continuation struct {
	Route Route
	Usage bool // the client wants usage at the end of its stream

	limit   int    // most tokens of the whole answer; 0 for as many as the context has room for
	carried []byte // members of the request that go along, each with a comma behind it
}

// maxCarried bounds the fields that go along: those that engines know take some hundred bytes.
const maxCarried = 64 << 10

// completionLimit is the limit of a completion that names none, as in OpenAI's API and in all engines.
const completionLimit = 16

// Continuation returns what goes along when another engine goes on with the answer; nil when none could, and why, in words
// that end a sentence. A field that is not known to leave the tokens alone that follow others is a reason.
func (r *Request) Continuation() (*Continuation, string) {
	switch {
	case r.Route != RouteChat && r.Route != RouteCompletions:
		return nil, "only chat and completions can be gone on with"
	case !r.Stream:
		return nil, "the answer is no stream: nothing goes out before it is complete"
	case r.Media:
		return nil, "the prompt has media, which no token ids stand for"
	case r.Traits.Has(TraitMany):
		return nil, "there are several answers in one stream"
	case r.Stored || r.Background:
		return nil, "the engine stores the answer"
	case r.Traits.Has(TraitAsksIDs):
		return nil, "the client itself says whether it wants token ids"
	case r.Keyless != "":
		return nil, "the prompt is not all that the engine reads (" + r.Keyless + ")"
	}
	c := &Continuation{Route: r.Route, Usage: r.IncludeUsage}
	for each := r.doc.in(r.doc.root()); ; {
		key, v, ok := each.member()
		if !ok {
			break
		}
		carry, why := r.doc.goesAlong(string(key), v)
		if why != "" {
			return nil, why
		}
		if carry {
			c.carried = append(append(append(c.carried, '"'), key...), `":`...)
			c.carried = append(append(c.carried, r.doc.b[v.lo:v.hi]...), ',')
		}
	}
	if len(c.carried) > maxCarried {
		return nil, "its fields are too long to be kept"
	}
	c.limit = r.MaxTokens
	if r.Route == RouteCompletions && c.limit == 0 {
		c.limit = completionLimit
	}
	return c, ""
}

// carriedFields mean the same to the rest of an answer as to the whole.
var carriedFields = strings.Fields(`model temperature top_p top_k min_p logit_bias stop_token_ids ignore_eos
	skip_special_tokens spaces_between_special_tokens allowed_token_ids cache_salt extra_key lora_path user`)

// doneFields have had their effect when the prompt is token ids, or have none on tokens, or are set anew. A seed has had its
// effect too: noise that chose the first tokens must not choose later ones again.
var doneFields = strings.Fields(`messages prompt input_ids prompt_token_ids stream stream_options max_tokens max_completion_tokens
	seed metadata service_tier parallel_tool_calls tool_choice reasoning_effort chat_template_kwargs chat_template
	add_generation_prompt continue_final_message add_special_tokens documents prompt_cache_key session_id
	separate_reasoning stream_reasoning include_reasoning include_stop_str_in_output safety_identifier`)

// harmless are values with which a field means nothing, and what it is to go on with an answer otherwise.
var harmless = map[string]struct {
	values []string
	why    string
}{
	"stop":               {[]string{`""`, `[]`}, "it has stop strings, which may span the break"},
	"frequency_penalty":  {[]string{"0", "0.0"}, whyPenalty},
	"presence_penalty":   {[]string{"0", "0.0"}, whyPenalty},
	"repetition_penalty": {[]string{"1", "1.0"}, whyPenalty},
	"min_tokens":         {[]string{"0"}, "it has a least length"},
	"logprobs":           {[]string{"false"}, whyProbabilities},
	"top_logprobs":       {[]string{"0"}, whyProbabilities},
	"n":                  {[]string{"1"}, "there are several answers in one stream"},
	"best_of":            {[]string{"1"}, "there are several answers in one stream"},
	"tools":              {[]string{"[]"}, "tools are offered, and calls of them are parsed where they begin"},
	"functions":          {[]string{"[]"}, "tools are offered, and calls of them are parsed where they begin"},
	"response_format":    {[]string{`{"type":"text"}`}, "its answer has a structure, which is kept from the beginning"},
	"suffix":             {[]string{`""`}, "it has a suffix"},
	"echo":               {[]string{"false"}, "its prompt is part of the answer"},
	"store":              {[]string{"false"}, "the engine stores the answer"},
	"use_beam_search":    {[]string{"false"}, "beams have no single continuation"},
	"length_penalty":     {[]string{"1", "1.0"}, "beams have no single continuation"},
}

const (
	whyPenalty       = "penalties count the tokens of the answer from its beginning"
	whyProbabilities = "log probabilities are asked for"
)

// goesAlong reports whether a member of the request goes along, or why the answer cannot be gone on with because of it.
func (d *doc) goesAlong(key string, v span) (carry bool, why string) {
	switch {
	case d.kind(v) == 0 || slices.Contains(doneFields, key):
		return false, ""
	case slices.Contains(carriedFields, key):
		return true, ""
	}
	rule, known := harmless[key]
	if !known {
		return false, "it is not known what a field means to the rest of an answer: " + key[:min(len(key), maxFieldShown)]
	}
	value := string(d.b[v.lo:min(v.hi, v.lo+maxHarmless)])
	if slices.Contains(rule.values, strings.Join(strings.Fields(value), "")) {
		return false, ""
	}
	return false, rule.why
}

const (
	maxHarmless   = 64 // bytes of a value that may mean nothing; white space counts
	maxFieldShown = 64
)

// Left returns how many tokens may still come after so many of the answer, in a model's context; 0 when none may. A context
// of 0 is not known: then Left is negative unless the client has named a limit.
func (c *Continuation) Left(prompt, output, context int) int {
	limit := c.limit
	switch room := context - prompt; {
	case context <= 0 && limit == 0:
		return -1
	case context > 0 && (limit == 0 || limit > room):
		limit = room
	}
	return max(limit-output, 0)
}

// Body returns the body of a streamed request for RouteCompletions that goes on after the tokens of prompt and output with at
// most left more, and reports usage.
func (c *Continuation) Body(prompt, output []uint32, left int) []byte {
	const perToken = 7 // bytes of an id below a million and a comma
	b := make([]byte, 0, len(c.carried)+perToken*(len(prompt)+len(output))+128)
	b = append(append(b, '{'), c.carried...)
	b = append(b, `"stream":true,"stream_options":{"include_usage":true},"max_tokens":`...)
	b = strconv.AppendInt(b, int64(left), 10)
	b = append(b, `,"prompt":[`...)
	for i, ids := range [][]uint32{prompt, output} {
		for j, id := range ids {
			if i+j > 0 && (j > 0 || len(prompt) > 0) {
				b = append(b, ',')
			}
			b = strconv.AppendUint(b, uint64(id), 10)
		}
	}
	return append(b, "]}"...)
}

// ContinuingChat returns the body of a Continuation as TensorRT-LLM takes token ids: a chat with them beside a message that is
// not read. It is nil when body is not a completion of one list of ids: it comes from a peer.
func ContinuingChat(body []byte) []byte {
	d, err := scan(body, DefaultLimits().Depth)
	if err != nil || d.kind(d.root()) != kindObject {
		return nil
	}
	out, found := []byte(`{"messages":[{"role":"user","content":""}]`), false
	for c := d.in(d.root()); ; {
		key, v, ok := c.member()
		switch {
		case !ok && found:
			return append(out, '}')
		case !ok:
			return nil
		case bytes.Equal(key, []byte("prompt")):
			ids, one := d.tokenPrompt(v)
			if !one || found {
				return nil
			}
			key, v, found = []byte(fieldChatIDs), ids, true
		case bytes.Equal(key, []byte("messages")), bytes.Equal(key, []byte(fieldChatIDs)):
			return nil
		}
		out = append(append(append(out, `,"`...), key...), `":`...)
		out = append(out, d.b[v.lo:v.hi]...)
	}
}
