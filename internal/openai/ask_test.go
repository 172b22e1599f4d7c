package openai

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAskIsAddedToABody(t *testing.T) {
	both := Ask{Fields: []string{"return_token_ids", "return_prompt_token_ids"}, Usage: true}
	tests := []struct {
		ask        Ask
		body, want string
	}{
		{Ask{}, `{"a":1}`, `{"a":1}`},
		{Ask{Fields: []string{"f"}}, `{"a":1}`, `{"f":true,"a":1}`},
		{Ask{Usage: true}, " {\n\"a\":1}", " {\"stream_options\":{\"include_usage\":true},\n\"a\":1}"},
		{both, `{}`, `{"return_token_ids":true,"return_prompt_token_ids":true,"stream_options":{"include_usage":true}}`},
		{Ask{Fields: []string{"f"}}, "{ \r\n\t} ", "{\"f\":true \r\n\t} "},
		{both, ``, ``},
		{both, `[]`, `[]`},
	}
	for _, tt := range tests {
		given := []byte(tt.body)
		got := string(tt.ask.Apply(given))
		if got != tt.want || string(given) != tt.body {
			t.Errorf("%+v on %q: got %q, want %q", tt.ask, tt.body, got, tt.want)
		}
		if json.Valid([]byte(tt.body)) != json.Valid([]byte(got)) {
			t.Errorf("%q is not JSON", got)
		}
	}
}

func TestRankIsAddedToABody(t *testing.T) {
	for body, want := range map[string]string{
		`{"a":1}`: `{"routed_dp_rank":3,"a":1}`,
		"{ }":     `{"routed_dp_rank":3 }`,
		`[1]`:     `[1]`,
		``:        ``,
	} {
		if got := string(ForRank([]byte(body), 3)); got != want {
			t.Errorf("%q: got %q, want %q", body, got, want)
		}
	}
}

func TestAskKeepsToWhatMayBeAdded(t *testing.T) {
	ids := []string{fieldTokenIDs}
	tests := []struct {
		traits Traits
		want   Ask
	}{
		{TraitStream, Ask{ids, true, StyleAbsent}},
		{TraitStream | TraitUsage | TraitNoReasoning, Ask{ids, true, StyleAbsent}},
		{TraitStream | TraitEcho, Ask{nil, true, StyleAbsent}},
		{0, Ask{ids, false, StyleAbsent}},
		{TraitStream | TraitStreamOptions, Ask{ids, false, StyleAbsent}},
		{TraitStream | TraitMany, Ask{ids, false, StyleAbsent}},
		{TraitStream | TraitAsksIDs, Ask{nil, true, StyleAbsent}},
	}
	for _, tt := range tests {
		ask := Ask{ids, true, StyleAbsent}
		if diff := cmp.Diff(tt.want, ask.Within(tt.traits)); diff != "" {
			t.Errorf("%b (-want +got):\n%s", tt.traits, diff)
		}
	}
}

func TestRefusalNamesWhatWasAdded(t *testing.T) {
	tests := []struct {
		ask           Ask
		refusal, want string
	}{
		{asks["both"], `{"error":{"message":"Extra inputs are not permitted: return_token_ids"}}`, fieldTokenIDs},
		{asks["both"], `{"detail":[{"loc":["body","stream_options"]}]}`, fieldStreamOptions},
		{asks["both"], `unknown field "include_usage"`, fieldStreamOptions},
		{Ask{Fields: []string{fieldPromptIDs}}, `return_token_ids is not supported with streaming`, fieldPromptIDs},
		{Ask{Fields: []string{fieldPromptIDs, fieldTokenIDs}}, `return_token_ids is not known`, fieldTokenIDs},
		{asks["both"], `max_tokens is too large`, ""},
		{asks["ids"], `stream_options needs stream`, ""},
		{asks["usage"], `return_token_ids`, ""},
	}
	for _, tt := range tests {
		if got := tt.ask.Refusal([]byte(tt.refusal)); got != tt.want {
			t.Errorf("%s: blames %q, want %q", tt.refusal, got, tt.want)
		}
	}
}

func TestIDsAreParsed(t *testing.T) {
	tests := []struct {
		list string
		want []uint32
	}{
		{`[]`, []uint32{}},
		{`[0]`, []uint32{0}},
		{"[ 1 ,\n2, 4294967295 ]", []uint32{1, 2, 1<<32 - 1}},
		{`[4294967296]`, nil},
		{`[-1]`, nil},
		{`[1.0]`, nil},
		{`[1e3]`, nil},
		{`["1"]`, nil},
		{`[[1]]`, nil},
		{`[null]`, nil},
		{`null`, nil},
		{``, nil},
		{`[`, nil},
		{`[1`, nil},
	}
	for _, tt := range tests {
		if got := ParseIDs([]byte(tt.list)); !slices.Equal(got, tt.want) || (got == nil) != (tt.want == nil) {
			t.Errorf("%s: got %v, want %v", tt.list, got, tt.want)
		}
	}
}

func TestPromptIDsAreThoseInTheBody(t *testing.T) {
	tests := []struct {
		route Route
		body  string
		want  []uint32
	}{
		{RouteCompletions, `{"model":"m","prompt":[1,2]}`, []uint32{1, 2}},
		{RouteCompletions, `{"model":"m","prompt":[[1,2]]}`, []uint32{1, 2}},
		{RouteCompletions, `{"model":"m","prompt":[[1],[2]]}`, nil},
		{RouteCompletions, `{"model":"m","prompt":"text"}`, nil},
		{RouteCompletions, `{"model":"m","prompt":["text"]}`, nil},
		{RouteCompletions, `{"model":"m","prompt":[]}`, nil},
		{RouteCompletions, `{"model":"m","prompt":[1`, nil},
		{RouteChat, `{"model":"m","messages":[],"input_ids":[3]}`, []uint32{3}},
		{RouteChat, `{"model":"m","messages":[],"prompt_token_ids":[4]}`, []uint32{4}},
		{RouteChat, `{"model":"m","input_ids":[3],"prompt_token_ids":[4]}`, nil},
		{RouteChat, `{"model":"m","prompt":[1]}`, nil},
		{RouteMessages, `{"model":"m","prompt":[1],"input_ids":[3]}`, nil},
	}
	for _, tt := range tests {
		if got := PromptIDs(tt.route, []byte(tt.body)); !slices.Equal(got, tt.want) {
			t.Errorf("%v %s: got %v, want %v", tt.route, tt.body, got, tt.want)
		}
	}
}
