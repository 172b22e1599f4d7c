package simengine

import "net/http"

// chat answers POST /v1/chat/completions.
func (e *Engine) chat(w http.ResponseWriter, r *http.Request, body []byte) error {
	c, err := e.chatCall(r, body)
	if err != nil {
		return err
	}
	return e.run(w, r, c, e.chatFormat(c))
}

// chatCall is the call that a chat request makes.
func (e *Engine) chatCall(r *http.Request, body []byte) (*call, error) {
	var req chatRequest
	if err := decodeBody(body, &req); err != nil {
		return nil, err
	}
	if err := e.checkFields(body, chatFields); err != nil {
		return nil, err
	}
	prompt, thinking, err := e.chatPrompt(&req)
	if err != nil {
		return nil, err
	}
	if e.cfg.Kind == KindSGLang && req.Stream && (req.ReturnTokenIDs || req.ReturnPromptTokenIDs) {
		return nil, badRequest("return_token_ids is not supported with streaming on /v1/chat/completions. "+
			"Please set stream=false when using return_token_ids=true.", "")
	}
	tools := len(req.Tools) > 0 && string(req.ToolChoice) != `"none"`
	c, err := e.newCall(r, callSpec{
		params: req.params, prompts: [][]Token{prompt}, maxTokens: req.maxTokens(), thinking: thinking,
		parser: e.cfg.Template == TemplateDropsThoughts || tools,
	})
	if err != nil {
		return nil, err
	}
	if e.cfg.Kind == KindSGLang {
		c.wantPrompt = (req.ReturnPromptTokenIDs || req.ReturnTokenIDs) && e.cfg.TokenIDs
	}
	if c.parser && e.cfg.Kind == KindVLLM && req.IncludeReasoning != nil && !*req.IncludeReasoning {
		c.hideThoughts, c.wantOutput = true, false // the prompt's ids still come
	}
	return c, nil
}

// chatPrompt renders and tokenises a chat request, and says whether its answer begins with a thought.
func (e *Engine) chatPrompt(req *chatRequest) (prompt []Token, thinking bool, err error) {
	ids := req.InputIDs
	switch e.cfg.Kind {
	case KindTRTLLM:
		ids = req.PromptTokenIDs
	case KindVLLM, KindOther:
		ids = nil
	}
	if ids != nil {
		return ids, false, checkTokens(ids, e.tok)
	}
	conv, err := req.conversation(e.cfg.Kind)
	if err != nil {
		return nil, false, err
	}
	return e.promptOf(conv), e.thinks(conv), nil
}

func (e *Engine) promptOf(c *conversation) []Token { return e.tok.encode(nil, e.render(c)) }

func (e *Engine) thinks(c *conversation) bool {
	return e.cfg.Template == TemplateDropsThoughts && !c.noThinking && !c.continueFinal
}

// chatFormat is how the kind writes chat completions.
func (e *Engine) chatFormat(c *call) format {
	w := writer{e: e, c: c}
	switch e.cfg.Kind {
	case KindSGLang:
		return &sglangChat{w}
	case KindTRTLLM:
		return &trtChat{writer: w}
	case KindOther:
		return &llamaFormat{writer: w}
	}
	return &vllmChat{writer: w}
}
