package simengine

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
)

// Residency says how much of a prompt the cache holds at one moment. Nothing changes by asking.
type Residency struct {
	PromptTokens int `json:"prompt_tokens"`
	// HitTokens is what a request with this prompt would be given: whole blocks, and never the last token.
	HitTokens int `json:"hit_tokens"`
	// ResidentTokens is the longest prefix in whole blocks, up to the prompt's end, that every cache group agrees on.
	ResidentTokens int `json:"resident_tokens"`
	// LoadTokens are those of HitTokens that are not on the GPU and would be loaded from the host tier.
	LoadTokens int `json:"load_tokens,omitempty"`
}

// Resident renders the request in body, of chat completions, of completions when it has a "prompt" and of responses when
// it has an "input", and returns how much of its prompt is in the cache now. The error is that of the route.
func (e *Engine) Resident(body []byte) (Residency, error) {
	prompt, p, err := e.promptIn(body)
	if err != nil {
		return Residency{}, err
	}
	l := e.life.Load()
	s := e.sequence(l, p, prompt)
	return l.sched.residency(&s, p.PromptLogprobs == nil), nil
}

// promptIn returns the token ids of the one prompt in a body.
func (e *Engine) promptIn(body []byte) ([]Token, *params, error) {
	var form struct {
		Prompt json.RawMessage `json:"prompt"`
		Input  json.RawMessage `json:"input"`
	}
	if err := decodeBody(body, &form); err != nil {
		return nil, nil, err
	}
	switch {
	case form.Prompt != nil:
		return e.completionPromptIn(body)
	case form.Input != nil:
		var req responsesRequest
		if err := decodeBody(body, &req); err != nil {
			return nil, nil, err
		}
		conv, err := req.conversation()
		if err != nil {
			return nil, nil, err
		}
		return e.promptOf(conv), &req.params, e.checkModel(req.Model)
	}
	var req chatRequest
	if err := decodeBody(body, &req); err != nil {
		return nil, nil, err
	}
	prompt, _, err := e.chatPrompt(&req)
	if err == nil {
		err = e.checkModel(req.Model)
	}
	return prompt, &req.params, err
}

func (e *Engine) completionPromptIn(body []byte) ([]Token, *params, error) {
	var req completionRequest
	if err := decodeBody(body, &req); err != nil {
		return nil, nil, err
	}
	prompts, err := req.Prompt.tokens(e.tok)
	switch {
	case err != nil:
		return nil, nil, err
	case len(prompts) > 1:
		return nil, nil, badRequest("one prompt can be asked about at a time", "prompt")
	}
	return prompts[0], &req.params, e.checkModel(req.Model)
}

// residency looks the blocks of s up; reads is false for a request that would not.
func (s *scheduler) residency(seq *sequence, reads bool) Residency {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := Residency{PromptTokens: len(seq.tokens)}
	r.ResidentTokens = s.cache.prefix(seq.chain, len(seq.chain)) * s.cfg.BlockTokens
	if reads {
		hit := s.cache.hit(seq.chain, len(seq.tokens))
		r.HitTokens = hit * s.cfg.BlockTokens
		r.LoadTokens = (hit - s.cache.onGPU(seq.chain, len(seq.tokens), hit)) * s.cfg.BlockTokens
	}
	return r
}

// BlockHash is a block's hash as KV events show it, signed ones as the unsigned number of the same bits.
type BlockHash uint64

// MarshalText writes the hash as a decimal number, which is a string in JSON: many readers round numbers of 64 bits.
func (h BlockHash) MarshalText() ([]byte, error) { return strconv.AppendUint(nil, uint64(h), 10), nil }

// BlockTable is the content of the cache at one moment; Total and Resident are of the GPU.
type BlockTable struct {
	Total    int           `json:"total"`    // physical blocks
	Resident int           `json:"resident"` // those that can be found, copies counted
	Groups   []GroupBlocks `json:"groups"`
}

// GroupBlocks are the blocks of one cache group.
type GroupBlocks struct {
	Kind     string      `json:"kind"`
	Resident int         `json:"resident"`
	Hashes   []BlockHash `json:"hashes,omitempty"` // sorted, one for every copy

	HostResident int         `json:"host_resident,omitempty"` // in the host tier, beside or instead of the GPU
	HostHashes   []BlockHash `json:"host_hashes,omitempty"`   // sorted
}

// Blocks returns the block table, hashes included.
func (e *Engine) Blocks() BlockTable { return e.life.Load().sched.blocks() }

func (s *scheduler) blocks() BlockTable {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := BlockTable{Total: s.cache.total, Resident: s.cache.resident}
	for _, g := range s.cfg.Groups {
		t.Groups = append(t.Groups, GroupBlocks{Kind: g.Kind})
	}
	for k, b := range s.cache.index {
		g := &t.Groups[k.group]
		for ; b != nil; b = b.copyOf {
			g.Hashes = append(g.Hashes, BlockHash(b.wire))
		}
	}
	for k, b := range s.cache.host.index {
		g := &t.Groups[k.group]
		g.HostHashes = append(g.HostHashes, BlockHash(b.wire))
	}
	for i := range t.Groups {
		g := &t.Groups[i]
		g.Resident, g.HostResident = len(g.Hashes), len(g.HostHashes)
		slices.Sort(g.Hashes)
		slices.Sort(g.HostHashes)
	}
	return t
}

// simResident answers POST /sim/resident.
func (e *Engine) simResident(w http.ResponseWriter, _ *http.Request, body []byte) error {
	r, err := e.Resident(body)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, r)
	return nil
}

// simBlocks answers GET /sim/blocks, with hashes only for ?hashes=1.
func (e *Engine) simBlocks(w http.ResponseWriter, r *http.Request) {
	t := e.Blocks()
	if r.URL.Query().Get("hashes") != "1" {
		for i := range t.Groups {
			t.Groups[i].Hashes, t.Groups[i].HostHashes = nil, nil
		}
	}
	writeJSON(w, http.StatusOK, t)
}
