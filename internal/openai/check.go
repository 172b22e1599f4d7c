package openai

// rule says what kinds of value a field may have. Null is always allowed: it is the same as the field left out.
type rule struct {
	name  name
	kinds kind
}

// The fields that are read, and their kinds. A field that is not here may be anything.
var (
	commonRules = []rule{{nModel, kindString}, {nStream, kindBool}}

	promptRules = []rule{
		{nStreamOptions, kindObject},
		{nN, kindNumber},
		{nMaxTokens, kindNumber},
		{nMaxCompletionTokens, kindNumber},
		{nMaxOutputTokens, kindNumber},
		{nStore, kindBool},
		{nBackground, kindBool},
		{nEcho, kindBool},
		{nTools, kindArray},
		{nToolChoice, kindString | kindObject},
		{nChatTemplateKwargs, kindObject},
		{nChatTemplate, kindString},
		{nCacheSalt, kindString},
		{nAddSpecialTokens, kindBool},
		{nTruncation, kindString},
		{nPreviousResponseID, kindString},
		{nInstructions, kindString},
		{nReasoningEffort, kindString},
		{nInputIDs, kindArray},
	}
	messageRules = []rule{
		{nRole, kindString},
		{nContent, kindString | kindArray},
		{nName, kindString},
		{nReasoning, kindString},
		{nReasoningContent, kindString},
		{nToolCalls, kindArray},
		{nToolCallID, kindString},
	}
	partRules = []rule{{nType, kindString}, {nText, kindString}, {nRefusal, kindString}, {nThinking, kindString}}
	callRules = []rule{{nID, kindString}, {nFunction, kindObject}, {nCustom, kindObject}, {nName, kindString}}
	nameRules = []rule{{nName, kindString}}
	toolRules = []rule{{nType, kindString}, {nFunction, kindObject}, {nName, kindString}, {nDescription, kindString}}
	itemRules = []rule{
		{nType, kindString},
		{nRole, kindString},
		{nContent, kindString | kindArray},
		{nName, kindString},
		{nCallID, kindString},
		{nSummary, kindArray},
	}
	blockRules = []rule{
		{nType, kindString},
		{nText, kindString},
		{nThinking, kindString},
		{nID, kindString},
		{nName, kindString},
		{nToolUseID, kindString},
	}
)

// integers are the number fields that must be whole.
var integers = []name{nN, nMaxTokens, nMaxCompletionTokens, nMaxOutputTokens}

// obey checks the members of one object.
func (d *doc) obey(m *members, rules []rule) *Error {
	for _, r := range rules {
		if k := d.kind(m[r.name]); k&r.kinds != k {
			return badRequest(ReasonType, r.name.String(), "must be %v", r.kinds)
		}
	}
	return nil
}

// each checks every element of the array v, which has the name field. A v that is no array has no elements.
func (d *doc) each(v span, field name, check func(span) *Error) *Error {
	if d.kind(v) != kindArray {
		return nil
	}
	c := d.in(v)
	for i := 0; ; i++ {
		e, ok := c.elem()
		if !ok {
			return nil
		}
		if err := check(e); err != nil {
			return err.under(field.String(), i)
		}
	}
}

// object fills m from v, which must be an object that obeys the rules.
func (d *doc) object(v span, m *members, rules []rule) *Error {
	if d.kind(v) != kindObject {
		return badRequest(ReasonType, "", "must be %v", kindObject)
	}
	d.fill(v, m)
	return d.obey(m, rules)
}

// check checks the types of the fields that are read.
func (r *Request) check() *Error {
	d, m := &r.doc, &r.top
	if err := d.obey(m, commonRules); err != nil {
		return err
	}
	if d.empty(m[nModel]) {
		return missing("model")
	}
	if !r.hasPrompt() {
		return nil
	}
	if err := d.obey(m, promptRules); err != nil {
		return err
	}
	for _, n := range integers {
		if _, ok := d.integer(m[n]); m[n].ok() && !ok {
			return badRequest(ReasonType, n.String(), "must be an integer")
		}
	}
	if err := d.each(m[nTools], nTools, r.checkTool); err != nil {
		return err
	}
	return r.checkPrompt()
}

func (r *Request) checkPrompt() *Error {
	d, m := &r.doc, &r.top
	switch r.Route {
	case RouteCompletions:
		return r.checkCompletion()
	case RouteResponses:
		return r.checkInput()
	case RouteChat:
		if !d.emptyArray(m[nInputIDs]) {
			if err := r.checkTokens(m[nInputIDs], nInputIDs); err != nil || d.empty(m[nMessages]) {
				return err
			}
		}
		return r.checkMessages(r.checkMessage)
	default: // the route of messages, and the count of their tokens
		return r.checkTurns()
	}
}

// checkTurns checks the system blocks and messages of the messages route.
func (r *Request) checkTurns() *Error {
	d, m := &r.doc, &r.top
	if err := d.obey(m, []rule{{nSystem, kindString | kindArray}}); err != nil {
		return err
	}
	if err := d.each(m[nSystem], nSystem, r.checkBlock); err != nil {
		return err
	}
	return r.checkMessages(r.checkTurn)
}

// checkMessages checks that there are messages and each of them.
func (r *Request) checkMessages(check func(span) *Error) *Error {
	d, v := &r.doc, r.top[nMessages]
	if err := d.obey(&r.top, []rule{{nMessages, kindArray}}); err != nil {
		return err
	}
	if d.emptyArray(v) {
		return missing("messages")
	}
	return d.each(v, nMessages, check)
}

