package openai

import (
	"bytes"
	"strconv"
)

// Style is how an engine writes token ids that were not asked for.
type Style uint8

// The styles.
const (
	StyleNull   Style = iota // vLLM: the field is there and null
	StyleAbsent              // SGLang: the field is not there
)

// Ask is what an owner adds to a request to learn from the answer; a Stripper takes it out of the answer again. The zero
// Ask adds nothing.
type Ask struct {
	Fields []string // set to true in the request, so that the answer has token ids
	Usage  bool     // stream_options.include_usage
	Style  Style
}

// Empty reports whether nothing is asked.
func (a *Ask) Empty() bool { return len(a.Fields) == 0 && !a.Usage }

// Within returns what of a may be added to a request with these traits: nothing that the client has set itself, nothing
// that engines refuse, and nothing that cannot be undone. vLLM echoes no prompt when it returns token ids, and the end of
// one of several choices cannot be held back without holding back the others.
func (a *Ask) Within(t Traits) Ask {
	out := *a
	if t.Any(TraitAsksIDs | TraitEcho) {
		out.Fields = nil
	}
	if !t.Has(TraitStream) || t.Any(TraitStreamOptions|TraitMany) {
		out.Usage = false
	}
	return out
}

// Apply returns the body of a request, a JSON object, with what is asked. The client must not have set these fields
// itself: parsers differ in what they make of two members with one name.
func (a *Ask) Apply(body []byte) []byte {
	var members []byte
	for _, f := range a.Fields {
		members = append(append(append(members, '"'), f...), `":true,`...)
	}
	if a.Usage {
		members = append(members, `"`+fieldStreamOptions+`":{"`+fieldIncludeUsage+`":true},`...)
	}
	return addMembers(body, members)
}

// ForRank returns the body of a request, a JSON object, addressed to a data-parallel rank as SGLang reads it. Clients may
// not set the field.
func ForRank(body []byte, rank int) []byte {
	return addMembers(body, append(strconv.AppendInt([]byte(`"`+fieldRank+`":`), int64(rank), 10), ','))
}

// addMembers puts members, each with a comma behind it, before those of a JSON object.
func addMembers(body, members []byte) []byte {
	at := bytes.IndexByte(body, '{') + 1
	if at == 0 || len(members) == 0 {
		return body
	}
	rest := bytes.TrimLeft(body[at:], " \t\r\n")
	out := make([]byte, 0, len(body)+len(members))
	out = append(append(out, body[:at]...), members...)
	if len(rest) > 0 && rest[0] == '}' {
		out = out[:len(out)-1] // no member follows the comma
	}
	return append(out, body[at:]...)
}

// Refusal returns the added field that an engine's refusal names, "" when it names none. SGLang names another of the fields
// for token ids than it was sent. Only when the request without it is taken is the field to blame: a refusal may quote what
// the client wrote.
func (a *Ask) Refusal(answer []byte) string {
	if len(a.Fields) > 0 && bytes.Contains(answer, []byte("token_ids")) {
		for _, f := range a.Fields {
			if bytes.Contains(answer, []byte(f)) {
				return f
			}
		}
		return a.Fields[0]
	}
	if a.Usage && (bytes.Contains(answer, []byte(fieldStreamOptions)) || bytes.Contains(answer, []byte(fieldIncludeUsage))) {
		return fieldStreamOptions
	}
	return ""
}
