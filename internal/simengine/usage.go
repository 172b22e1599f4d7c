package simengine

// counts are the tokens of a call or of one of its choices.
type counts struct {
	prompt     int
	completion int
	cached     int // of the prompt
	created    int // of the prompt, in whole blocks that were not cached before
	reasoning  int // of the completion
}

func (n counts) total() int { return n.prompt + n.completion }

// count counts a prompt once however many choices it has; cached tokens are those of the first choice.
func (e *Engine) count(c *call) counts {
	var n counts
	per := len(c.jobs) / len(c.prompts)
	for i, j := range c.jobs {
		one := e.countChoice(j, int(j.produced.Load()))
		n.completion += one.completion
		n.reasoning += one.reasoning
		if i%per == 0 {
			n.prompt += one.prompt
			n.cached += one.cached
			n.created += one.created
		}
	}
	return n
}

// countChoice counts one choice of which so many tokens exist.
func (e *Engine) countChoice(j *job, produced int) counts {
	n := counts{prompt: j.prompt, completion: produced, cached: int(j.cached.Load())}
	n.created = j.prompt/e.cfg.BlockTokens*e.cfg.BlockTokens - n.cached
	if j.thinking > 0 { // the thought's marks do not count, nor what follows the second
		n.reasoning = max(0, min(produced, j.thinking-thoughtTail)-1)
	}
	return n
}

// reasons reports whether a reasoning parser is at work, which counts the tokens of thoughts.
func (e *Engine) reasons() bool { return e.cfg.Template == TemplateDropsThoughts }

// reportsCached: SGLang leaves the field out at 0, TensorRT-LLM and llama.cpp always have it.
func (e *Engine) reportsCached(cached int) bool {
	switch e.cfg.Kind {
	case KindSGLang:
		return e.cfg.CachedTokens && cached > 0
	case KindVLLM:
		return e.cfg.CachedTokens
	}
	return true
}

// cachedDetails is the usual form of cached tokens.
type cachedDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// reasoningDetails is OpenAI's place for the tokens of thoughts.
type reasoningDetails struct {
	ReasoningTokens int `json:"reasoning_tokens"`
}

// cachedIn is the field with cached tokens of a usage, or absent.
func (e *Engine) cachedIn(n counts, absent any) any {
	if !e.reportsCached(n.cached) {
		return absent
	}
	return cachedDetails{n.cached}
}
