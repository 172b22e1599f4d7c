package openai

import (
	"slices"
	"strconv"
	"strings"
)

// twinParse accepts or refuses a body as Parse does, in the plain way, and returns a twin that can walk it.
func twinParse(route Route, body []byte) (*twin, bool) {
	top, err := twinTree(body)
	if err != nil || !top.is("{") {
		return nil, false
	}
	t := &twin{route: route, top: top}
	return t, !t.refused() && t.accepts()
}

// refused looks at every member, also at those that a later one of the same name replaces.
func (t *twin) refused() bool {
	for i, k := range t.top.keys {
		v := t.top.list[i]
		for _, field := range RefusedFields() {
			top, member, nested := strings.Cut(field, ".")
			switch {
			case k != top || v.is("n"):
			case !nested:
				return true
			case v.is("{"):
				for j, in := range v.keys {
					if in == member && !v.list[j].is("n") {
						return true
					}
				}
			}
		}
	}
	return false
}

// kinds reports whether every field in the pairs of name and kinds is absent or of one of its kinds.
func (n *node) kinds(pairs ...string) bool {
	for i := 0; i < len(pairs); i += 2 {
		for name := range strings.FieldsSeq(pairs[i]) {
			if v := n.get(name); v != nil && !v.is(pairs[i+1]) {
				return false
			}
		}
	}
	return true
}

func all(list []*node, check func(*node) bool) bool {
	return !slices.ContainsFunc(list, func(n *node) bool { return !check(n) })
}

func (t *twin) accepts() bool {
	top := t.top
	if !top.kinds("model", `"`, "stream", "tf") || top.get("model").text() == "" {
		return false
	}
	if t.route > RouteCountTokens {
		return true
	}
	if !top.kinds(
		"stream_options chat_template_kwargs", "{",
		"n max_tokens max_completion_tokens max_output_tokens", "0",
		"store background echo add_special_tokens", "tf",
		"tools input_ids", "[",
		"tool_choice", `"{`,
		"chat_template cache_salt truncation previous_response_id instructions reasoning_effort", `"`,
	) {
		return false
	}
	for _, k := range []string{"n", "max_tokens", "max_completion_tokens", "max_output_tokens"} {
		if v := top.get(k); v != nil {
			if _, err := strconv.Atoi(v.str); err != nil || len(v.str) > 20 {
				return false
			}
		}
	}
	return all(top.get("tools").array(), t.toolOK) && t.promptOK()
}

func (t *twin) toolOK(n *node) bool {
	if !n.is("{") || !n.kinds("type name description", `"`, "function", "{") {
		return false
	}
	f := n.get("function")
	return (f == nil || f.kinds("name description", `"`)) && all(n.get("tools").array(), t.toolOK)
}

func (t *twin) promptOK() bool {
	top := t.top
	switch t.route {
	case RouteCompletions:
		p := top.get("prompt")
		if p == nil {
			return top.get("prompt_embeds") != nil
		}
		return p.is(`"`) || p.is("[") && len(p.list) > 0 && promptListOK(p.list)
	case RouteResponses:
		in := top.get("input")
		if in == nil || in.is("[") && len(in.list) == 0 {
			return top.first("previous_response_id", "conversation", "prompt") != nil
		}
		return in.is(`"[`) && all(in.array(), t.itemOK)
	case RouteChat:
		ids := top.get("input_ids")
		if len(ids.array()) == 0 {
			ids = nil
		} else if !all(ids.list, tokenOK) {
			return false
		}
		list := top.get("messages")
		if list == nil && ids != nil || list.is(`"`) && list.str == "" && ids != nil {
			return true
		}
		return list.is("[") && len(list.list) > 0 && all(list.list, t.messageOK)
	default:
		return t.turnsOK()
	}
}

func (t *twin) turnsOK() bool {
	top := t.top
	list := top.get("messages")
	return top.kinds("system", `"[`) && all(top.get("system").array(), t.blockOK) &&
		list.is("[") && len(list.list) > 0 && all(list.list, func(n *node) bool {
		return n.is("{") && n.kinds("role", `"`, "content", `"[`) && n.get("role").text() != "" &&
			all(n.get("content").array(), t.blockOK)
	})
}

func promptListOK(list []*node) bool {
	switch {
	case list[0].is(`"`):
		return all(list, func(n *node) bool { return n.is(`"`) })
	case list[0].is("["):
		return all(list, func(n *node) bool { return n.is("[") && all(n.list, tokenOK) })
	}
	return all(list, tokenOK)
}

func tokenOK(n *node) bool {
	if !n.is("0") || strings.Trim(n.str, "0123456789") != "" {
		return false
	}
	_, err := strconv.ParseUint(n.str, 10, 32)
	return err == nil
}

func (t *twin) partOK(n *node) bool {
	if n.is(`"`) {
		return true
	}
	ok := n.is("{") && n.kinds("type text refusal thinking", `"`)
	t.media = t.media || ok && twinKind(n) != ""
	return ok
}

func (t *twin) messageOK(n *node) bool {
	if !n.is("{") || n.get("role").text() == "" ||
		!n.kinds("role name reasoning reasoning_content tool_call_id", `"`, "content", `"[`, "tool_calls", "[") {
		return false
	}
	return all(n.get("content").array(), t.partOK) && all(n.get("tool_calls").array(), func(c *node) bool {
		return c.is("{") && c.kinds("id name", `"`, "function custom", "{") &&
			c.get("function").kinds("name", `"`) && c.get("custom").kinds("name", `"`)
	})
}

func (t *twin) blockOK(n *node) bool {
	if !n.is("{") || !n.kinds("type text thinking id name tool_use_id", `"`) {
		return false
	}
	if n.get("type").text() == "tool_result" {
		return n.kinds("content", `"[`) && all(n.get("content").array(), t.partOK)
	}
	t.media = t.media || twinKind(n) != ""
	return true
}

func (t *twin) itemOK(n *node) bool {
	if !n.is("{") || !n.kinds("type role name call_id", `"`, "content", `"[`, "summary", "[") {
		return false
	}
	typ := n.get("type").text()
	if (typ == "" || typ == "message") && n.get("role").text() == "" {
		return false
	}
	output := typ == "function_call_output" || typ == "custom_tool_call_output"
	return all(n.get("content").array(), t.partOK) && all(n.get("summary").array(), t.partOK) &&
		(!output || n.kinds("output", `"[`) && all(n.get("output").array(), t.partOK))
}