// emptyArray reports whether v is absent or an array without elements.
func (d *doc) emptyArray(v span) bool {
	if d.kind(v) != kindArray {
		return !v.ok()
	}
	c := d.in(v)
	_, ok := c.elem()
	return !ok
}

// checkMessage checks one message of the chat route.
func (r *Request) checkMessage(v span) *Error {
	d := &r.doc
	var m members
	if err := d.object(v, &m, messageRules); err != nil {
		return err
	}
	if d.empty(m[nRole]) {
		return missing("role")
	}
	if err := d.each(m[nContent], nContent, r.checkPart); err != nil {
		return err
	}
	return d.each(m[nToolCalls], nToolCalls, r.checkCall)
}

// checkPart checks one content part; a bare string is text.
func (r *Request) checkPart(v span) *Error {
	if r.doc.kind(v) == kindString {
		return nil
	}
	var m members
	if err := r.doc.object(v, &m, partRules); err != nil {
		return err
	}
	r.Media = r.Media || r.doc.mediaKind(&m) != ""
	return nil
}

func (r *Request) checkCall(v span) *Error {
	var m members
	if err := r.doc.object(v, &m, callRules); err != nil {
		return err
	}
	for _, n := range []name{nFunction, nCustom} {
		var f members
		if m[n].ok() {
			if err := r.doc.object(m[n], &f, nameRules); err != nil {
				return err.under(n.String(), -1)
			}
		}
	}
	return nil
}

func (r *Request) checkTool(v span) *Error {
	d := &r.doc
	var m, f members
	if err := d.object(v, &m, toolRules); err != nil {
		return err
	}
	if m[nFunction].ok() {
		if err := d.object(m[nFunction], &f, toolRules[2:]); err != nil {
			return err.under(nFunction.String(), -1)
		}
	}
	return d.each(m[nTools], nTools, r.checkTool)
}

// checkTurn checks one message of the Messages route.
func (r *Request) checkTurn(v span) *Error {
	d := &r.doc
	var m members
	if err := d.object(v, &m, messageRules[:2]); err != nil {
		return err
	}
	if d.empty(m[nRole]) {
		return missing("role")
	}
	return d.each(m[nContent], nContent, r.checkBlock)
}

func (r *Request) checkBlock(v span) *Error {
	d := &r.doc
	var m members
	if err := d.object(v, &m, blockRules); err != nil {
		return err
	}
	if string(d.word(m[nType])) == "tool_result" {
		if err := d.obey(&m, messageRules[1:2]); err != nil {
			return err
		}
		return d.each(m[nContent], nContent, r.checkPart)
	}
	r.Media = r.Media || d.mediaKind(&m) != ""
	return nil
}

// checkInput checks the input of the Responses route. A request that goes on from what the engine has stored may have
// none of its own.
func (r *Request) checkInput() *Error {
	d, m := &r.doc, &r.top
	if err := d.obey(m, []rule{{nInput, kindString | kindArray}}); err != nil {
		return err
	}
	stored := m[nPreviousResponseID].ok() || m[nConversation].ok() || m[nPrompt].ok()
	if d.emptyArray(m[nInput]) && !stored {
		return missing("input")
	}
	return d.each(m[nInput], nInput, r.checkItem)
}

func (r *Request) checkItem(v span) *Error {
	d := &r.doc
	var m members
	if err := d.object(v, &m, itemRules); err != nil {
		return err
	}
	t := d.itemType(&m)
	if t == itemMessage && d.empty(m[nRole]) {
		return missing("role")
	}
	if err := d.each(m[nContent], nContent, r.checkPart); err != nil {
		return err
	}
	if err := d.each(m[nSummary], nSummary, r.checkPart); err != nil {
		return err
	}
	if t != itemOutput {
		return nil
	}
	if err := d.obey(&m, []rule{{nOutput, kindString | kindArray}}); err != nil {
		return err
	}
	return d.each(m[nOutput], nOutput, r.checkPart)
}

// checkCompletion checks the prompt of a completion: a string, token ids, or a list of either.
func (r *Request) checkCompletion() *Error {
	d, v := &r.doc, r.top[nPrompt]
	if err := d.obey(&r.top, []rule{{nPrompt, kindString | kindArray}}); err != nil {
		return err
	}
	switch {
	case !v.ok() && r.top[nPromptEmbeds].ok():
		return nil
	case d.emptyArray(v):
		return missing("prompt")
	}
	if d.kind(v) == kindString {
		return nil
	}
	c := d.in(v)
	first, _ := c.elem()
	switch d.kind(first) {
	case kindString:
		return d.each(v, nPrompt, func(e span) *Error { return r.want(e, kindString) })
	case kindArray:
		return d.each(v, nPrompt, func(e span) *Error {
			if err := r.want(e, kindArray); err != nil {
				return err
			}
			return r.checkTokens(e, nNone)
		})
	default:
		return r.checkTokens(v, nPrompt)
	}
}

func (r *Request) want(v span, k kind) *Error {
	if r.doc.kind(v) != k {
		return badRequest(ReasonType, "", "must be %v", k)
	}
	return nil
}

// checkTokens checks the array v of token ids.
func (r *Request) checkTokens(v span, field name) *Error {
	c := r.doc.in(v)
	for i := 0; ; i++ {
		switch _, ok := c.token(); {
		case c.ended:
			return nil
		case !ok:
			return badRequest(ReasonType, "", "must be a token id").under(field.String(), i)
		}
	}
}
