package openai

// maxIDs bounds the ids of one prompt.
const maxIDs = 1 << 24

// ParseIDs reads a JSON array of token ids: integers of 32 bits without sign. It returns nil for anything else.
func ParseIDs(list []byte) []uint32 {
	if len(list) < 2 || list[0] != '[' || list[len(list)-1] != ']' {
		return nil
	}
	d := doc{b: list}
	c := d.in(span{0, uint32(len(list))})
	out := make([]uint32, 0, min(len(list)/6, maxIDs)) // ids of 5 digits and a comma; it grows for shorter ones
	for len(out) < maxIDs {
		id, ok := c.token()
		if !ok {
			break
		}
		out = append(out, id)
	}
	if !c.ended {
		return nil
	}
	return out
}

// PromptIDs returns the token ids that a request with TraitTokenPrompt or TraitChatIDs brings itself; nil when there are
// none. Body comes from a peer, so it is checked again.
func PromptIDs(route Route, body []byte) []uint32 {
	d, err := scan(body, DefaultLimits().Depth)
	if err != nil || d.kind(d.root()) != kindObject {
		return nil
	}
	var top members
	d.fill(d.root(), &top)
	switch route {
	case RouteCompletions:
		if v, ok := d.tokenPrompt(top[nPrompt]); ok {
			return ParseIDs(d.b[v.lo:v.hi])
		}
	case RouteChat:
		if v := d.chatIDs(&top); v.ok() {
			return ParseIDs(d.b[v.lo:v.hi])
		}
	default:
	}
	return nil
}

// chatIDs returns the list of token ids that stands in for the messages of a chat; none when there are two, of which each
// kind of engine reads its own.
func (d *doc) chatIDs(top *members) span {
	v := top[nInputIDs]
	for c := d.in(d.root()); ; {
		key, other, ok := c.member()
		switch {
		case !ok && d.kind(v) == kindArray:
			return v
		case !ok:
			return span{}
		case string(key) == fieldChatIDs && v.ok():
			return span{}
		case string(key) == fieldChatIDs:
			v = other
		}
	}
}
