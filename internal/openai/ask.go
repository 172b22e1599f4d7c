package openai

import "bytes"

// Style is how an engine writes fields that were not asked for.
type Style uint8

// The styles.
const (
	StyleNull   Style = iota // vLLM: the field is there and null
	StyleAbsent              // SGLang: the field is not there
)

const (
	fieldTokenIDs      = "return_token_ids"
	fieldPromptIDs     = "return_prompt_token_ids"
	fieldStreamOptions = "stream_options"
)

// Ask is what an owner adds to a request to learn from the answer; a Stripper takes it out of the answer again. The zero
// Ask adds nothing.
type Ask struct {
	Fields []string // set to true in the request
	Usage  bool     // stream_options.include_usage
	Style  Style
}

// Empty reports whether nothing is asked.
func (a *Ask) Empty() bool { return len(a.Fields) == 0 && !a.Usage }

// Apply returns the body of a request, a JSON object, with what is asked. The client must not have set these fields
// itself: of two members with one name engines take the last.
func (a *Ask) Apply(body []byte) []byte {
	at := bytes.IndexByte(body, '{')
	if at < 0 || a.Empty() {
		return body
	}
	out := make([]byte, 0, len(body)+256)
	out = append(out, body[:at+1]...)
	for _, f := range a.Fields {
		out = append(append(append(out, '"'), f...), `":true,`...)
	}
	if a.Usage {
		out = append(out, `"`+fieldStreamOptions+`":{"include_usage":true},`...)
	}
	if rest := bytes.TrimLeft(body[at+1:], " \t\r\n"); len(rest) > 0 && rest[0] == '}' {
		out = out[:len(out)-1] // no member follows the comma
	}
	return append(out, body[at+1:]...)
}

// RefusedIn returns the added field that an engine's answer of 400 names, if it names one.
func (a *Ask) RefusedIn(answer []byte) (field string, ok bool) {
	fields := a.Fields
	if a.Usage {
		fields = append(fields[:len(fields):len(fields)], fieldStreamOptions)
	}
	for _, f := range fields {
		if bytes.Contains(answer, []byte(f)) {
			return f, true
		}
	}
	return "", false
}
