package openai

// Usage is what an engine says an answer took. Cached tokens are a part of the prompt tokens.
type Usage struct {
	PromptTokens, CompletionTokens int
	CachedTokens                   int
	HasCached                      bool // the engine said how many were cached; when false it may not count, or count 0
}

// answerDepth bounds the nesting of what an engine answers, as Limits.Depth does for requests.
const answerDepth = 64

// ParseUsage reads the usage of an answer that is not a stream. It returns false when body is not JSON or has no usage.
func ParseUsage(route Route, body []byte) (Usage, bool) {
	d, err := scan(body, answerDepth)
	if err != nil {
		return Usage{}, false
	}
	var top members
	d.fill(d.root(), &top)
	if route == RouteCountTokens {
		n, ok := d.integer(top[nInputTokens])
		return Usage{PromptTokens: max(n, 0)}, ok
	}
	var u Usage
	return u, u.merge(&d, top[nUsage])
}

// merge takes over what the usage object v says and reports whether it says anything. Streams of the Messages API spread
// usage over several events, so what v leaves out stays.
func (u *Usage) merge(d *doc, v span) bool {
	var m, details members
	d.fill(v, &m)
	prompt, okPrompt := d.count(m.firstOf(nPromptTokens, nInputTokens))
	if okPrompt {
		u.PromptTokens = prompt
	}
	completion, okCompletion := d.count(m.firstOf(nCompletionTokens, nOutputTokens))
	if okCompletion {
		u.CompletionTokens = completion
	}
	d.fill(m.firstOf(nPromptTokensDetails, nInputTokensDetails), &details)
	if cached, ok := d.count(details[nCachedTokens]); ok {
		u.CachedTokens, u.HasCached = cached, true
	}
	if read, ok := d.count(m[nCacheReadInputTokens]); ok {
		u.CachedTokens, u.HasCached = read, true
		u.addUncounted(d, &m)
	}
	return okPrompt || okCompletion
}

// addUncounted makes the prompt whole for an answer in Anthropic's own terms, where input_tokens leaves out what was read
// from the cache and what was written to it. vLLM and SGLang count the whole prompt there. The two are told apart where
// that can be done: a part cannot be larger than the whole.
func (u *Usage) addUncounted(d *doc, m *members) {
	created, _ := d.count(m[nCacheCreationInputTokens])
	if u.CachedTokens > u.PromptTokens || created > 0 {
		u.PromptTokens += u.CachedTokens + created
	}
}

// count returns the number of tokens v.
func (d *doc) count(v span) (int, bool) {
	n, ok := d.integer(v)
	return n, ok && n >= 0
}
