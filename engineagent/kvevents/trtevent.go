package kvevents

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
)

// trtEvent is one event as TensorRT-LLM writes it. Fields that later versions add are ignored.
type trtEvent struct {
	ID     *int64          `json:"event_id"`
	Window int             `json:"window_size"`
	Layers *int            `json:"layer_group_id"`
	Rank   int             `json:"attention_dp_rank"`
	Data   json.RawMessage `json:"data"`
}

func (e *trtEvent) valid() bool {
	return e.ID != nil && *e.ID >= 0 && *e.ID < math.MaxInt64 && e.Rank >= 0 && e.Rank < maxSources
}

func (e *trtEvent) window() window {
	w := window{tokens: min(max(e.Window, 0), maxNumber), layers: -1}
	if e.Layers != nil {
		w.layers = *e.Layers
	}
	return w
}

// The types of trtData.
const (
	typeCreated = "created"
	typeStored  = "stored"
	typeRemoved = "removed"
	typeUpdated = "updated"
)

// trtData is what an event says; which fields it has depends on its type.
type trtData struct {
	Type   string     `json:"type"`
	Parent *trtHash   `json:"parent_hash"`
	LoRA   string     `json:"lora_name"`
	Blocks []trtBlock `json:"blocks"`
	Hashes []trtHash  `json:"block_hashes"`
	Hash   *trtHash   `json:"block_hash"`
	Level  *trtDiff   `json:"cache_level"`
}

type trtDiff struct {
	Old int `json:"old_value"`
	New int `json:"new_value"`
}

type trtBlock struct {
	Hash   *trtHash        `json:"block_hash"`
	Level  int             `json:"cache_level"`
	Salt   json.RawMessage `json:"cache_salt"`
	LoRA   json.RawMessage `json:"lora_id"`
	Media  []trtMedium     `json:"mm_keys"`
	Tokens []trtToken      `json:"tokens"`
}

type trtMedium struct {
	Hash   string `json:"hash"`
	Offset int64  `json:"start_offset"`
}

// trtToken is a token, or a piece of a medium: then a number besides the id names it (the first cache manager), or the
// id is a digest (the second).
type trtToken struct {
	ID    trtID  `json:"token_id"`
	Extra uint64 `json:"token_extra_id"`
}

// trtID is a token id, or a digest in hexadecimal.
type trtID struct {
	id     uint32
	digest string
}

var errID = errors.New("not a token id")

// UnmarshalJSON accepts both.
func (t *trtID) UnmarshalJSON(b []byte) error {
	if len(b) > 1 && b[0] == '"' {
		var h trtHash
		if err := h.UnmarshalJSON(b); err != nil {
			return err
		}
		t.id, t.digest = uint32(h), string(b[1:len(b)-1])
		return nil
	}
	v, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil || v < math.MinInt32 || v > math.MaxUint32 {
		return errID
	}
	t.id = uint32(v)
	return nil
}

// trtHash is a hash as a number, signed or not, or as hexadecimal digits of which the last 16 count.
type trtHash uint64

// UnmarshalJSON accepts every form.
func (h *trtHash) UnmarshalJSON(b []byte) error {
	if len(b) > 1 && b[0] == '"' {
		digits := string(b[1 : len(b)-1])
		v, err := strconv.ParseUint(digits[max(0, len(digits)-16):], 16, 64)
		*h = trtHash(v)
		return err
	}
	if v, err := strconv.ParseInt(string(b), 10, 64); err == nil {
		*h = trtHash(v)
		return nil
	}
	v, err := strconv.ParseUint(string(b), 10, 64)
	*h = trtHash(v)
	return err
}
