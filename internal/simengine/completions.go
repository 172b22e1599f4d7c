package simengine

import "net/http"

// completionLimit is the answer's limit when a completion names none, as in the legacy API.
const completionLimit = 16

// completions answers POST /v1/completions.
func (e *Engine) completions(w http.ResponseWriter, r *http.Request, body []byte) error {
	c, err := e.completionCall(r, body)
	if err != nil {
		return err
	}
	return e.run(w, r, c, e.completionFormat(c))
}

// completionCall is the call that a completion makes.
func (e *Engine) completionCall(r *http.Request, body []byte) (*call, error) {
	var req completionRequest
	if err := decodeBody(body, &req); err != nil {
		return nil, err
	}
	if err := e.checkFields(body, completionFields); err != nil {
		return nil, err
	}
	prompts, err := req.Prompt.tokens(e.tok)
	if err != nil {
		return nil, err
	}
	spec := callSpec{
		params: req.params, prompts: prompts, maxTokens: req.MaxTokens, fallback: completionLimit, echo: req.Echo,
	}
	if e.cfg.Kind == KindOther {
		spec.fallback, spec.echo = 0, false
	}
	return e.newCall(r, spec)
}

// completionFormat is how the kind writes text completions; stream and whole answer have much the same shape.
func (e *Engine) completionFormat(c *call) format {
	w := writer{e: e, c: c}
	switch e.cfg.Kind {
	case KindSGLang:
		return &sglangText{w}
	case KindTRTLLM:
		return &trtText{w}
	case KindOther:
		return &llamaFormat{writer: w, text: true}
	}
	return &vllmText{writer: w}
}
