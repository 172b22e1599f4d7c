package forward

import (
	"net/http"
	"strings"
	"testing"

	"github.com/kvmesh/kvmesh/cachestate"
)

// keyOfTests is the SHA-256 of "secret".
const keyOfTests = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"

func TestFirstClassThatMatchesWins(t *testing.T) {
	p := Policy{Classes: []Class{
		{Name: "header", Match: Match{Header: map[string]string{"x-team": "search"}}},
		{Name: "any value", Match: Match{Header: map[string]string{"x-batch": "*"}}},
		{Name: "two fields", Match: Match{Header: map[string]string{"x-a": "1", "x-b": "2"}}},
		{Name: "key", Match: Match{APIKey: strings.ToUpper(keyOfTests)}},
		{Name: "path", Match: Match{Path: "/v1/completions"}},
		{Name: "small", Match: Match{Model: "m", MaxTokens: 100}},
		{Name: "large", Match: Match{Model: "m", MinTokens: 1000}},
		{Name: "canonical", Match: Match{Model: "real"}},
	}}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, give := range map[string]Traffic{
		"header":     {Header: http.Header{"X-Team": {"other", "search"}, "X-Batch": {"1"}}},
		"any value":  {Header: http.Header{"X-Batch": {""}}},
		"two fields": {Header: http.Header{"X-A": {"1"}, "X-B": {"2"}}},
		"key":        {Header: http.Header{"Authorization": {"Bearer secret"}}},
		"path":       {Path: "/v1/completions"},
		"small":      {Model: "m", Bytes: 400},
		"large":      {Model: "m", Bytes: 4000},
		"canonical":  {Model: "alias", Canonical: "real"},
		DefaultClass: {Model: "m", Bytes: 401, Path: "/v1/chat/completions", Header: http.Header{"X-A": {"1"}, "X-Team": {"x"}}},
	} {
		if got := p.Of(&give).Name; got != want {
			t.Errorf("%+v: got class %q, want %q", give, got, want)
		}
	}
	if got := p.Of(&Traffic{Header: http.Header{"X-Api-Key": {"secret"}}}).Name; got != "key" {
		t.Errorf("key in x-api-key: got class %q", got)
	}
	if got := new(Policy).Of(&Traffic{}); got.Name != DefaultClass || got.Rule() != DefaultRule() {
		t.Errorf("without a policy: got %+v", got)
	}
}

func TestClassDecidesWhatIsAsked(t *testing.T) {
	long := tieredPrompt()
	short, plain := tieredPrompt(), tieredPrompt()
	short.Bytes, plain.Keys, plain.Offsets = 799, nil, nil
	for _, tt := range []struct {
		name     string
		class    Class
		prompt   cachestate.Prompt
		session  string
		locality bool
		pin      Pin
	}{
		{"auto", Class{}, long, "s", true, 0},
		{"auto, small", Class{}, short, "s", false, 0},
		{"auto, small by the class", Class{MinPromptTokens: 1001}, long, "s", false, 0},
		{"auto, not small by the class", Class{MinPromptTokens: 100}, short, "s", true, 0},
		{"auto, without keys", Class{}, plain, "s", false, 0},
		{"load", Class{Strategy: StrategyLoad}, long, "s", false, 0},
		{"session", Class{Strategy: StrategySession}, long, "s", true, pinOf("s")},
		{"session, small and without keys", Class{Strategy: StrategySession}, plain, "s", false, pinOf("s")},
		{"session, unknown", Class{Strategy: StrategySession}, long, "", true, 0},
		{"prefix", Class{Strategy: StrategyPrefix, PrefixTokens: 500}, long, "s", true, 1<<40 + 2},
		{"prefix, between two keys", Class{Strategy: StrategyPrefix, PrefixTokens: 499}, long, "s", true, 1<<40 + 1},
		{"prefix, longer than the prompt", Class{Strategy: StrategyPrefix, PrefixTokens: 5000}, long, "s", true, 1<<40 + 4},
		{"prefix, only the root", Class{Strategy: StrategyPrefix, PrefixTokens: 1}, long, "s", true, 0},
		{"prefix, without keys", Class{Strategy: StrategyPrefix, PrefixTokens: 500}, plain, "s", false, 0},
	} {
		q := tt.class.Question(&tt.prompt, tt.session)
		if q.Locality != tt.locality || q.Pin != tt.pin || q.Bytes != float64(tt.prompt.Bytes) {
			t.Errorf("%s: got locality %t, pin %d; want %t, %d", tt.name, q.Locality, q.Pin, tt.locality, tt.pin)
		}
	}
	want := DefaultRule()
	want.LocalityWeight, want.MinPromptTokens, want.WaitWeight, want.ByOverlap = 0.5, 7, 3, 1
	if r := (&Class{LocalityWeight: 0.5, MinPromptTokens: 7, WaitWeight: 3, OverlapCandidates: 1}).Rule(); r != want {
		t.Errorf("got the rule %+v, want %+v", r, want)
	}
	want = DefaultRule()
	want.ByChance, want.Probes = 2, 9
	if r := (&Class{RandomCandidates: 2, Probes: 9}).Rule(); r != want {
		t.Errorf("got the rule %+v, want %+v", r, want)
	}
}

