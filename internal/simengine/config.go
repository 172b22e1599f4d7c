package simengine

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"
)

// The kinds of engine that can be simulated: values of Config.Kind.
const (
	KindVLLM   = "vllm"
	KindSGLang = "sglang"
	KindTRTLLM = "trtllm"
	KindOther  = "other" // llama.cpp's server: no KV events, no token ids
)

// The chat templates: values of Config.Template.
const (
	// TemplatePlain renders system text, then tools, then the messages in order: turn 2 extends turn 1.
	TemplatePlain = "plain"
	// TemplateToolsFirst renders tools before the system text.
	TemplateToolsFirst = "tools-first"
	// TemplateDropsThoughts is a reasoning model: answers begin with a thought, and thoughts of assistant turns before
	// the last user message are not rendered again. enable_thinking acts on the tail of the prompt.
	TemplateDropsThoughts = "drops-thoughts"
	// TemplateToolsInLastUser renders system text and tools inside the last user message.
	TemplateToolsInLastUser = "tools-in-last-user"
	// TemplateDated puts the date and the reasoning effort at the very top.
	TemplateDated = "dated"
)

// Config describes one simulated engine. Start from DefaultConfig.
type Config struct {
	// Kind is the software imitated: "vllm", "sglang", "trtllm" or "other". It decides routes, error bodies, metric names, who
	// returns token ids where, and the form of KV events.
	Kind string
	// Version is what the engine says it is (/version, /server_info); it changes nothing else.
	Version string
	// Model is the served model's name.
	Model string
	// Aliases are further names under which the model is served; vLLM lists them all in /v1/models.
	Aliases []string
	// Adapters are LoRA adapters served beside the model. Each has a cache of its own and names the model as parent.
	Adapters []string
	// Template is the model's chat template, one of the Template constants.
	Template string
	// BlockTokens is the number of tokens in a KV block (SGLang: a page). Small blocks give finer hits and more events.
	BlockTokens int
	// CapacityTokens is the KV cache size in tokens, split in blocks; a rest smaller than a block is lost.
	CapacityTokens int64
	// OffloadTokens is the size of a second tier in CPU memory, which keeps the blocks that the GPU gave up; 0 means none.
	// It is per group, like CapacityTokens. Only vLLM and SGLang have it.
	OffloadTokens int64
	// MaxRunning is the number of requests that run at once, prefilling or decoding; more wait.
	MaxRunning int
	// MaxContext is the longest prompt plus answer in tokens, at most CapacityTokens; 0 means the smaller of 131,072 and
	// CapacityTokens.
	MaxContext int
	// Speed divides all times of the engine model: 1 is a real engine, 10 is ten times faster.
	Speed float64
	// PrefillRate is the prefill speed on an empty context in tokens/s; 16,000 is a 32B model on two H100.
	PrefillRate float64
	// AnswerTokens is the mean natural length of an answer; lengths vary between half and one and a half times that.
	AnswerTokens int
	// RetokenizeRate is the share of answers, 0 to 1, whose tokens are not those that their text is read as in the next
	// turn, which then stops matching somewhere inside the answer.
	RetokenizeRate float64
	// CachedTokens reports cached tokens in usage, as --enable-prompt-tokens-details (vLLM) and --enable-cache-report
	// (SGLang) do. TensorRT-LLM reports them always.
	CachedTokens bool
	// ForceIncludeUsage ends every stream with usage (vLLM's --enable-force-include-usage, which puts it on every chunk too).
	ForceIncludeUsage bool
	// TokenIDs says that this version knows return_token_ids. When false the field is ignored, and vLLM's explicit nulls
	// are not there either.
	TokenIDs bool
	// ScaleOut opens vLLM's render route, as --enable-scale-out does; it is 403 otherwise.
	ScaleOut bool
	// APIKey, when set, must come as bearer token on the routes that this kind guards.
	APIKey string
	// Groups are the model's cache groups; empty means one group of full attention. A prefix is reused only as far as
	// every group agrees.
	Groups []Group
	// KVEvents says where KV events are published; without Endpoint there are none.
	KVEvents EventsConfig
	// EventBuffer is TensorRT-LLM's event_buffer_max_size: events kept for POST /kv_cache_events; 0 means no events.
	EventBuffer int
	// Faults are the failures in force from the start; SetFaults and POST /sim/faults change them.
	Faults Faults
	// KeepAlive is how long Serve leaves an idle connection open: 5 s in all three kinds' HTTP servers. A client that
	// reuses connections must expect to find them closed.
	KeepAlive time.Duration
	// MaxBodyBytes bounds a request body; larger ones get 413.
	MaxBodyBytes int64
	// Seed makes block hashes and injected errors repeatable. 0 draws a seed in New and in Restart: block hashes then differ
	// from process to process, as in vLLM before 0.32 without PYTHONHASHSEED. SGLang's hashes never depend on it.
	Seed uint64
	// Logger receives what the engine has to say; it never logs prompts. Nil discards.
	Logger *slog.Logger
}

