package openai

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
	"github.com/go-json-experiment/json/jsontext"
)

// The twin reads a request the slow and plain way: the whole body as a tree, every conversation turned into one list of
// messages, one function that writes messages out. It shares no code with the reader but the tags.

// node is one JSON value. A nil node is no value; null becomes nil wherever a member is read.
type node struct {
	kind byte // as jsontext.Kind: n t f " 0 { [
	str  string
	list []*node
	keys []string
}

var errTwin = errors.New("twin refuses")

func twinTree(body []byte) (*node, error) {
	d := jsontext.NewDecoder(bytes.NewReader(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	n, err := twinNode(d, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errTwin
	}
	return n, nil
}

func twinNode(d *jsontext.Decoder, depth int) (*node, error) {
	t, err := d.ReadToken()
	if err != nil {
		return nil, err
	}
	n := &node{kind: byte(t.Kind()), str: t.String()}
	if n.kind != '{' && n.kind != '[' {
		return n, nil
	}
	if depth == 64 {
		return nil, errTwin
	}
	for d.PeekKind() != ']' && d.PeekKind() != '}' {
		if n.kind == '{' {
			key, err := d.ReadToken()
			if err != nil {
				return nil, err
			}
			n.keys = append(n.keys, key.String())
		}
		v, err := twinNode(d, depth+1)
		if err != nil {
			return nil, err
		}
		n.list = append(n.list, v)
	}
	_, err = d.ReadToken()
	return n, err
}

// get returns the last member called key, nil when it is absent or null.
func (n *node) get(key string) *node {
	if n == nil || n.kind != '{' {
		return nil
	}
	var v *node
	for i, k := range n.keys {
		if k == key {
			v = n.list[i]
		}
	}
	if v != nil && v.kind == 'n' {
		return nil
	}
	return v
}

func (n *node) first(keys ...string) *node {
	for _, k := range keys {
		if v := n.get(k); v != nil {
			return v
		}
	}
	return nil
}

func (n *node) is(kinds string) bool { return n != nil && strings.IndexByte(kinds, n.kind) >= 0 }

func (n *node) array() []*node {
	if n.is("[") {
		return n.list
	}
	return nil
}

// text returns the string n, "" for anything else.
func (n *node) text() string {
	if n.is(`"`) {
		return n.str
	}
	return ""
}

func twinQuote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range []byte(s) {
		switch i := strings.IndexByte("\"\\\b\f\n\r\t", c); {
		case i >= 0:
			b.WriteString(`\` + `"\bfnrt`[i:i+1])
		case c < ' ':
			b.WriteString(`\u00` + strconv.FormatInt(int64(c)+0x100, 16)[1:])
		default:
			b.WriteByte(c)
		}
	}
	return b.String() + `"`
}

// json writes n with the given separators.
func (n *node) json(comma, colon string) string {
	switch {
	case n == nil:
		return ""
	case n.kind == '"':
		return twinQuote(n.str)
	case n.kind == '[' || n.kind == '{':
		parts := make([]string, len(n.list))
		for i, v := range n.list {
			parts[i] = v.json(comma, colon)
			if n.kind == '{' {
				parts[i] = twinQuote(n.keys[i]) + colon + parts[i]
			}
		}
		if n.kind == '[' {
			return "[" + strings.Join(parts, comma) + "]"
		}
		return "{" + strings.Join(parts, comma) + "}"
	}
	return n.str
}

// value is a string's text or the compact JSON of anything else.
func (n *node) value() string {
	if n.is(`"`) {
		return n.str
	}
	return n.json(",", ":")
}

// piece is one field or mark of a walk; end tags are left out, since every field has one.
type piece struct {
	tag  byte
	text string
}

type twinPart struct{ text, media string }

type twinCall struct{ name, arguments, id string }

type twinMessage struct {
	role, name, reasoning string
	parts                 []twinPart
	calls                 []twinCall
	resultID              string
	partial               bool
}

type twin struct {
	route  Route
	top    *node
	layout Layout
	media  bool
	out    []piece
}

func (t *twin) field(tag byte, s string) {
	if s != "" {
		t.out = append(t.out, piece{tag, s})
	}
}

// pair emits two fields, also when they are empty.
func (t *twin) pair(a byte, s string, b byte, v string) {
	t.out = append(t.out, piece{a, s}, piece{b, v})
}

func (t *twin) mark(tag byte) { t.out = append(t.out, piece{tag: tag}) }

func (t *twin) write(m twinMessage) {
	t.field(tagRole, m.role)
	t.field(tagName, m.name)
	t.field(tagReasoning, m.reasoning)
	for _, p := range m.parts {
		t.field(tagText, p.text)
		t.field(tagMedia, p.media)
	}
	for _, c := range m.calls {
		t.out = append(t.out, piece{tagCall, c.name})
		t.field(tagArguments, c.arguments)
		t.field(tagCallID, c.id)
	}
	t.field(tagResultID, m.resultID)
	if m.partial {
		t.out = append(t.out, piece{tag: tagPartial})
	}
	t.mark(markMessage)
}

func (t *twin) walk(model string) []piece {
	t.root(model)
	if t.route == RouteCompletions {
		t.prompt(t.top.get("prompt"))
		return t.out
	}
	if ids := t.top.get("input_ids"); t.route == RouteChat && len(ids.array()) > 0 {
		t.prompt(ids)
		return t.out
	}
	messages, leading := t.conversation()
	tools := t.tools(t.top.get("tools"))
	if t.layout&LayoutToolsFirst != 0 {
		leading = 0
	}
	if t.layout&LayoutHeadLast != 0 && t.route == RouteChat {
		messages, leading = headLast(messages, leading)
	}
	for i, m := range append(messages, twinMessage{}) {
		if i == leading && len(tools) > 0 {
			t.out = append(t.out, tools...)
			t.mark(markMessage)
		}
		if i < len(messages) {
			t.write(m)
		}
	}
	return t.out
}

func (t *twin) root(model string) {
	top, options := t.top, t.top.get("chat_template_kwargs")
	t.pair(tagModel, model, tagLayout, string([]byte{byte(t.layout), byte(t.layout >> 8)}))
	t.field(tagLoRA, top.get("lora_path").value())
	t.field(tagSalt, top.get("cache_salt").value())
	t.field(tagExtraKey, top.get("extra_key").value())
	t.field(tagTemplate, top.get("chat_template").value())
	if v := top.get("add_special_tokens"); v != nil && v.is("t") != (t.route == RouteCompletions) {
		t.field(tagSpecialTokens, v.json("", ""))
	}
	if t.layout&LayoutEffortHead != 0 {
		for _, v := range []*node{
			top.get("reasoning_effort"), top.get("reasoning").get("effort"),
			top.get("output_config").get("effort"), options.get("reasoning_effort"),
		} {
			if v != nil && v.value() != "" {
				t.field(tagEffort, v.value())
				break
			}
		}
		for _, v := range []*node{
			top.get("thinking"), top.get("enable_thinking"), options.get("enable_thinking"),
			options.get("thinking"),
		} {
			if v != nil {
				t.field(tagThinking, v.value())
				break
			}
		}
	}
	t.options(options)
	if t.layout&LayoutNoDocuments == 0 {
		t.field(tagDocuments, top.get("documents").value())
	}
	if t.layout&LayoutConstraintsHead != 0 {
		t.named(tagConstraint, "tool_choice", "parallel_tool_calls", "response_format", "structured_outputs", "regex",
			"json_schema", "ebnf", "task", "text", "output_config")
	}
	if t.media {
		t.named(tagMediaOption, "mm_processor_kwargs", "media_io_kwargs", "images_config", "max_dynamic_patch",
			"use_audio_in_video")
	}
	t.mark(markRoot)
}

func (t *twin) named(tag byte, names ...string) {
	for _, name := range names {
		if v := t.top.get(name); v != nil {
			t.pair(tag, name, tag+1, v.json(",", ":"))
		}
	}
}

func (t *twin) options(options *node) {
	if options == nil {
		return
	}
	tail := []string{"enable_thinking", "thinking", "reasoning_effort", "add_generation_prompt", "continue_final_message"}
	head := &node{kind: '{', keys: options.keys, list: options.list}
	if len(head.keys) > maxOptions {
		head.keys, head.list = head.keys[:maxOptions], head.list[:maxOptions]
	}
	var keys []string
	for _, k := range head.keys {
		if !slices.Contains(tail, k) && !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		if v := head.get(k); v != nil {
			t.pair(tagOption, k, tagOptionValue, v.json(",", ":"))
		}
	}
}

func (t *twin) prompt(v *node) {
	if v.is("[") && !v.list[0].is("0") {
		v = v.list[0]
	}
	if !v.is("[") {
		t.field(tagPrompt, v.text())
		t.mark(markMessage)
		return
	}
	var b []byte
	for _, e := range v.list {
		id, _ := strconv.ParseUint(e.str, 10, 32)
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
	}
	t.out = append(t.out, piece{tagTokens, string(b)})
	t.mark(markMessage)
}

func (t *twin) tools(list *node) []piece {
	var only *string
	choice := t.top.get("tool_choice")
	if t.layout&LayoutToolsFiltered != 0 && choice != nil {
		if choice.text() == "none" || choice.get("type").text() == "none" {
			return nil
		}
		for _, v := range []*node{choice.get("name"), choice.get("function").get("name")} {
			if v.is(`"`) {
				only = &v.str
			}
		}
	}
	var out []piece
	for _, tool := range list.array() {
		f := tool
		if v := tool.get("function"); v != nil {
			f = v
		}
		name := f.get("name").text()
		if name != "" && (only == nil || *only == name) {
			out = append(out, piece{tagTool, name})
			if s := f.get("description").text(); s != "" {
				out = append(out, piece{tagDescription, s})
			}
			if v := f.first("parameters", "input_schema"); v != nil {
				out = append(out, piece{tagToolParameters, v.json(",", ":")})
			}
		}
		out = append(out, t.tools(tool.get("tools"))...)
	}
	return out
}

// conversation returns the messages and how many of them lead.
// headLast moves what leads the messages before the last one of a user, and says where the tools go.
func headLast(messages []twinMessage, leading int) (moved []twinMessage, tools int) {
	for i, m := range slices.Backward(messages) {
		if m.role == "user" {
			head := 0
			for head < len(messages) && (messages[head].role == "system" || messages[head].role == "developer") {
				head++
			}
			return slices.Concat(messages[head:i], messages[:head], messages[i:]), i
		}
	}
	return messages, leading
}

func (t *twin) conversation() ([]twinMessage, int) {
	switch t.route {
	case RouteMessages:
		return t.turns()
	case RouteResponses:
		var list []twinMessage
		if s := t.top.get("instructions").text(); s != "" {
			list = append(list, twinMessage{role: "system", parts: []twinPart{{text: s}}})
		}
		if v := t.top.get("input"); !v.is("[") {
			return append(list, twinMessage{role: "user", parts: []twinPart{{text: v.text()}}}), len(list)
		}
		return t.items(list)
	default:
		return t.messages()
	}
}

// messages returns those of the chat route, and how many of them lead.
func (t *twin) messages() ([]twinMessage, int) {
	var list []twinMessage
	leading := -1
	for i, v := range t.top.get("messages").array() {
		m := t.message(v)
		if leading < 0 && m.role != "system" && m.role != "developer" {
			leading = i
		}
		list = append(list, m)
	}
	if leading < 0 {
		leading = len(list)
	}
	return list, leading
}

func (t *twin) message(v *node) twinMessage {
	m := twinMessage{
		role: v.get("role").text(), name: v.get("name").text(), reasoning: v.get("reasoning").text(),
		parts: t.parts(v.get("content")), resultID: v.get("tool_call_id").text(),
		partial: v.get("prefix").is("t") || v.get("partial").is("t"),
	}
	if m.reasoning == "" {
		m.reasoning = v.get("reasoning_content").text()
	}
	for _, c := range v.get("tool_calls").array() {
		f := c.first("function", "custom")
		if f == nil {
			f = c
		}
		m.calls = append(m.calls, newTwinCall(f, c.get("id")))
	}
	return m
}

func newTwinCall(f, id *node) twinCall {
	a := f.first("arguments", "input")
	arguments := a.text()
	if !a.is(`"`) {
		arguments = a.json(", ", ": ")
	}
	return twinCall{f.get("name").text(), arguments, id.text()}
}

func (t *twin) parts(v *node) []twinPart {
	if v.is(`"`) {
		return []twinPart{{text: v.str}}
	}
	var list []twinPart
	for _, p := range v.array() {
		list = append(list, t.part(p))
	}
	return list
}

func (t *twin) part(p *node) twinPart {
	if p.is(`"`) {
		return twinPart{text: p.str}
	}
	part := twinPart{media: twinMedia(p)}
	switch p.get("type").text() {
	case "", "text", "input_text", "output_text", "reasoning_text", "summary_text":
		part.text = p.get("text").text()
	case "refusal":
		part.text = p.get("refusal").text()
	case "thinking":
		part.text = p.get("thinking").text()
	case "tool_reference":
		part.text = p.first("tool_name", "name").text()
	}
	return part
}

// twinKind returns the kind of media that p is.
func twinKind(p *node) string {
	kinds := map[string]string{
		"image_url": "image", "input_image": "image", "image": "image", "image_pil": "image", "image_embeds": "image",
		"input_audio": "audio", "audio_url": "audio", "audio": "audio", "audio_embeds": "audio",
		"video_url": "video", "input_video": "video", "video": "video",
		"file": "file", "input_file": "file", "document": "file",
	}
	if typ := p.get("type").text(); typ != "" {
		return kinds[typ]
	}
	for _, k := range []string{"image_url", "image", "input_audio", "audio_url", "video_url", "video"} {
		if p.get(k) != nil {
			return kinds[k]
		}
	}
	return ""
}

func twinMedia(p *node) string {
	kind := twinKind(p)
	if kind == "" {
		return ""
	}
	v := p.first("image_url", "image", "image_embeds", "input_audio", "audio_url", "audio", "audio_embeds", "video_url",
		"video", "file", "source", "data", "file_data", "url", "file_url", "file_id", "uuid")
	text := v.value()
	if in := v.first("data", "file_data", "url", "file_url", "file_id"); in.is(`"`) {
		text = in.str
		if typ := v.get("media_type"); typ.is(`"`) && in == v.get("data") {
			text = "data:" + typ.str + ";base64," + text
		}
	}
	return string(binary.LittleEndian.AppendUint64([]byte(kind+"\x00"), xxhash.Sum64String(text)))
}

func (t *twin) items(list []twinMessage) ([]twinMessage, int) {
	leading := -1
	stage := 0 // of the last message: 1 reasoning, 2 content, 3 calls; 0 when nothing may be added
	last := func(next int) *twinMessage {
		if stage == 0 || stage > next || stage == next && next != 3 {
			list = append(list, twinMessage{role: "assistant"})
		}
		stage = next
		return &list[len(list)-1]
	}
	for _, v := range t.top.get("input").array() {
		role, typ := v.get("role").text(), v.get("type").text()
		isMessage := typ == "" || typ == "message"
		leads := isMessage && (role == "system" || role == "developer")
		if leading < 0 && !leads {
			leading = len(list)
		}
		switch {
		case isMessage && role == "assistant":
			m := last(2)
			m.parts = t.parts(v.get("content"))
		case isMessage:
			stage = 0
			list = append(list, twinMessage{role: role, parts: t.parts(v.get("content"))})
		case typ == "function_call" || typ == "custom_tool_call":
			m := last(3)
			m.calls = append(m.calls, newTwinCall(v, v.get("call_id")))
		case typ == "function_call_output" || typ == "custom_tool_call_output":
			stage = 0
			m := twinMessage{role: "tool", parts: t.parts(v.get("output")), resultID: v.get("call_id").text()}
			list = append(list, m)
		case typ == "reasoning":
			text := t.joined(v.get("content"), "")
			if text == "" {
				text = t.joined(v.get("summary"), "")
			}
			if text != "" {
				last(1).reasoning = text
			}
		}
	}
	if leading < 0 {
		leading = len(list)
	}
	return list, leading
}

// joined returns the texts of a string or of parts, those that are not empty, with sep between them.
func (t *twin) joined(v *node, sep string) string {
	var list []string
	for _, p := range t.parts(v) {
		if p.text != "" {
			list = append(list, p.text)
		}
	}
	return strings.Join(list, sep)
}

func (t *twin) systemText(v *node) string {
	if !v.is("[") {
		return v.text()
	}
	var b strings.Builder
	for _, p := range t.parts(v) {
		if !strings.HasPrefix(p.text, "x-anthropic-billing-header") {
			b.WriteString(p.text)
		}
	}
	return b.String()
}

func (t *twin) turns() ([]twinMessage, int) {
	system := t.systemText(t.top.get("system"))
	var list []twinMessage
	leading := true
	for _, v := range t.top.get("messages").array() {
		role, content := v.get("role").text(), v.get("content")
		leading = leading && role == "system"
		switch {
		case role == "system" && (leading || t.layout&LayoutSystemMerged != 0):
			system += t.systemText(content)
		case role == "system":
			if s := t.systemText(content); s != "" {
				list = append(list, twinMessage{role: role, parts: []twinPart{{text: s}}})
			}
		case !content.is("["):
			list = append(list, twinMessage{role: role, parts: t.parts(content)})
		default:
			list = append(list, t.blocks(role, content.list)...)
		}
	}
	if system == "" {
		return list, 0
	}
	return append([]twinMessage{{role: "system", parts: []twinPart{{text: system}}}}, list...), 1
}

func (t *twin) blocks(role string, blocks []*node) []twinMessage {
	var results []twinMessage
	own := twinMessage{role: role}
	for _, b := range blocks {
		p := t.part(b)
		switch typ := b.get("type").text(); {
		case typ == "text" || p.media != "":
			if typ != "text" {
				p.text = ""
			}
			if p.text != "" || p.media != "" {
				own.parts = append(own.parts, p)
			}
		case typ == "thinking" && role == "assistant":
			own.reasoning += p.text
		case typ == "tool_use" && role == "assistant":
			c := newTwinCall(b, b.get("id"))
			if in := b.get("input"); in == nil || in.is("{") && len(in.list) == 0 {
				c.arguments = "{}"
			} else if b.get("arguments") != nil {
				c.arguments = newTwinCall(&node{kind: '{', keys: []string{"input"}, list: []*node{in}}, nil).arguments
			}
			own.calls = append(own.calls, c)
		case typ == "tool_result" && role != "assistant":
			results = append(results, t.result(b))
		}
	}
	if role == "assistant" || len(own.parts) > 0 {
		results = append(results, own)
	}
	return results
}

func (t *twin) result(b *node) twinMessage {
	m := twinMessage{role: "tool", resultID: b.first("tool_use_id", "id").text()}
	content := b.get("content")
	if !content.is("[") {
		m.parts = t.parts(content)
		return m
	}
	m.parts = append(m.parts, twinPart{text: t.joined(content, "\n")})
	for _, p := range content.list {
		if p.is("{") {
			m.parts = append(m.parts, twinPart{media: twinMedia(p)})
		}
	}
	return m
}

// walked gathers a walk into fields, checking the convention of its tags.
func walked(r *Request, model string, layout Layout) ([]piece, error) {
	var out []piece
	open := byte(0)
	var text []byte
	for tag, b := range r.Walk(model, layout) {
		switch {
		case tag == markRoot || tag == markMessage:
			if open != 0 || b != nil {
				return nil, errors.New("mark inside a field or with bytes")
			}
			out = append(out, piece{tag: tag})
		case tag&fieldEnd != 0:
			if open != 0 && open != tag&^fieldEnd || b != nil {
				return nil, errors.New("end of another field")
			}
			out = append(out, piece{tag &^ fieldEnd, string(text)})
			open, text = 0, nil
		case tag < 0x10 || open != 0 && open != tag:
			return nil, errors.New("piece of another field")
		default:
			open, text = tag, append(text, b...)
		}
	}
	if open != 0 {
		return nil, errors.New("field without end")
	}
	return out, nil
}

// comparableText reports whether the twin reads the same text from body: it turns bytes that are not UTF-8 into U+FFFD.
func comparableText(body []byte) bool { return utf8.Valid(body) }
