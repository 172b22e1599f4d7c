package kvevents

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/kvmesh/kvmesh/cachestate"
)

// maxCommas bounds what one event may make us allocate. A token takes three commas; a step stores thousands.
const maxCommas = 1 << 20

// tierSet is a set of tiers.
type tierSet uint8

func (s *tierSet) add(t cachestate.Tier)     { *s |= 1 << t }
func (s tierSet) has(t cachestate.Tier) bool { return s>>t&1 == 1 }

// event adds what one event says to the answer. It returns false when that is not understood.
func (d *Drainer) event(out *Drained, e *trtEvent) bool {
	var data trtData
	if data.Type = typeOf(e.Data); bytes.Count(e.Data, []byte{','}) > maxCommas || !data.read(e.Data) {
		if data.Type == typeRemoved {
			d.lose(out, e.Rank) // it may be of any block
		}
		return false
	}
	group, kind, ok := d.groupOf(e.window())
	if !ok {
		return false
	}
	form := cachestate.BlockEvent{Group: group}
	if kind == cachestate.GroupSliding {
		form.Window = e.Window
	}
	switch data.Type {
	case typeCreated: // how many blocks there are
		return true
	case typeStored:
		form.GroupKind = kind
		return d.stored(out, e.Rank, form, &data)
	case typeRemoved:
		d.removed(out, e.Rank, group, data.Hashes)
		return true
	case typeUpdated:
		form.GroupKind = kind
		return d.moved(out, e.Rank, form, &data)
	}
	return false
}

// typeOf returns the type of an event, "" when it has none.
func typeOf(raw json.RawMessage) string {
	var tag struct {
		Type string `json:"type"`
	}
	_ = json.Unmarshal(raw, &tag)
	return tag.Type
}

// read reads data whose type is known. Others may have fields of the same name that mean something else.
func (d *trtData) read(raw json.RawMessage) bool {
	switch d.Type {
	case typeCreated:
		return true
	case typeStored, typeUpdated:
		return json.Unmarshal(raw, d) == nil
	case typeRemoved:
		return json.Unmarshal(raw, d) == nil && d.Hashes != nil
	}
	return false
}

// stored takes neighbouring blocks. The last one may be part of a block, which is stored again when it is whole.
func (d *Drainer) stored(out *Drained, rank int, form cachestate.BlockEvent, data *trtData) bool {
	for _, b := range data.Blocks {
		if _, ok := levelTier(b.Level); !ok || b.Hash == nil || len(b.Tokens) == 0 {
			return false
		}
	}
	if len(data.Blocks) == 0 {
		return true
	}
	if data.Parent != nil {
		form.HasParent, form.Parent = true, uint64(*data.Parent)
	}
	if d.BlockTokens > 0 {
		d.block = d.BlockTokens
	}
	if d.block == 0 {
		d.learn(out, &form, data.Blocks)
	}
	if d.block == 0 {
		form.BlockTokens = len(data.Blocks[0].Tokens)
		events, _ := neighbours(form, data)
		d.waiting = append(d.waiting, waitingBlock{rank, events[0]})
		return true
	}
	form.BlockTokens = d.block
	events, ok := neighbours(form, data)
	for i := range events {
		d.tiers.add(events[i].Tier)
	}
	out.add(rank, events...)
	return ok
}

// learn finds out how many tokens a block has: as many as one that another follows. Then the blocks that waited for
// that are let go.
func (d *Drainer) learn(out *Drained, form *cachestate.BlockEvent, blocks []trtBlock) {
	followed := slices.IndexFunc(d.waiting, func(w waitingBlock) bool {
		return form.HasParent && w.event.Hashes[0] == form.Parent
	})
	switch {
	case len(blocks) > 1:
		d.block = len(blocks[0].Tokens)
	case followed >= 0:
		d.block = d.waiting[followed].event.BlockTokens
	case len(d.waiting) >= maxWaiting:
		for _, w := range d.waiting {
			d.block = max(d.block, w.event.BlockTokens)
		}
	default:
		return
	}
	for _, w := range d.waiting {
		if w.event.BlockTokens == d.block {
			d.tiers.add(w.event.Tier)
			out.add(w.rank, w.event)
		}
	}
	d.waiting = nil
}