// Group is one cache group of a hybrid model.
type Group struct {
	// Kind is "full_attention", "sliding_window" or "mamba".
	Kind string
	// Window is the width of a sliding window in tokens.
	Window int
}

// The kinds of cache group: values of Group.Kind, and of kv_cache_spec_kind in KV events.
const (
	GroupFull    = "full_attention"
	GroupSliding = "sliding_window"
	GroupMamba   = "mamba"
)

// The encodings of KV events: values of EventsConfig.Encoding.
const (
	EncodingMap   = "map"
	EncodingArray = "array"
)

// EventsConfig says how KV events leave the engine over ZMQ.
type EventsConfig struct {
	// Endpoint is the PUB socket, "tcp://HOST:PORT"; HOST "*" is every interface and port 0 lets the system choose.
	// Empty means no KV events.
	Endpoint string
	// Connect makes the PUB socket dial Endpoint, as vLLM does with a host that is not "*"; otherwise it binds whatever
	// the host is, which a test on loopback needs.
	Connect bool
	// ReplayEndpoint is the ROUTER socket that replays past batches; empty means no replay.
	ReplayEndpoint string
	// ReplayTopic sends the topic with every replayed batch, as newer vLLM does (four frames instead of three).
	ReplayTopic bool
	// Topic is the first frame of every message.
	Topic string
	// Encoding of the events: "map" (vLLM from 0.24.0) or "array" (before).
	Encoding string
	// ArrayLen is the length of a BlockStored array of vLLM with its tag: 6, 7, 8, 9, 10 or 12, by release; 0 means 12
	// (0.22 and 0.23). SGLang always has 7.
	ArrayLen int
	// HashBytes sends vLLM's block hashes as 32 bytes instead of the integer of the last 8 of them
	// (VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0).
	HashBytes bool
	// Rank is the data-parallel rank in every batch.
	Rank int
	// BufferSteps is how many batches replay remembers: 10,000 in the real engines.
	BufferSteps int
	// HWM is how many batches wait for a slow subscriber before more are dropped, silently.
	HWM int
	// Listen opens the sockets; nil means net.Listen. Tests put an in-memory network here.
	Listen func(network, address string) (net.Listener, error)
	// Dial reaches Endpoint when Connect is set; nil means net.Dial.
	Dial func(network, address string) (net.Conn, error)
}

// DefaultConfig returns a vLLM engine named "sim-model" with 2 million tokens of KV cache, the engine of the reference
// simulation.
func DefaultConfig() Config {
	return Config{
		Kind:           KindVLLM,
		Version:        "0.32.0",
		Model:          "sim-model",
		Template:       TemplatePlain,
		BlockTokens:    16,
		CapacityTokens: 2_048_000,
		MaxRunning:     128,
		Speed:          1,
		PrefillRate:    16000,
		AnswerTokens:   128,
		CachedTokens:   true,
		TokenIDs:       true,
		KeepAlive:      5 * time.Second,
		MaxBodyBytes:   64 << 20,
		KVEvents:       EventsConfig{Encoding: EncodingMap, ReplayTopic: true, BufferSteps: 10_000, HWM: 10_000},
	}
}

// Validate reports everything that is wrong with c.
func (c *Config) Validate() error {
	return errors.Join(c.validateModel(), c.validateLimits(), c.validateGroups(), c.KVEvents.validate(),
		c.Faults.validate())
}

func (c *Config) validateModel() error {
	var errs []error
	if !slices.Contains([]string{KindVLLM, KindSGLang, KindTRTLLM, KindOther}, c.Kind) {
		errs = append(errs, fmt.Errorf("field Kind (%q) must be vllm, sglang, trtllm or other", c.Kind))
	}
	if zmq := c.Kind == KindVLLM || c.Kind == KindSGLang; c.KVEvents.Endpoint != "" && !zmq {
		errs = append(errs, fmt.Errorf("KVEvents.Endpoint must be empty: a %s publishes no KV events", c.Kind))
	}
	if c.Model == "" {
		errs = append(errs, errors.New("field Model must not be empty"))
	}
	if rendererOf(c.Template) == nil {
		errs = append(errs, fmt.Errorf("field Template (%q) is not known", c.Template))
	}
	return errors.Join(errs...)
}

