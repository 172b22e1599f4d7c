package kvevents

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/kvmesh/kvmesh/cachestate"
)

// Drained is one answer of TensorRT-LLM's POST /kv_cache_events, which hands every event out once.
type Drained struct {
	// Rank and Events are those of each rank in the answer, in order.
	Ranks []RankEvents
	// Gap says that events were lost before this answer; Restarted that another process gave it.
	Gap, Restarted bool
}

// RankEvents are the events of one data-parallel rank.
type RankEvents struct {
	Rank   int
	Events []cachestate.BlockEvent
}

// Drainer reads TensorRT-LLM's answers one after the other. It is for one goroutine.
type Drainer struct {
	begun   bool
	next    int64 // number of the event that is expected
	windows []int // attention windows seen, the largest first: each is a cache group
}

// trtEvent is one event as TensorRT-LLM writes it. Fields that later versions add are ignored.
type trtEvent struct {
	ID     int64 `json:"event_id"`
	Window int   `json:"window_size"`
	Rank   int   `json:"attention_dp_rank"`
	Data   struct {
		Type   string     `json:"type"`
		Parent *trtHash   `json:"parent_hash"`
		Blocks []trtBlock `json:"blocks"`
		Hashes []trtHash  `json:"block_hashes"`
		Hash   trtHash    `json:"block_hash"`
		Level  *struct {
			Old int `json:"old_value"`
			New int `json:"new_value"`
		} `json:"cache_level"`
	} `json:"data"`
}

type trtBlock struct {
	Hash   trtHash `json:"block_hash"`
	Level  int     `json:"cache_level"`
	Salt   string  `json:"cache_salt"`
	Tokens []struct {
		ID    uint32 `json:"token_id"`
		Extra uint64 `json:"token_extra_id"`
	} `json:"tokens"`
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

var errDrained = errors.New("not a list of KV events")

// Parse reads one answer. Events of unknown types, and those that are not as they should be, are left out.
func (d *Drainer) Parse(body []byte) (Drained, error) {
	if len(body) > MaxPayload {
		return Drained{}, fmt.Errorf("parse drained KV events: %w", errBounds)
	}
	var list []json.RawMessage
	if err := json.Unmarshal(body, &list); err != nil {
		return Drained{}, fmt.Errorf("parse drained KV events: %w", errors.Join(errDrained, err))
	}
	var out Drained
	for _, raw := range list {
		var e trtEvent
		if json.Unmarshal(raw, &e) != nil || e.Rank < 0 || e.Rank >= maxSources {
			continue
		}
		d.number(&out, e.ID)
		for _, ev := range d.events(&e) {
			out.add(e.Rank, ev)
		}
	}
	return out, nil
}

// number follows the numbers of events, which begin at 0 in every process.
func (d *Drainer) number(out *Drained, id int64) {
	switch {
	case !d.begun:
		out.Gap = id > 0 // somebody else has read what was before, or it is lost
	case id < d.next:
		*out = Drained{Restarted: true}
	case id > d.next:
		*out = Drained{Gap: true, Restarted: out.Restarted}
	}
	d.begun, d.next = true, id+1
}

func (o *Drained) add(rank int, e cachestate.BlockEvent) {
	i := slices.IndexFunc(o.Ranks, func(r RankEvents) bool { return r.Rank == rank })
	if i < 0 {
		i = len(o.Ranks)
		o.Ranks = append(o.Ranks, RankEvents{Rank: rank})
	}
	o.Ranks[i].Events = append(o.Ranks[i].Events, e)
}

// events makes the neutral form of one event.
func (d *Drainer) events(e *trtEvent) []cachestate.BlockEvent {
	group, kind := d.group(e.Window)
	switch e.Data.Type {
	case "stored":
		return neighbours(e, group, kind)
	case "removed":
		var out []cachestate.BlockEvent
		for _, h := range e.Data.Hashes { // from whichever tier: a tier that does not have it ignores it
			for _, t := range []cachestate.Tier{cachestate.TierGPU, cachestate.TierCPU} {
				out = append(out, cachestate.BlockEvent{
					Kind: cachestate.BlocksRemoved, Tier: t, Group: group, Hashes: []uint64{uint64(h)},
				})
			}
		}
		return out
	case "updated":
		if l := e.Data.Level; l != nil && l.Old != l.New {
			hash := []uint64{uint64(e.Data.Hash)}
			return []cachestate.BlockEvent{
				{Kind: cachestate.BlocksRemoved, Tier: levelTier(l.Old), Group: group, Hashes: hash},
				{Kind: cachestate.BlocksStored, Tier: levelTier(l.New), Group: group, GroupKind: kind, Hashes: hash},
			}
		}
	}
	return nil
}

// group numbers the attention windows: the largest is full attention.
func (d *Drainer) group(window int) (int, cachestate.GroupKind) {
	i := slices.Index(d.windows, window)
	if i < 0 {
		i = len(d.windows)
		d.windows = append(d.windows, window)
	}
	if window < slices.Max(d.windows) {
		return i, cachestate.GroupSliding
	}
	return i, cachestate.GroupFull
}

func levelTier(level int) cachestate.Tier {
	if level == 0 {
		return cachestate.TierGPU
	}
	return cachestate.TierCPU
}

// neighbours makes one event of neighbouring blocks.
func neighbours(e *trtEvent, group int, kind cachestate.GroupKind) []cachestate.BlockEvent {
	out := cachestate.BlockEvent{
		Kind: cachestate.BlocksStored, Group: group, GroupKind: kind, Window: e.Window, ShowsExtras: true,
	}
	if e.Data.Parent != nil {
		out.HasParent, out.Parent = true, uint64(*e.Data.Parent)
	}
	for i, b := range e.Data.Blocks {
		if i == 0 {
			out.Tier, out.BlockTokens = levelTier(b.Level), len(b.Tokens)
		}
		if len(b.Tokens) != out.BlockTokens || len(b.Tokens) == 0 {
			break // part of a block
		}
		parts := []string{}
		for _, t := range b.Tokens {
			out.Tokens = append(out.Tokens, t.ID)
			if t.Extra != 0 {
				parts = append(parts, strconv.FormatUint(t.Extra, 10))
			}
		}
		if i == 0 && !out.HasParent {
			parts = append(parts, b.Salt)
		}
		out.Hashes = append(out.Hashes, uint64(b.Hash))
		out.Extras = append(out.Extras, cachestate.BlockExtra(parts...))
	}
	if len(out.Hashes) == 0 {
		return nil
	}
	return []cachestate.BlockEvent{out}
}
