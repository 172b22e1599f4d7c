package openai

import (
	"encoding/binary"
	"iter"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// The marks of a walk. They come with no bytes.
const (
	markRoot    byte = 0x01 // the end of the root
	markMessage byte = 0x02 // the end of a message, of the tools, of a prompt
	fieldEnd    byte = 0x80 // or-ed to a tag: the end of that field
)

// The tags of a walk. DESIGN.md says what each field holds.
const (
	tagModel          byte = 0x10
	tagLayout         byte = 0x11
	tagLoRA           byte = 0x12
	tagSalt           byte = 0x13
	tagExtraKey       byte = 0x14
	tagTemplate       byte = 0x15
	tagSpecialTokens  byte = 0x16
	tagEffort         byte = 0x17
	tagThinking       byte = 0x18
	tagOption         byte = 0x19 // name of a chat_template_kwargs member
	tagOptionValue    byte = 0x1a
	tagDocuments      byte = 0x1b
	tagConstraint     byte = 0x1c // name of a field that constrains the answer
	tagConstraintJSON byte = 0x1d
	tagMediaOption    byte = 0x1e // name of a field that changes how media become tokens
	tagMediaJSON      byte = 0x1f

	tagRole      byte = 0x30
	tagName      byte = 0x31
	tagReasoning byte = 0x32
	tagText      byte = 0x33
	tagMedia     byte = 0x34
	tagCall      byte = 0x35 // name of a called tool
	tagArguments byte = 0x36
	tagCallID    byte = 0x37
	tagResultID  byte = 0x38 // id of the call that a tool message answers
	tagPartial   byte = 0x39

	tagTool           byte = 0x40 // name of an offered tool
	tagDescription    byte = 0x41
	tagToolParameters byte = 0x42

	tagPrompt byte = 0x50
	tagTokens byte = 0x51
)

// Layout says where an engine renders what for one model: a set of bits. The zero Layout is what most chat templates do.
type Layout uint16

// The bits of a Layout.
const (
	LayoutToolsFirst      Layout = 1 << iota // tools stand before the system text, not after it
	LayoutToolsFiltered                      // tool_choice takes out the tools that may not be called
	LayoutEffortHead                         // effort and thinking switches stand at the head
	LayoutNoDocuments                        // documents are not rendered
	LayoutConstraintsHead                    // response_format, tool_choice and their like stand at the head
	LayoutSystemMerged                       // the Messages API's system messages inside a conversation move to its head
	LayoutHeadLast                           // system text and tools stand in the last message of a user (chat route only)
)

// pieceSize is the size of the buffer in which a walk gathers what does not stand in the body as it is: with fewer bytes
// text with many escapes comes in more pieces, each a call and a hash update; more only costs memory.
const pieceSize = 1024

// Walk returns the canonical prompt as (tag, piece) pairs, for the model by its canonical name and its layout. A field is
// any number of pieces with its tag, then (tag|0x80, nil); (0x01, nil) ends the root, (0x02, nil) a message. A piece is
// valid only until the next one is asked for. A request without keys yields nothing.
func (r *Request) Walk(model string, layout Layout) iter.Seq2[byte, []byte] {
	return func(yield func(byte, []byte) bool) {
		if r.Keyless != "" {
			return
		}
		w := walker{d: &r.doc, r: r, layout: layout, yield: yield}
		w.root(model)
		w.body()
	}
}

// walker is one pass over a request. Everything that emits does nothing once the caller has had enough.
type walker struct {
	d      *doc
	r      *Request
	layout Layout
	yield  func(byte, []byte) bool
	done   bool

	tag       byte
	n         int // bytes of buf that wait to be yielded
	buf       [pieceSize]byte
	digesting bool // pieces go to the digest
	digest    xxhash.Digest
}

// root emits what makes the whole prompt, or the engine's cache, another one.
func (w *walker) root(model string) {
	top := &w.r.top
	w.word(tagModel, model)
	w.open(tagLayout)
	w.n = len(binary.LittleEndian.AppendUint16(w.room(), uint16(w.layout)))
	w.close()
	w.field(tagLoRA, top[nLoraPath])
	w.field(tagSalt, top[nCacheSalt])
	w.field(tagExtraKey, top[nExtraKey])
	w.field(tagTemplate, top[nChatTemplate])
	w.specialTokens()
	var options members
	w.d.fill(top[nChatTemplateKwargs], &options)
	if w.layout&LayoutEffortHead != 0 {
		w.effort(&options)
	}
	w.options()
	if w.layout&LayoutNoDocuments == 0 {
		w.field(tagDocuments, top.firstOf(nDocuments))
	}
	if w.layout&LayoutConstraintsHead != 0 {
		w.fields(tagConstraint, tagConstraintJSON, nToolChoice, nParallelToolCalls, nResponseFormat,
			nStructuredOutputs, nRegex, nJSONSchema, nEbnf, nTask, nText, nOutputConfig)
	}
	if w.r.Media {
		w.fields(tagMediaOption, tagMediaJSON, nMMProcessorKwargs, nMediaIOKwargs, nImagesConfig, nMaxDynamicPatch,
			nUseAudioInVideo)
	}
	w.mark(markRoot)
}

// specialTokens emits add_special_tokens where it differs from the engines' default: on for completions, off for chat.
func (w *walker) specialTokens() {
	v := w.r.top[nAddSpecialTokens]
	if v.ok() && w.d.isTrue(v) != (w.r.Route == RouteCompletions) {
		w.field(tagSpecialTokens, v)
	}
}

// effort emits how much the model is to think, which every API says in its own place.
func (w *walker) effort(options *members) {
	top := &w.r.top
	var reasoning, output members
	w.d.fill(top[nReasoning], &reasoning)
	w.d.fill(top[nOutputConfig], &output)
	for _, v := range []span{top[nReasoningEffort], reasoning[nEffort], output[nEffort], options[nReasoningEffort]} {
		if !w.d.empty(v) {
			w.field(tagEffort, v)
			break
		}
	}
	for _, v := range []span{top[nThinking], top[nEnableThinking], options[nEnableThinking], options[nThinking]} {
		if v.ok() {
			w.field(tagThinking, v)
			break
		}
	}
}

// option is a member of chat_template_kwargs.
type option struct {
	key   string
	value span
}

// maxOptions bounds how many members of chat_template_kwargs are read; templates know a handful. Those after it are not
// hashed.
const maxOptions = 64

// options emits the members of chat_template_kwargs that are not known to act at the tail, in the order of their names.
func (w *walker) options() {
	v := w.r.top[nChatTemplateKwargs]
	if w.d.kind(v) != kindObject {
		return
	}
	var list []option
	c := w.d.in(v)
	for range maxOptions {
		key, v, ok := c.member()
		if !ok {
			break
		}
		if !tailOption(key) {
			list = setOption(list, option{string(appendUnescaped(nil, key)), v})
		}
	}
	slices.SortFunc(list, func(a, b option) int { return strings.Compare(a.key, b.key) })
	for _, o := range list {
		if w.d.kind(o.value) != 0 {
			w.word(tagOption, o.key)
			w.open(tagOptionValue)
			w.json(o.value, false)
			w.close()
		}
	}
}

// setOption puts o into the list in place of an option of the same name.
func setOption(list []option, o option) []option {
	for i := range list {
		if list[i].key == o.key {
			list[i] = o
			return list
		}
	}
	return append(list, o)
}

// tailOption reports whether a template option acts after the last message, or belongs to the effort.
func tailOption(key []byte) bool {
	for _, s := range []string{
		"enable_thinking", "thinking", "reasoning_effort", "add_generation_prompt", "continue_final_message",
	} {
		if rest, ok := cutPrefix(key, s); ok && len(rest) == 0 {
			return true
		}
	}
	return false
}

// body emits the prompt or the conversation.
func (w *walker) body() {
	switch w.r.Route {
	case RouteCompletions:
		w.prompt()
	case RouteResponses:
		w.input()
	case RouteMessages:
		w.turns()
	default:
		w.chat()
	}
}

// prompt emits the first prompt of a completion.
func (w *walker) prompt() {
	v := w.r.top[nPrompt]
	if w.d.kind(v) == kindArray {
		c := w.d.in(v)
		if first, _ := c.elem(); w.d.kind(first) != kindNumber {
			v = first
		}
	}
	if w.d.kind(v) == kindArray {
		w.tokens(v)
		return
	}
	w.field(tagPrompt, v)
	w.mark(markMessage)
}

// tokens emits a prompt of token ids, four little-endian bytes each.
func (w *walker) tokens(v span) {
	w.open(tagTokens)
	for c := w.d.in(v); !w.done; {
		id, ok := c.token()
		if !ok {
			break
		}
		w.n = len(binary.LittleEndian.AppendUint32(w.room(), id))
	}
	w.close()
	w.mark(markMessage)
}