func (c *Config) validateLimits() error {
	var errs []error
	positive := func(name string, v float64) {
		if !(v > 0) {
			errs = append(errs, fmt.Errorf("%s (%v) must be above 0", name, v))
		}
	}
	positive("BlockTokens", float64(c.BlockTokens))
	positive("MaxRunning", float64(c.MaxRunning))
	positive("Speed", c.Speed)
	positive("PrefillRate", c.PrefillRate)
	positive("AnswerTokens", float64(c.AnswerTokens))
	positive("KeepAlive", float64(c.KeepAlive))
	positive("MaxBodyBytes", float64(c.MaxBodyBytes))
	if c.CapacityTokens < 2*int64(c.BlockTokens) {
		errs = append(errs, fmt.Errorf("CapacityTokens (%d) must hold 2 blocks of %d", c.CapacityTokens, c.BlockTokens))
	}
	if c.MaxContext < 0 || c.BlockTokens > 0 && int64(c.MaxContext) > c.wholeBlocks() {
		errs = append(errs, fmt.Errorf("MaxContext (%d) must lie in 0..CapacityTokens (%d)", c.MaxContext, c.CapacityTokens))
	}
	if c.OffloadTokens != 0 && (c.OffloadTokens < int64(c.BlockTokens) || c.Kind != KindVLLM && c.Kind != KindSGLang) {
		errs = append(errs, fmt.Errorf("OffloadTokens (%d) must be 0, or hold a block of a vllm or sglang", c.OffloadTokens))
	}
	if !(c.RetokenizeRate >= 0 && c.RetokenizeRate <= 1) {
		errs = append(errs, fmt.Errorf("RetokenizeRate (%v) must lie in 0..1", c.RetokenizeRate))
	}
	if c.EventBuffer < 0 {
		errs = append(errs, fmt.Errorf("EventBuffer (%d) must not be negative", c.EventBuffer))
	}
	return errors.Join(errs...)
}

func (c *Config) validateGroups() error {
	var errs []error
	for i, g := range c.Groups {
		switch {
		case !slices.Contains([]string{GroupFull, GroupSliding, GroupMamba}, g.Kind):
			errs = append(errs, fmt.Errorf("Groups[%d].Kind (%q) is not known", i, g.Kind))
		case g.Kind == GroupSliding && g.Window < 2:
			errs = append(errs, fmt.Errorf("Groups[%d].Window (%d) must be above 1", i, g.Window))
		}
	}
	return errors.Join(errs...)
}

func (c *EventsConfig) validate() error {
	if c.Endpoint == "" {
		return nil
	}
	var errs []error
	if c.Encoding != EncodingMap && c.Encoding != EncodingArray {
		errs = append(errs, fmt.Errorf("KVEvents.Encoding (%q) must be map or array", c.Encoding))
	}
	if !slices.Contains([]int{0, 6, 7, 8, 9, 10, 12}, c.ArrayLen) {
		errs = append(errs, fmt.Errorf("KVEvents.ArrayLen (%d) is the length of no release", c.ArrayLen))
	}
	if c.BufferSteps < 1 || c.HWM < 1 {
		errs = append(errs, fmt.Errorf("KVEvents.BufferSteps (%d) and HWM (%d) must be above 0", c.BufferSteps, c.HWM))
	}
	for _, ep := range []string{c.Endpoint, c.ReplayEndpoint} {
		if _, err := tcpAddress(ep); ep != "" && err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// withDefaults fills what 0 stands for.
func (c Config) withDefaults() Config {
	if len(c.Groups) == 0 {
		c.Groups = []Group{{Kind: GroupFull}}
	}
	if c.MaxContext == 0 {
		c.MaxContext = int(min(131_072, c.wholeBlocks()))
	}
	if c.KVEvents.ArrayLen == 0 {
		c.KVEvents.ArrayLen = 12
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// wholeBlocks is the capacity without the rest that is smaller than a block: what one request can fill.
func (c *Config) wholeBlocks() int64 {
	return c.CapacityTokens / int64(c.BlockTokens) * int64(c.BlockTokens)
}

// names returns every name under which the model itself is served.
func (c *Config) names() []string { return append([]string{c.Model}, c.Aliases...) }

// adapter returns the LoRA adapter that a request's model names, or "".
func (c *Config) adapter(model string) string {
	if slices.Contains(c.Adapters, model) {
		return model
	}
	return ""
}
