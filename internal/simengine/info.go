package simengine

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

type modelCard struct {
	ID          string  `json:"id"`
	Object      string  `json:"object"`
	Created     int64   `json:"created"`
	OwnedBy     string  `json:"owned_by"`
	Root        string  `json:"root"`
	Parent      *string `json:"parent"`
	MaxModelLen int     `json:"max_model_len,omitempty"`
}

// models answers GET /v1/models: the model under each of its names, then adapters, which name the model as parent.
func (e *Engine) models(w http.ResponseWriter, _ *http.Request) {
	cards := []modelCard{}
	for _, name := range e.cfg.names() {
		cards = append(cards, e.card(name, e.cfg.Model, nil))
		if e.cfg.Kind != KindVLLM {
			break // one name only
		}
	}
	for _, name := range e.cfg.Adapters {
		cards = append(cards, e.card(name, name, &e.cfg.Model))
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": cards})
}

func (e *Engine) card(id, root string, parent *string) modelCard {
	m := modelCard{ID: id, Object: "model", OwnedBy: e.cfg.Kind, Root: root, Parent: parent}
	m.Created = e.life.Load().started.Unix()
	if e.cfg.Kind == KindOther {
		m.OwnedBy = "llamacpp"
	}
	if parent == nil {
		m.MaxModelLen = e.cfg.MaxContext
	}
	return m
}

// version answers GET /version.
func (e *Engine) version(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"version": e.cfg.Version})
}

// openAPI answers GET /openapi.json with as much as a client needs to see which fields there are.
func (e *Engine) openAPI(w http.ResponseWriter, _ *http.Request) {
	chat, completion := map[string]any{"messages": map[string]any{}}, map[string]any{"prompt": map[string]any{}}
	if e.cfg.TokenIDs {
		field := map[string]string{"type": "boolean"}
		chat["return_token_ids"], completion["return_token_ids"] = field, field
		if e.cfg.Kind == KindSGLang {
			chat["return_prompt_token_ids"] = field
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"openapi": "3.1.0",
		"info":    map[string]string{"title": e.cfg.Kind, "version": e.cfg.Version},
		"paths":   map[string]any{},
		"components": map[string]any{"schemas": map[string]any{
			"ChatCompletionRequest": map[string]any{"type": "object", "properties": chat},
			"CompletionRequest":     map[string]any{"type": "object", "properties": completion},
		}},
	})
}

// serverInfo answers SGLang's GET /server_info.
func (e *Engine) serverInfo(w http.ResponseWriter, _ *http.Request) {
	var events any
	if e.cfg.KVEvents.Endpoint != "" {
		host, port := splitHostPort(e.events.endpoint())
		events = map[string]any{
			"publisher": "zmq", "endpoint_host": host, "endpoint_port_base": port, "topic": e.cfg.KVEvents.Topic,
			"block_size": e.cfg.BlockTokens, "dp_size": 1,
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"model_path": e.cfg.Model, "served_model_name": e.cfg.Model, "version": e.cfg.Version,
		"page_size": e.cfg.BlockTokens, "max_total_num_tokens": e.cfg.CapacityTokens,
		"max_running_requests": e.cfg.MaxRunning, "context_length": e.cfg.MaxContext,
		"enable_cache_report": e.cfg.CachedTokens, "enable_metrics": true, "dp_size": 1, "kv_events": events,
	})
}

// loads answers SGLang's GET /v1/loads.
func (e *Engine) loads(w http.ResponseWriter, _ *http.Request) {
	s := e.Stats()
	used := s.UsedBlocks * e.cfg.BlockTokens
	load := map[string]any{
		"dp_rank": 0, "num_running_reqs": s.Running, "num_waiting_reqs": s.Waiting, "num_used_tokens": used,
		"max_total_num_tokens": e.cfg.CapacityTokens, "max_running_requests": e.cfg.MaxRunning,
		"token_usage": s.usageShare(), "cache_hit_rate": float64(s.CachedTokens) / float64(max(s.PromptTokens, 1)),
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"timestamp": time.Now().Format(time.RFC3339Nano), "version": e.cfg.Version, "loads": []any{load},
	})
}

// eventSource is one data-parallel rank's sockets in GET /kv_event_sources.
type eventSource struct {
	Enabled      bool    `json:"enable_kv_cache_events"`
	Publisher    string  `json:"publisher"`
	Endpoint     string  `json:"endpoint"`
	Replay       *string `json:"replay_endpoint"`
	BufferSteps  int     `json:"buffer_steps"`
	HWM          int     `json:"hwm"`
	MaxQueueSize int     `json:"max_queue_size"`
	Topic        string  `json:"topic"`
}

// eventSources answers newer vLLM's GET /kv_event_sources: sources by rank, with the ports that the system chose.
func (e *Engine) eventSources(w http.ResponseWriter, _ *http.Request) {
	k := &e.cfg.KVEvents
	sources := map[int]eventSource{}
	if k.Endpoint != "" {
		s := eventSource{
			Enabled: true, Publisher: "zmq", Endpoint: e.events.endpoint(), BufferSteps: k.BufferSteps, HWM: k.HWM,
			MaxQueueSize: 100_000, Topic: k.Topic,
		}
		if k.ReplayEndpoint != "" {
			s.Replay = new(e.events.replayEndpoint())
		}
		sources[k.Rank] = s
	}
	writeJSON(w, http.StatusOK, sources)
}

