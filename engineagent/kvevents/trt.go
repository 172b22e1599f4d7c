package kvevents

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/kvmesh/kvmesh/cachestate"
)

// Drained is one answer of TensorRT-LLM's POST /kv_cache_events, which hands every event out once.
type Drained struct {
	// Ranks are the ranks of which there is something to say.
	Ranks []RankEvents
	// Restarted says that another process gave this answer: nothing holds that was known of any rank.
	Restarted bool
	Skipped   int // events of unknown types, and events that are not as they should be
}

// RankEvents are the events of one data-parallel rank, in order.
type RankEvents struct {
	Rank   int
	Gap    bool // what was known of the rank before these events does not hold: some were lost, or a removal is not understood
	Events []cachestate.BlockEvent
}

// Drainer reads TensorRT-LLM's answers one after the other. It is for one goroutine.
type Drainer struct {
	// BlockTokens is the engine's tokens_per_block. Where it is 0, single blocks wait until events tell whole ones from
	// parts of one.
	BlockTokens int

	block   int          // the same, as events told it
	ids     map[int]*IDs // of each rank
	windows []window     // each is a cache group; the first is the largest
	tiers   tierSet      // in which blocks have lain
	waiting []waitingBlock
}

// window is what tells cache groups apart: newer versions number them, older ones have one for each attention window.
type window struct {
	tokens int // 0 when it is not said
	layers int // layer_group_id; -1 when it is not said
}

// waitingBlock is a block of which it is not known whether it is a whole one.
type waitingBlock struct {
	rank  int
	event cachestate.BlockEvent
}

// Bounds of one answer. Engines keep thousands of events.
const (
	maxDrained = 1 << 18
	maxWindows = 64
	maxWaiting = 256 // of so many single blocks the longest is a whole one
)

var errDrained = errors.New("it is not a list of KV events")

// IDs follows the numbers of events, which begin at 0 in every process and grow by one.
type IDs struct {
	begun bool
	next  int64
}

// Next takes the number of the next event. gap says that events before it were not seen, restart that another process
// counts.
func (i *IDs) Next(id int64) (gap, restart bool) {
	restart = i.restarts(id)
	gap = id > i.next || id > 0 && restart
	i.begun, i.next = true, id+1
	return gap, restart
}

func (i *IDs) restarts(id int64) bool { return i.begun && id < i.next }

// Parse reads one answer. Events of unknown types, and those that are not as they should be, are left out and counted; a
// removal among these is a gap.
func (d *Drainer) Parse(body []byte) (Drained, error) {
	var out Drained
	list, err := envelopes(body, &out)
	if err != nil {
		return Drained{}, fmt.Errorf("parse drained KV events: %w", err)
	}
	if d.restarted(list) {
		*d = Drainer{BlockTokens: d.BlockTokens}
		out.Restarted = true
	}
	if d.ids == nil {
		d.ids = map[int]*IDs{}
	}
	regrouped := d.group(list)
	for i := range list {
		e := &list[i]
		if d.ids[e.Rank] == nil {
			d.ids[e.Rank] = &IDs{}
		}
		if gap, restart := d.ids[e.Rank].Next(*e.ID); gap || restart {
			d.lose(&out, e.Rank)
		}
		if !d.event(&out, e) {
			out.Skipped++
		}
	}
	if regrouped {
		for rank := range d.ids {
			out.rank(rank).Gap = true
		}
	}
	slices.SortFunc(out.Ranks, func(a, b RankEvents) int { return cmp.Compare(a.Rank, b.Rank) })
	return out, nil
}

// envelopes reads the list of events, but not yet what they say.
func envelopes(body []byte, out *Drained) (list []trtEvent, err error) {
	if len(body) > MaxPayload {
		return nil, errBounds
	}
	if string(bytes.TrimSpace(body)) == "null" { // what an engine without events says
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, errors.Join(errDrained, err)
	}
	for d.More() {
		if len(list)+out.Skipped == maxDrained {
			return nil, fmt.Errorf("more than %d events", maxDrained)
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, errors.Join(errDrained, err)
		}
		var e trtEvent
		if json.Unmarshal(raw, &e) != nil || !e.valid() {
			out.Skipped++
			continue
		}
		list = append(list, e)
	}
	if _, err := d.Token(); err != nil {
		return nil, errors.Join(errDrained, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: more follows", errDrained)
	}
	return list, nil
}

// restarted reports whether another process gave an answer: a number of a rank is one that was in answers before.
func (d *Drainer) restarted(list []trtEvent) bool {
	return slices.ContainsFunc(list, func(e trtEvent) bool {
		ids := d.ids[e.Rank]
		return ids != nil && ids.restarts(*e.ID)
	})
}

// lose forgets what came of a rank so far.
func (d *Drainer) lose(out *Drained, rank int) {
	r := out.rank(rank)
	r.Gap, r.Events = true, nil
	d.waiting = slices.DeleteFunc(d.waiting, func(w waitingBlock) bool { return w.rank == rank })
}

func (o *Drained) rank(rank int) *RankEvents {
	i := slices.IndexFunc(o.Ranks, func(r RankEvents) bool { return r.Rank == rank })
	if i < 0 {
		i = len(o.Ranks)
		o.Ranks = append(o.Ranks, RankEvents{Rank: rank})
	}
	return &o.Ranks[i]
}

func (o *Drained) add(rank int, events ...cachestate.BlockEvent) {
	if len(events) > 0 {
		r := o.rank(rank)
		r.Events = append(r.Events, events...)
	}
}

// group numbers the windows that an answer names. It returns true when groups that were numbered before mean something
// else now: the largest window is that of full attention, and a larger one appeared.
func (d *Drainer) group(list []trtEvent) (changed bool) {
	all := slices.Clone(d.windows)
	for i := range list {
		if w := list[i].window(); !slices.Contains(all, w) && len(all) < maxWindows {
			all = append(all, w)
		}
	}
	had := len(d.windows)
	if len(all) == had {
		return false
	}
	largestFirst := func(a, b window) int {
		return cmp.Or(cmp.Compare(b.tokens, a.tokens), cmp.Compare(a.layers, b.layers))
	}
	slices.SortFunc(all[had:], largestFirst)
	if changed = had > 0 && all[had].tokens > all[0].tokens; changed {
		slices.SortFunc(all, largestFirst)
		d.waiting = nil
	}
	d.windows = all
	return changed
}

// groupOf returns the number of a window's group and what it needs for a hit. Of a group that is as large as the first,
// nothing says whether it holds attention or a state.
func (d *Drainer) groupOf(w window) (group int, kind cachestate.GroupKind, ok bool) {
	switch group = slices.Index(d.windows, w); {
	case group < 0:
		return 0, 0, false
	case group == 0:
		return 0, cachestate.GroupFull, true
	case w.tokens < d.windows[0].tokens:
		return group, cachestate.GroupSliding, true
	}
	return group, cachestate.GroupOther, true
}
