package openai

import (
	"strings"
	"testing"
)

func TestTraits(t *testing.T) {
	long := strings.Repeat("s", MaxNameBytes+1)
	chat := func(more string) string {
		return `{"model":"m","messages":[{"role":"user","content":"x"}]` + more + `}`
	}
	tests := []struct {
		route Route
		body  string
		want  Traits
	}{
		{RouteChat, chat(``), TraitUsage},
		{RouteChat, chat(`,"stream":true`), TraitStream},
		{RouteChat, chat(`,"stream":true,"stream_options":{"include_usage":true}`), TraitStream | TraitStreamOptions | TraitUsage},
		{RouteChat, chat(`,"stream":true,"stream_options":{}`), TraitStream | TraitStreamOptions},
		{RouteChat, chat(`,"stream":true,"stream_options":null`), TraitStream | TraitStreamOptions},
		{RouteChat, chat(`,"stream":true,"stream\u005foptions":null`), TraitStream | TraitStreamOptions},
		{RouteChat, chat(`,"return_token_ids":false`), TraitUsage | TraitAsksIDs},
		{RouteChat, chat(`,"return_prompt_token_ids":null`), TraitUsage | TraitAsksIDs},
		{RouteChat, chat(`,"return_token_ids":true,"return_token_ids":null`), TraitUsage | TraitAsksIDs},
		{RouteChat, chat(`,"metadata":{"return_token_ids":true}`), TraitUsage},
		{RouteChat, chat(`,"echo":true`), TraitUsage | TraitEcho},
		{RouteChat, chat(`,"echo":false`), TraitUsage},
		{RouteChat, chat(`,"include_reasoning":false`), TraitUsage | TraitNoReasoning},
		{RouteChat, chat(`,"include_reasoning":0`), TraitUsage | TraitNoReasoning},
		{RouteChat, chat(`,"include_reasoning":true`), TraitUsage},
		{RouteChat, chat(`,"n":2`), TraitUsage | TraitMany},
		{RouteChat, chat(`,"n":1,"best_of":1`), TraitUsage},
		{RouteChat, chat(`,"best_of":2`), TraitUsage | TraitMany},
		{RouteChat, chat(`,"best_of":"1"`), TraitUsage | TraitMany},
		{RouteChat, chat(`,"best_of":null`), TraitUsage},
		{RouteChat, chat(`,"prompt_logprobs":0`), TraitUsage | TraitSkipsCache},
		{RouteChat, chat(`,"prompt_logprobs":null`), TraitUsage},
		{RouteChat, chat(`,"prompt_logprobs":1,"truncate_prompt_tokens":9`), TraitUsage | TraitSkipsCache},
		{RouteChat, chat(`,"input_ids":[1]`), TraitUsage | TraitChatIDs},
		{RouteChat, chat(`,"prompt_token_ids":[1]`), TraitUsage | TraitChatIDs},
		{RouteChat, chat(`,"prompt":[1]`), TraitUsage},
		{RouteChat, chat(`,"cache_salt":"` + long + `"`), TraitUsage | TraitOddNames},
		{RouteChat, chat(`,"extra_key":"k"`), TraitUsage | TraitOddNames},
		{RouteChat, chat(`,"cache_salt":"s","extra_key":null`), TraitUsage},
		{RouteCompletions, `{"model":"m","prompt":"x"}`, TraitUsage},
		{RouteCompletions, `{"model":"m","prompt":["x","y"]}`, TraitUsage | TraitMany},
		{RouteCompletions, `{"model":"m","prompt":[1,2]}`, TraitUsage | TraitTokenPrompt},
		{RouteCompletions, `{"model":"m","prompt":[[1,2]]}`, TraitUsage | TraitTokenPrompt},
		{RouteCompletions, `{"model":"m","prompt":[[1],[2]]}`, TraitUsage | TraitMany},
		{RouteCompletions, `{"model":"m","prompt":"x","echo":true,"logprobs":1}`, TraitUsage | TraitEcho | TraitSkipsCache},
		{RouteCompletions, `{"model":"m","prompt":"x","echo":true,"logprobs":null}`, TraitUsage | TraitEcho},
		{RouteEmbeddings, `{"model":"m","input":"x"}`, TraitUsage | TraitSkipsCache},
		{RouteMessages, `{"model":"m","max_tokens":1,"stream":true,"messages":[{"role":"user","content":"x"}]}`, TraitUsage | TraitStream},
		{RouteCountTokens, `{"model":"m","messages":[{"role":"user","content":"x"}]}`, TraitUsage | TraitSkipsCache},
		{RouteResponses, `{"model":"m","input":"x"}`, TraitUsage},
	}
	for _, tt := range tests {
		r, err := Parse(tt.route, []byte(tt.body))
		if err != nil {
			t.Fatalf("Parse(%s): %v", tt.body, err)
		}
		if r.Traits != tt.want {
			t.Errorf("%v %.100s: traits %b, want %b", tt.route, tt.body, r.Traits, tt.want)
		}
	}
}

func TestNamesThatKeepCachesApartArePassedOn(t *testing.T) {
	limits := DefaultLimits()
	limits.Refused = nil
	longest := strings.Repeat("é", MaxNameBytes/2)
	tests := []struct {
		fields     string
		salt, lora string
		odd        bool
	}{
		{`"cache_salt":"s\n","lora_path":"l"`, "s\n", "l", false},
		{`"cache_salt":"` + longest + `"`, longest, "", false},
		{`"cache_salt":"` + longest + `s"`, "", "", true},
		{`"cache_salt":"","lora_path":null`, "", "", false},
		{`"lora_path":["l"]`, "", "", true},
		{`"lora_path":"` + longest + `l"`, "", "", true},
	}
	for _, tt := range tests {
		r, err := limits.Parse(RouteCompletions, []byte(`{"model":"m","prompt":"x",`+tt.fields+`}`))
		if err != nil {
			t.Fatalf("Parse(%s): %v", tt.fields, err)
		}
		if r.Salt != tt.salt || r.LoRA != tt.lora || r.Traits.Has(TraitOddNames) != tt.odd {
			t.Errorf("%.60s: got %q, %q, odd %v", tt.fields, r.Salt, r.LoRA, r.Traits.Has(TraitOddNames))
		}
	}
}
