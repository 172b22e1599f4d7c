package kvevents

import (
	"fmt"
	"slices"

	"github.com/kvmesh/kvmesh/cachestate"
)

// apply applies the batch that is wanted. One that cannot be read is a gap of its own.
func (f *Follower) apply(m message) {
	f.tracker.took(m.hash)
	err := f.decoder.Decode(m.payload, &f.batch)
	rank := f.source.Rank
	if f.batch.HasRank {
		rank = f.batch.Rank
	}
	if err == nil {
		err = f.noteRank(rank)
	}
	if err != nil {
		f.count(func(s *Stats) { s.Broken++ })
		f.lose("a batch of KV events could not be read: " + err.Error())
		return
	}
	events := f.batch.Events
	if m.seq == 0 && len(events) > 0 && events[0].Kind == cachestate.BlocksCleared {
		events = events[1:] // SGLang begins by clearing what is empty
	}
	f.count(func(s *Stats) {
		s.Batches++
		s.Events += uint64(len(events))
		s.Skipped += uint64(f.batch.Skipped)
	})
	if f.batch.Unsure {
		f.lose("it is not understood which blocks a KV event removes")
	}
	f.holding = f.holding || len(events) > 0
	f.sink.Apply(rank, events)
}

func (f *Follower) noteRank(rank int) error {
	if slices.Contains(f.ranks, rank) {
		return nil
	}
	if len(f.ranks) == maxRanks {
		return fmt.Errorf("more than %d ranks", maxRanks)
	}
	f.ranks = append(f.ranks, rank)
	return nil
}

// lose says that what is held is not known any more, if anything is.
func (f *Follower) lose(why string) {
	if !f.holding {
		return
	}
	f.holding = false
	f.count(func(s *Stats) { s.Lost++ })
	for _, rank := range f.ranks {
		f.sink.Lost(rank, why)
	}
}

// restart begins to follow another process.
func (f *Follower) restart(why string) {
	f.processes++
	f.count(func(s *Stats) { s.Restarts++ })
	for _, rank := range f.ranks {
		f.sink.Restarted(rank, why)
	}
	f.tracker.reset()
	f.hold.clear()
	f.ranks, f.holding, f.partial = f.ranks[:0], false, false
}
