package openai

import (
	"math"
	"net/http"
	"slices"
	"strings"
)

// Limits bound what Parse takes.
type Limits struct {
	// Depth is how deep objects and arrays may nest. 64 is far above any tool schema; more costs a stack frame each,
	// here and in every engine's parser.
	Depth int
	// Body is the longest body in bytes.
	Body int
	// Refused are the fields that clients may not send: names at the top of the body, or "object.member" one level down.
	// A null is the same as the field left out. A policy may let a class of clients send some of them.
	Refused []string
}

// DefaultLimits returns the limits of a client without special rights: depth 64, 64 MiB, all of RefusedFields.
func DefaultLimits() Limits {
	return Limits{Depth: 64, Body: 64 << 20, Refused: RefusedFields()}
}

// RefusedFields returns the fields that would make an engine dial a host that the client names, jump its queue, defeat
// routing, run code, break its block accounting, or act for another request.
func RefusedFields() []string {
	return []string{
		"kv_transfer_params", "ec_transfer_params", "disaggregated_params", // dial out
		"bootstrap_host", "bootstrap_port", "bootstrap_room", // dial out
		"priority",                      // jumps the queue
		"data_parallel_rank", fieldRank, // defeat routing
		"custom_logit_processor", "chat_template", // run code
		"chat_template_kwargs.chat_template", "chat_template_kwargs.tokenize", // the same by another door
		"vllm_xargs.kv_cache_report_mode", // breaks reference counts of blocks
		"lora_path",                       // loads what the client names
		"request_id", "rid",               // name another's request
	}
}

// maxSession bounds a session id; a longer one is ignored. Agents send up to about 150 bytes.
const maxSession = 1024

// Request is one checked request. Its fields are what routing needs; what the engine needs is Body, as it came. It
// aliases the body given to Parse, which must not change while the Request lives.
type Request struct {
	Route        Route
	Model        string // as the client wrote it
	Stream       bool   // the answer is a stream of events
	IncludeUsage bool   // usage comes without our asking: the client asked, or the API always gives it
	N            int    // choices asked for, at least 1
	Prompts      int    // prompts in the body: more than 1 only for a batch of completions, whose keys are the first's
	MaxTokens    int    // bound on generated tokens; 0 when the client gives none
	Stored       bool   // the engine keeps the answer for later requests
	Background   bool   // the engine answers before it is done
	Media        bool   // images, sound or video are part of the prompt: its bytes say little of its tokens
	Keyless      string // why there are no keys (a closed set, see DESIGN.md); "" when Walk gives a canonical prompt
	Previous     string // the stored response that this one continues, which only one engine has; "" when none
	Traits       Traits // what decides what the answer can teach
	Salt         string // cache_salt, when it is short enough to be passed on
	LoRA         string // lora_path, likewise
	SessionID    string // what the client says its requests belong to; "" when it says nothing
	Body         []byte // the whole body as it came

	doc doc
	top members
}

// Parse checks body with DefaultLimits. The error is always an *Error.
func Parse(route Route, body []byte) (*Request, error) { return DefaultLimits().Parse(route, body) }

// Parse checks that body is JSON, that no field is refused, and that the fields that are read here have the right types,
// and finds what routing needs. What else an engine may object to is left to the engine. The error is always an *Error.
func (l Limits) Parse(route Route, body []byte) (*Request, error) {
	r := &Request{Route: route, N: 1, Prompts: 1, Body: body}
	if route.bodyless() {
		r.Keyless = "no_prompt"
		return r, nil
	}
	if err := l.parse(r); err != nil {
		return nil, err
	}
	return r, nil
}

func (l Limits) parse(r *Request) *Error {
	if len(r.Body) > min(l.Body, math.MaxUint32-1) {
		return &Error{
			Status: http.StatusRequestEntityTooLarge, Type: typeInvalid, Reason: ReasonSize,
			Message: "the body is longer than this server takes",
		}
	}
	var err *Error
	if r.doc, err = scan(r.Body, l.Depth); err != nil {
		return err
	}
	root := r.doc.root()
	if r.doc.kind(root) != kindObject {
		return badRequest(ReasonType, "", "the body must be an object")
	}
	if err := l.refuse(&r.doc, root); err != nil {
		return err
	}
	r.doc.fill(root, &r.top)
	if err := r.check(); err != nil {
		return err
	}
	r.read()
	return nil
}

// refuse looks at every member by itself: of two members with one name a parser may take either.
func (l Limits) refuse(d *doc, root span) *Error {
	for c := d.in(root); ; {
		key, v, ok := c.member()
		if !ok {
			return nil
		}
		if param, bad := l.refused(d, key, v); bad {
			return badRequest(ReasonField, param, "is not a field that clients may send here, unless allowed_fields of the policy names it")
		}
	}
}

// refused reports whether the member key of the top object may not be sent, and the name of the field at fault.
func (l Limits) refused(d *doc, key []byte, v span) (string, bool) {
	if d.kind(v) == 0 {
		return "", false
	}
	for _, field := range l.Refused {
		rest, ok := cutName(key, field)
		switch {
		case !ok:
		case rest == "":
			return field, true
		case d.kind(v) == kindObject && d.has(v, rest[1:]):
			return field, true
		}
	}
	return "", false
}

