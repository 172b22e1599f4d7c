package forward

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// keysOf parses a body and computes its prompt keys, as the ingress does.
func keysOf(t rapid.TB, route openai.Route, body string) *cachestate.Prompt {
	t.Helper()
	r, err := openai.Parse(route, []byte(body))
	if err != nil {
		t.Fatalf("parse %s: %v", body, err)
	}
	p := &cachestate.Prompt{}
	cachestate.DefaultScheme().Prompt(r.Walk(r.Model, 0), p)
	return p
}

func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// places are the fields in which two texts with a common start must share keys.
var places = map[string]struct {
	route openai.Route
	body  func(text string) string
}{
	"message": {openai.RouteChat, func(text string) string {
		return `{"model":"m","messages":[{"role":"system","content":"be brief"},{"role":"user","content":` + quoted(text) + `}]}`
	}},
	"completion prompt": {openai.RouteCompletions, func(text string) string {
		return `{"model":"m","prompt":` + quoted(text) + `}`
	}},
	"tool result": {openai.RouteChat, func(text string) string {
		return `{"model":"m","messages":[{"role":"user","content":"look"},{"role":"assistant","tool_calls":[{"id":"c1","type":"function",` +
			`"function":{"name":"read","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":` + quoted(text) + `}]}`
	}},
}

// text draws strings with escapes, surrogate pairs and runs of any length.
func text(t *rapid.T, label string, most int) string {
	unit := rapid.SampledFrom([]string{"a", "word ", "\n", "\"", "\\", "\t", "é", "漢", "😀", "\u0001", "</s>"})
	return rapid.StringOfN(rapid.RuneFrom([]rune("ab \n\"\\é漢😀")), 0, most, -1).Draw(t, label) +
		unit.Draw(t, label+" end")
}

func TestTextsWithACommonStartShareEveryKeyUpToItsEnd(t *testing.T) {
	for name, place := range places {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				common, x, y := text(t, "common", 6000), text(t, "x", 1500), text(t, "y", 1500)
				a, b := keysOf(t, place.route, place.body(common+x)), keysOf(t, place.route, place.body(common+y))
				empty := keysOf(t, place.route, place.body(""))
				shared := uint32(empty.Bytes) + uint32(len(common)) // content up to the end of the common text
				for i, key := range a.Keys {
					if a.Offsets[i] > shared || i >= len(b.Keys) || (a.Offsets[i] == shared && a.Offsets[i] != b.Offsets[i]) {
						break
					}
					if isFieldEnd(a, i, shared) || isFieldEnd(b, i, shared) {
						break // an empty rest: the field ends there
					}
					if b.Keys[i] != key || b.Offsets[i] != a.Offsets[i] {
						t.Fatalf("key %d at byte %d differs although %d bytes are shared", i, a.Offsets[i], shared)
					}
				}
				if n := countBelow(a, shared); n != countBelow(b, shared) {
					t.Fatalf("%d and %d boundaries within the shared bytes", n, countBelow(b, shared))
				}
			})
		})
	}
}

// isFieldEnd reports whether boundary i is the end of a message that ends exactly with the shared text.
func isFieldEnd(p *cachestate.Prompt, i int, shared uint32) bool {
	return p.Offsets[i] == shared && int64(shared) == p.Bytes
}

func countBelow(p *cachestate.Prompt, limit uint32) (n int) {
	for _, o := range p.Offsets {
		if o < limit {
			n++
		}
	}
	return n
}

func TestFormOfTheJSONDoesNotChangeKeys(t *testing.T) {
	plain := `{"model":"m","messages":[{"role":"user","content":"a \"b\"\n漢 😀/"}],"tools":[{"type":"function","function":` +
		`{"name":"f","description":"d","parameters":{"type":"object","properties":{"x":{"type":"string"}}}}}],"temperature":0}`
	want := keysOf(t, openai.RouteChat, plain)
	for name, body := range map[string]string{
		"spacing": "{ \"model\" : \"m\" ,\n\t\"messages\" : [ { \"role\" : \"user\" , \"content\" : \"a \\\"b\\\"\\n漢 😀/\" } ] , \"tools\" : [ " +
			"{ \"type\" : \"function\" , \"function\" : { \"name\" : \"f\" , \"description\" : \"d\" , \"parameters\" : { \"type\" : \"object\" , " +
			"\"properties\" : { \"x\" : { \"type\" : \"string\" } } } } } ] , \"temperature\" : 0 } ",
		"escapes": `{"model":"\u006d","messages":[{"role":"\u0075ser","content":"a \u0022b\u0022\u000a\u6f22 \ud83d\ude00\/"}],"tools":[{"type":"function",` +
			`"function":{"name":"\u0066","description":"d","parameters":{"type":"object","properties":{"x":{"type":"string"}}}}}]}`,
		"order": `{"tools":[{"function":{"parameters":{"type":"object","properties":{"x":{"type":"string"}}},"description":"d","name":"f"},` +
			`"type":"function"}],"messages":[{"content":"a \"b\"\n漢 😀/","role":"user"}],"stream":true,"model":"m"}`,
		"parts": `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a \"b\"\n漢 😀/"}]}],"tools":[{"type":"function","function":` +
			`{"name":"f","description":"d","parameters":{"type":"object","properties":{"x":{"type":"string"}}}}}]}`,
	} {
		if got := keysOf(t, openai.RouteChat, body); !slices.Equal(got.Keys, want.Keys) {
			t.Errorf("%s: keys differ", name)
		}
	}
	other := `{"model":"m","messages":[{"role":"user","content":"a \"b\"\n漢 😀/"}],"tools":[{"type":"function","function":` +
		`{"name":"f","description":"d","parameters":{"properties":{"x":{"type":"string"}},"type":"object"}}}]}`
	if got := keysOf(t, openai.RouteChat, other); slices.Equal(got.Keys, want.Keys) {
		t.Error("the order inside tool parameters is rendered, so it must change keys")
	}
}

func TestEachTurnSharesEveryKeyOfTheOneBefore(t *testing.T) {
	body := func(turns int) string {
		s := `{"model":"m","messages":[{"role":"system","content":"be brief"}`
		for i := range turns {
			s += fmt.Sprintf(`,{"role":"user","content":"question %d"},{"role":"assistant","content":"answer %d"}`, i, i)
		}
		return s + `,{"role":"user","content":"last"}]}`
	}
	for turns := range 20 {
		before, after := keysOf(t, openai.RouteChat, body(turns)), keysOf(t, openai.RouteChat, body(turns+1))
		shared := len(before.Keys) - 1 // all but the end of the last message
		if !slices.Equal(before.Keys[:shared], after.Keys[:shared]) {
			t.Fatalf("turn %d does not share the %d keys of the turn before", turns+1, shared)
		}
	}
}
