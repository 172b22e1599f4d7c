package openai

import "bytes"

// RenderBody returns the body of a request that has an engine's tokenize or render route turn a request's conversation into
// token ids; nil when that might give other ids than the request's own route does. Body is one that Parse takes, without
// media. A chat keeps the fields that templates see. Of the Responses and Messages routes only conversations of plain texts
// become chats: engines differ in what they make of the rest.
func RenderBody(route Route, body []byte) []byte {
	d, err := scan(body, DefaultLimits().Depth)
	if err != nil || d.kind(d.root()) != kindObject {
		return nil
	}
	chat, ok := d.templateFields(route)
	switch {
	case !ok:
		return nil
	case route == RouteChat:
		return chat
	}
	return d.plainChat(route)
}

// templateFields returns the top object with only the members that decide the rendering, as they stand. It is false when
// one is not known to be among them, nor to change nothing.
func (d *doc) templateFields(route Route) (object []byte, ok bool) {
	object = append(object, '{')
	for c := d.in(d.root()); ; {
		key, v, more := c.member()
		switch {
		case !more:
			return append(bytes.TrimSuffix(object, []byte{','}), '}'), true
		case inTemplate(route, string(key)):
			object = append(append(append(object, '"'), key...), `":`...)
			object = append(append(object, d.b[v.lo:v.hi]...), ',')
		case d.kind(v) != 0 && !outsideTemplate(string(key)):
			return nil, false
		}
	}
}

// inTemplate reports whether RenderBody passes a field on.
func inTemplate(route Route, field string) bool {
	switch field {
	case "model":
		return true
	case "messages":
		return route == RouteChat || route == RouteMessages
	case "tools", "tool_choice", "chat_template_kwargs", "reasoning_effort", "add_generation_prompt", "continue_final_message":
		return route == RouteChat
	case "system":
		return route == RouteMessages
	case "instructions", "input":
		return route == RouteResponses
	}
	return false
}

// outsideTemplate reports whether a field changes no rendering, on whatever route it may stand.
func outsideTemplate(field string) bool {
	switch field {
	case "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens",
		"temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty", "repetition_penalty",
		"logit_bias", "logprobs", "top_logprobs", "stop", "stop_sequences", "stop_token_ids", "ignore_eos",
		"skip_special_tokens", "separate_reasoning", "stream_reasoning", "parallel_tool_calls",
		"user", "metadata", "store", "service_tier", "session_id", "prompt_cache_key", "cache_salt", "lora_path":
		return true
	}
	return false
}

// plainChat returns a conversation of plain texts as a chat, nil when it is another one. An answer that a client has begun
// is none: some engines go on with it, others answer it.
func (d *doc) plainChat(route Route) []byte {
	var top members
	d.fill(d.root(), &top)
	head, list := top[nSystem], top[nMessages]
	if route == RouteResponses {
		head, list = top[nInstructions], top[nInput]
	}
	ok := d.kind(top[nModel]) == kindString
	out := append([]byte(`{"model":`), d.b[top[nModel].lo:top[nModel].hi]...)
	out = append(out, `,"messages":[`...)
	if ok && !d.empty(head) {
		out, ok = d.plainMessage(out, "system", head)
		out = append(out, ',')
	}
	if !ok {
		return nil
	}
	if route == RouteResponses && d.kind(list) == kindString {
		out, ok = d.plainMessage(out, "user", list)
	} else {
		out, ok = d.plainTurns(out, list)
	}
	if !ok {
		return nil
	}
	return append(out, "]}"...)
}

// plainTurns appends the messages of a list, the last of which must be a user's.
func (d *doc) plainTurns(out []byte, list span) (_ []byte, ok bool) {
	if d.kind(list) != kindArray {
		return nil, false
	}
	last := ""
	for c := d.in(list); ; {
		v, more := c.elem()
		if !more {
			return out, last == "user"
		}
		var m members
		d.fill(v, &m)
		if last != "" {
			out = append(out, ',')
		}
		last = string(d.word(m[nRole]))
		if last != "user" && last != "assistant" || d.itemType(&m) != itemMessage {
			return nil, false
		}
		if out, ok = d.plainMessage(out, last, m[nContent]); !ok {
			return nil, false
		}
	}
}

// plainMessage appends a message whose content is one text, alone or as the only part.
func (d *doc) plainMessage(out []byte, role string, content span) (_ []byte, ok bool) {
	if d.kind(content) == kindArray {
		if content, ok = d.onlyText(content); !ok {
			return nil, false
		}
	}
	if d.kind(content) != kindString || d.empty(content) {
		return nil, false
	}
	out = append(append(append(out, `{"role":"`...), role...), `","content":`...)
	return append(append(out, d.b[content.lo:content.hi]...), '}'), true
}

// onlyText returns the text of the only part of a content. Texts that some engines leave out are none.
func (d *doc) onlyText(content span) (span, bool) {
	c := d.in(content)
	part, _ := c.elem()
	if _, more := c.elem(); more {
		return span{}, false
	}
	var m members
	d.fill(part, &m)
	switch string(d.word(m[nType])) {
	case "text", "input_text", "output_text":
		_, billing := cutPrefix(d.inner(m[nText]), billingHeader)
		return m[nText], !billing
	}
	return span{}, false
}
