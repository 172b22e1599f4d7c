package spread

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// DigestID names one digest of the mesh.
type DigestID struct {
	Engine   engine.ID
	Tier     cachestate.Tier
	Geometry cachestate.Geometry
}

func digestOf(d *cachestate.Delta) DigestID {
	return DigestID{Engine: d.Engine, Tier: d.Tier, Geometry: d.Geometry}
}

// edition is the versions of all digests as they were published at one moment. It is never changed: peers that are late
// keep it, and cost no more than a pointer.
type edition struct {
	number   uint64
	at       time.Time
	period   time.Duration // until the next
	versions map[DigestID]cachestate.Version
}

// publishDigests makes an edition. Digests that did not change are in it too: version and checksum tell a peer that missed
// something within a period.
func (t *Teller) publishDigests() {
	t.publishing.Lock()
	defer t.publishing.Unlock()
	e := &edition{number: 1, at: time.Now(), period: DigestPeriod(t.Carrier.Agents()), versions: map[DigestID]cachestate.Version{}}
	var deltas []cachestate.Delta
	t.publisher = map[DigestID]Source{}
	for _, s := range t.Sources {
		published := s.Publish()
		t.keepOwn(s, published)
		for i := range published {
			id := digestOf(&published[i])
			e.versions[id], t.publisher[id] = published[i].Version(), s
		}
		deltas = append(deltas, published...)
	}
	t.frames = map[uint64][]byte{}
	if before := t.now().edition; before != nil {
		e.number = before.number + 1
		t.frames[before.number] = digestFrames(deltas) // for nearly all peers
	}
	t.tellNews(func(n *news) { n.edition = e })
}

// keepOwn takes what an engine beside this agent published into the agent's own index. That may have dropped what it had,
// as it does when another generation is announced.
func (t *Teller) keepOwn(s Source, published []cachestate.Delta) {
	if t.Index == nil {
		return
	}
	for i := range published {
		if !t.Index.Apply(&published[i]).NeedFull() {
			continue
		}
		if whole, ok := wholeDigest(s, digestOf(&published[i])); ok {
			t.Index.Apply(&whole)
		}
	}
}

func wholeDigest(s Source, id DigestID) (cachestate.Delta, bool) {
	all := s.Digests()
	i := slices.IndexFunc(all, func(d cachestate.Delta) bool { return digestOf(&d) == id })
	if i < 0 {
		return cachestate.Delta{}, false
	}
	return all[i], true
}

// lead returns the frames that lead a peer from an edition to the last one, and that; from nothing where from is nil. They
// are made once for all peers that have the same, and not to be changed.
func (t *Teller) lead(from *edition) (frames []byte, to *edition) {
	t.publishing.Lock()
	defer t.publishing.Unlock()
	if to = t.now().edition; to == from {
		return nil, to
	}
	var number uint64
	have := map[DigestID]cachestate.Version(nil)
	if from != nil {
		number, have = from.number, from.versions
	}
	frames, made := t.frames[number]
	if !made {
		frames = digestFrames(t.deltasTo(to, have))
		t.frames[number] = frames
	}
	return frames, to
}

// deltasTo returns one delta for each digest of an edition, from the version in have. Version 0 of every generation is the
// empty digest, so that a digest of which a peer has nothing needs no other way.
func (t *Teller) deltasTo(to *edition, have map[DigestID]cachestate.Version) []cachestate.Delta {
	var deltas []cachestate.Delta
	for id, version := range to.versions {
		if d, ok := way(t.publisher[id], id, have[id], version.Generation); ok {
			deltas = append(deltas, d)
		}
	}
	slices.SortFunc(deltas, inOrder)
	return deltas
}

func inOrder(a, b cachestate.Delta) int {
	return cmp.Or(cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Geometry.Bits, b.Geometry.Bits))
}

// way returns what leads from a version of a digest to the last published one: deltas as one, or the whole digest.
func way(s Source, id DigestID, have cachestate.Version, gen engine.Generation) (cachestate.Delta, bool) {
	if have.Generation != gen {
		have.Number = 0
	}
	if d, ok := s.DeltasSince(id.Geometry, id.Tier, have.Number); ok && d.Generation == gen {
		return d, true
	}
	return wholeDigest(s, id)
}

// digestFrames puts deltas into as few frames as can be: nearly always one, but whole digests of hundreds of engines in
// several tiers are more than that. None for no deltas.
func digestFrames(deltas []cachestate.Delta) []byte {
	var out, part []byte
	for i := range deltas {
		b := cachestate.AppendDelta(nil, &deltas[i])
		if len(part) > 0 && len(part)+len(b) >= maxFrame {
			out, part = appendFrame(out, frameDigests, part), nil
		}
		part = append(part, b...)
	}
	if len(part) > 0 {
		out = appendFrame(out, frameDigests, part)
	}
	return out
}