// cutName returns what follows key in field, "" or ".member", if the unescaped key is the field's first name.
func cutName(key []byte, field string) (string, bool) {
	top, _, _ := strings.Cut(field, ".")
	if rest, ok := cutPrefix(key, top); !ok || len(rest) != 0 {
		return "", false
	}
	return field[len(top):], true
}

// has reports whether the object v has a member called want that is not null.
func (d *doc) has(v span, want string) bool {
	for c := d.in(v); ; {
		key, v, ok := c.member()
		if !ok {
			return false
		}
		if rest, ok := cutPrefix(key, want); ok && len(rest) == 0 && d.kind(v) != 0 {
			return true
		}
	}
}

// read sets the fields of r from a checked body.
func (r *Request) read() {
	d, m := &r.doc, &r.top
	r.Model = string(appendUnescaped(nil, d.inner(m[nModel])))
	r.Stream = d.isTrue(m[nStream])
	r.IncludeUsage = r.includeUsage()
	if n, ok := d.integer(m[nN]); ok {
		r.N = max(n, 1)
	}
	for _, n := range []name{nMaxTokens, nMaxOutputTokens, nMaxCompletionTokens} {
		if v, ok := d.integer(m[n]); ok {
			r.MaxTokens = max(v, 0)
		}
	}
	// Responses are stored unless the client says otherwise; chat completions only if it asks.
	r.Stored = d.isTrue(m[nStore]) || r.Route == RouteResponses && !m[nStore].ok()
	r.Background = d.isTrue(m[nBackground])
	r.Previous = d.text(m[nPreviousResponseID], maxResponseID)
	r.SessionID = r.session()
	r.Prompts = r.prompts()
	r.Keyless = r.keyless()
	r.readTraits()
}

func (r *Request) includeUsage() bool {
	if r.Route != RouteChat && r.Route != RouteCompletions || !r.Stream {
		return true
	}
	var options members
	r.doc.fill(r.top[nStreamOptions], &options)
	return r.doc.isTrue(options[nIncludeUsage])
}

// session takes the most exact name that the client gives: a session's own id before an id of who asks.
func (r *Request) session() string {
	var meta members
	r.doc.fill(r.top[nMetadata], &meta)
	for _, v := range []span{
		r.top[nSessionID], meta[nSessionID], r.top[nPromptCacheKey], meta[nUserID], r.top[nUser],
	} {
		if s := r.doc.text(v, maxSession); s != "" {
			return s
		}
	}
	return ""
}

// prompts counts the prompts of a completion.
func (r *Request) prompts() int {
	d, v := &r.doc, r.top[nPrompt]
	if r.Route != RouteCompletions || d.kind(v) != kindArray {
		return 1
	}
	n := 0
	for c := d.in(v); ; n++ {
		e, ok := c.elem()
		if !ok {
			return max(n, 1)
		}
		if d.kind(e) == kindNumber {
			return 1
		}
	}
}

// keyless says why the request has no keys: its prompt is cut on the left, is not in the body, is not text or token ids,
// is not generated from, or is computed without reading the cache.
func (r *Request) keyless() string {
	d, m := &r.doc, &r.top
	switch {
	case r.Route == RouteCountTokens:
		return "count_tokens"
	case !r.hasPrompt():
		return "pooling"
	case m[nTruncatePromptTokens].ok(), m[nTruncationSide].ok(), m[nTruncation].ok() && !d.is(m[nTruncation], "disabled"):
		return "truncation"
	case m[nPromptEmbeds].ok(), m[nInputEmbeds].ok():
		return "embeds"
	case r.Route == RouteCompletions && !d.empty(m[nSuffix]):
		return "suffix"
	case m[nPreviousResponseID].ok(), m[nConversation].ok(), m[nSessionParams].ok(), r.hasReferences():
		return "stored"
	case r.Route == RouteResponses && m[nPrompt].ok():
		return "template"
	case m[nPromptLogprobs].ok(), d.isTrue(m[nEcho]) && m[nLogprobs].ok():
		return "prompt_logprobs"
	}
	return ""
}

// hasReferences reports whether the input names items that only the engine has.
func (r *Request) hasReferences() bool {
	d := &r.doc
	if r.Route != RouteResponses || d.kind(r.top[nInput]) != kindArray {
		return false
	}
	for c := d.in(r.top[nInput]); ; {
		v, ok := c.elem()
		if !ok {
			return false
		}
		var m members
		if d.fill(v, &m); d.itemType(&m) == itemReference {
			return true
		}
	}
}

// promptRoutes are the routes whose body holds a prompt that is read here.
var promptRoutes = []Route{RouteChat, RouteCompletions, RouteResponses, RouteMessages, RouteCountTokens}

func (r *Request) hasPrompt() bool { return slices.Contains(promptRoutes, r.Route) }