func TestSessionIsTheHeadersBeforeTheBodys(t *testing.T) {
	h := http.Header{"X-Session-Id": {"one"}, "X-Chat": {"two"}}
	for _, tt := range []struct {
		class  Class
		header http.Header
		want   string
	}{
		{Class{}, h, "one"},
		{Class{SessionHeader: "x-chat"}, h, "two"},
		{Class{SessionHeader: "x-none"}, h, "body"},
		{Class{}, http.Header{}, "body"},
	} {
		if got := tt.class.Session(tt.header, "body"); got != tt.want {
			t.Errorf("%+v: got %q, want %q", tt.class, got, tt.want)
		}
	}
}

func TestEveryFaultOfAPolicyIsTold(t *testing.T) {
	for want, c := range map[string]Class{
		"name must have 1 to 64 bytes":                       {},
		"name is taken":                                      {Name: DefaultClass},
		`strategy "best" is none of auto`:                    {Name: "c", Strategy: "best"},
		"strategy prefix needs prefix_tokens":                {Name: "c", Strategy: StrategyPrefix},
		"prefix_tokens (-1) must not be negative":            {Name: "c", Strategy: StrategyPrefix, PrefixTokens: -1},
		"prefix_tokens is for strategy prefix only":          {Name: "c", PrefixTokens: 1},
		"session_header is for strategy session only":        {Name: "c", SessionHeader: "x-s"},
		"locality_weight (-1) must be above 0 and at most 1": {Name: "c", LocalityWeight: -1},
		"locality_weight (11) must be above 0":               {Name: "c", LocalityWeight: 11},
		"min_prompt_tokens (-2) must not be negative":        {Name: "c", MinPromptTokens: -2},
		"wait_weight (0.5) must be 1 to 10":                  {Name: "c", WaitWeight: 0.5},
		"overlap_candidates (33) must be 1 to 32":            {Name: "c", OverlapCandidates: 33},
		"random_candidates (-1) must be 1 to 32":             {Name: "c", RandomCandidates: -1},
		"probes (99) must be 1 to 32":                        {Name: "c", Probes: 99},
		"retry_budget (1.5) must be above 0 and at most 1":   {Name: "c", RetryBudget: 1.5},
		"min_tokens and max_tokens must not be negative":     {Name: "c", Match: Match{MinTokens: -1}},
		"min_tokens (2) is above max_tokens (1)":             {Name: "c", Match: Match{MinTokens: 2, MaxTokens: 1}},
		`path ("v1") must begin with a slash`:                {Name: "c", Match: Match{Path: "v1"}},
		"api_key_sha256 must be 64 hex digits":               {Name: "c", Match: Match{APIKey: "secret"}},
	} {
		p := Policy{Classes: []Class{{Name: "good"}, c}}
		err := p.Validate()
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "policy class 2 (") || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v, want one line with: %s", err, want)
		}
	}
	for want, p := range map[string]Policy{
		"policy: classes (65) must be at most 64":                      {Classes: make([]Class, maxClasses+1)},
		`policy: response_headers "server" is none of engine, overlap`: {ResponseHeaders: []string{"engine", "server"}},
		`policy: allowed_routes "/metrics" is no route`:                {AllowedRoutes: []string{"/v1/models", "/metrics"}},
		`policy: allowed_fields "temperature" is refused by no rule`:   {AllowedFields: []string{"chat_template", "temperature"}},
	} {
		if err := p.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