// neighbours makes an event of each run of whole blocks that lie in one tier. It returns false when a part of a block
// is not the last one, or there is more than a block in one.
func neighbours(form cachestate.BlockEvent, data *trtData) (events []cachestate.BlockEvent, ok bool) {
	parent, hasParent := form.Parent, form.HasParent
	for i, b := range data.Blocks {
		if len(b.Tokens) != form.BlockTokens {
			return events, len(b.Tokens) < form.BlockTokens && i == len(data.Blocks)-1
		}
		tier, _ := levelTier(b.Level)
		if i == 0 || events[len(events)-1].Tier != tier {
			e := form
			e.Tier, e.Parent, e.HasParent = tier, parent, hasParent
			events = append(events, e)
		}
		e := &events[len(events)-1]
		e.Hashes = append(e.Hashes, uint64(*b.Hash))
		e.Extras = append(e.Extras, b.extra(data.LoRA, !hasParent))
		e.ShowsExtras = e.ShowsExtras || b.Salt != nil || b.LoRA != nil
		for _, t := range b.Tokens {
			e.Tokens = append(e.Tokens, t.ID.id)
		}
		parent, hasParent = uint64(*b.Hash), true
	}
	return events, true
}

// extra returns what besides tokens went into the block: its adapter, media, and the salt in the first one.
func (b *trtBlock) extra(lora string, first bool) uint64 {
	parts := []string{lora}
	if id := rawText(b.LoRA); lora == "" {
		parts[0] = id
	}
	for _, m := range b.Media {
		parts = append(parts, m.Hash+"\x00"+strconv.FormatInt(m.Offset, 10))
	}
	for _, t := range b.Tokens {
		if parts = append(parts, t.ID.digest); t.Extra != 0 {
			parts = append(parts, strconv.FormatUint(t.Extra, 10))
		}
	}
	if first {
		parts = append(parts, rawText(b.Salt))
	}
	return cachestate.BlockExtra(parts...)
}

// rawText returns a text, the digits of a number, and nothing for null.
func rawText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return string(raw)
	}
	return s
}

// removed takes blocks out of every tier: it is not said from which.
func (d *Drainer) removed(out *Drained, rank, group int, hashes []trtHash) {
	if len(hashes) == 0 {
		return
	}
	gone := make([]uint64, len(hashes))
	for i, h := range hashes {
		gone[i] = uint64(h)
	}
	d.waiting = slices.DeleteFunc(d.waiting, func(w waitingBlock) bool {
		return w.rank == rank && w.event.Group == group && slices.Contains(gone, w.event.Hashes[0])
	})
	for _, t := range []cachestate.Tier{cachestate.TierGPU, cachestate.TierCPU, cachestate.TierDisk} {
		if d.tiers.has(t) {
			out.add(rank, cachestate.BlockEvent{Kind: cachestate.BlocksRemoved, Tier: t, Group: group, Hashes: gone})
		}
	}
}

// moved takes a block from one tier to another. Other changes, of its priority, do not matter.
func (d *Drainer) moved(out *Drained, rank int, form cachestate.BlockEvent, data *trtData) bool {
	if data.Hash == nil {
		return false
	}
	if data.Level == nil {
		return true
	}
	from, known := levelTier(data.Level.Old)
	to, ok := levelTier(data.Level.New)
	if !known || !ok {
		return false
	}
	if from == to {
		return true
	}
	hash := uint64(*data.Hash)
	for i := range d.waiting {
		if w := &d.waiting[i]; w.rank == rank && w.event.Group == form.Group && w.event.Hashes[0] == hash {
			w.event.Tier = to
			return true
		}
	}
	d.tiers.add(to)
	form.Tier, form.Hashes = to, []uint64{hash}
	out.add(rank, cachestate.BlockEvent{
		Kind: cachestate.BlocksRemoved, Tier: from, Group: form.Group, Hashes: form.Hashes,
	}, form)
	return true
}

// levelTier reads a cache level: the GPU, the host's memory, and what is slower.
func levelTier(level int) (t cachestate.Tier, ok bool) {
	switch {
	case level < 0:
		return 0, false
	case level == 0:
		return cachestate.TierGPU, true
	case level == 1:
		return cachestate.TierCPU, true
	}
	return cachestate.TierDisk, true
}