// resetCache answers vLLM's POST /reset_prefix_cache, which leaves the host tier alone unless asked to, and SGLang's POST
// /flush_cache; it fails while requests run.
func (e *Engine) resetCache(w http.ResponseWriter, r *http.Request) {
	host := e.cfg.Kind == KindSGLang || r.URL.Query().Get("reset_external") == "true"
	ok := e.life.Load().sched.clearCache(host)
	if e.cfg.Kind == KindVLLM {
		writeJSON(w, http.StatusOK, map[string]bool{"success": ok})
		return
	}
	if !ok {
		w.WriteHeader(http.StatusBadRequest)
	}
}

// tokenizeRequest has the chat form when messages are there, else the text form; a list of texts is SGLang's.
type tokenizeRequest struct {
	chatRequest
	Prompt             json.RawMessage `json:"prompt"`
	ReturnTokenStrings bool            `json:"return_token_strs"`
}

// tokenize answers POST /tokenize.
func (e *Engine) tokenize(w http.ResponseWriter, _ *http.Request, body []byte) error {
	var req tokenizeRequest
	if err := decodeBody(body, &req); err != nil {
		return err
	}
	if len(req.Messages) > 0 {
		conv, err := req.conversation(e.cfg.Kind)
		if err != nil {
			return err
		}
		e.writeTokens(w, e.promptOf(conv), req.ReturnTokenStrings)
		return nil
	}
	var texts []string
	if e.cfg.Kind == KindSGLang && json.Unmarshal(req.Prompt, &texts) == nil {
		e.writeTokenLists(w, texts)
		return nil
	}
	var text string
	if json.Unmarshal(req.Prompt, &text) != nil {
		return missing("prompt")
	}
	e.writeTokens(w, e.tok.encode([]Token{}, text), req.ReturnTokenStrings)
	return nil
}

// tokenized is the answer to a request for tokens; vLLM says null where it has no strings.
type tokenized struct {
	Count       int     `json:"count"`
	MaxModelLen int     `json:"max_model_len"`
	Tokens      []Token `json:"tokens"`
	Strings     any     `json:"token_strs,omitempty"`
}

func (e *Engine) writeTokens(w http.ResponseWriter, ids []Token, strs bool) {
	out := tokenized{Count: len(ids), MaxModelLen: e.cfg.MaxContext, Tokens: ids}
	switch {
	case e.cfg.Kind != KindVLLM:
	case strs:
		out.Strings = e.tokenStrings(ids)
	default:
		out.Strings = null
	}
	writeJSON(w, http.StatusOK, out)
}

func (e *Engine) tokenStrings(ids []Token) []string {
	out := make([]string, 0, len(ids))
	for _, id := range ids {
		out = append(out, e.tok.text(id))
	}
	return out
}

func (e *Engine) writeTokenLists(w http.ResponseWriter, texts []string) {
	lists, counts := [][]Token{}, []int{}
	for _, t := range texts {
		ids := e.tok.encode([]Token{}, t)
		lists, counts = append(lists, ids), append(counts, len(ids))
	}
	writeJSON(w, http.StatusOK, map[string]any{"count": counts, "max_model_len": e.cfg.MaxContext, "tokens": lists})
}

// detokenize answers POST /detokenize.
func (e *Engine) detokenize(w http.ResponseWriter, _ *http.Request, body []byte) error {
	var req struct {
		Tokens []Token `json:"tokens"`
	}
	if err := decodeBody(body, &req); err != nil {
		return err
	}
	field := "prompt"
	switch e.cfg.Kind {
	case KindSGLang:
		field = "text"
	case KindOther:
		field = "content"
	}
	writeJSON(w, http.StatusOK, map[string]string{field: e.tok.decode(req.Tokens)})
	return nil
}

// renderChat answers vLLM's POST /v1/chat/completions/render: the token ids that the chat route would compute, if the
// route is open.
func (e *Engine) renderChat(w http.ResponseWriter, _ *http.Request, body []byte) error {
	if !e.cfg.ScaleOut {
		return &apiError{status: http.StatusForbidden, message: "Scale-out endpoints are disabled. " +
			"Restart vllm serve with --enable-scale-out to enable them."}
	}
	var req chatRequest
	if err := decodeBody(body, &req); err != nil {
		return err
	}
	conv, err := req.conversation(e.cfg.Kind)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"request_id": "chatcmpl-" + e.newID(), "token_ids": e.promptOf(conv), "features": nil, "model": req.Model,
		"stream": req.Stream, "cache_salt": req.CacheSalt,
	})
	return nil
}

// simStats answers GET /sim/stats.
func (e *Engine) simStats(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, e.Stats())
}

// simFaults answers POST /sim/faults, which replaces all faults.
func (e *Engine) simFaults(w http.ResponseWriter, r *http.Request) {
	var f Faults
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16))
	dec.DisallowUnknownFields()
	err := dec.Decode(&f)
	if err == nil {
		err = f.validate()
	}
	if err != nil {
		writeJSON(w, http.StatusBadRequest, map[string]string{"error": strings.ReplaceAll(err.Error(), "\n", "; ")})
		return
	}
	e.SetFaults(f)
	writeJSON(w, http.StatusOK, f)
}
