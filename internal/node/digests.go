package node

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/spread"
)

// DigestStatus is the digest of one engine in one tier.
type DigestStatus struct {
	Tier     string  `json:"tier"`
	Version  uint64  `json:"version"`
	Checksum string  `json:"checksum"` // of the bits, in hexadecimal: the same wherever the digest is
	Keys     int     `json:"keys"`     // as its owner counts them
	Fill     float64 `json:"fill"`
	Age      float64 `json:"age_s"` // since it was last known to be its owner's last; negative for engines beside this agent
}

// digests returns the digests of an engine that decisions see, the fastest tier's first.
func (n *Node) digests(id engine.ID, ages map[spread.DigestID]time.Duration) []DigestStatus {
	out := []DigestStatus{}
	for t := cachestate.TierGPU; t.Valid(); t++ {
		digest := spread.DigestID{Engine: id, Tier: t, Geometry: n.index.Geometry()}
		v, ok := n.listener.Have(digest)
		if !ok {
			continue
		}
		index := n.index.Tier(t)
		s := DigestStatus{Tier: t.String(), Version: v.Number, Checksum: fmt.Sprintf("%016x", v.Checksum), Keys: index.Keys(id), Fill: index.Fill(id), Age: -1}
		if age, heard := ages[digest]; heard {
			s.Age = age.Seconds()
		}
		out = append(out, s)
	}
	return out
}

// ResidencyWords says what is known of the engine's cache, and how far it can be trusted.
func (e *EngineStatus) ResidencyWords() string {
	words := e.Residency
	if e.Residency == engine.ResidencyNone.String() {
		return words
	}
	if e.Evidence == engine.EvidenceNone.String() {
		words += ", unverified"
	}
	if e.OverlapScale > 0 && e.OverlapScale < 1 {
		words += fmt.Sprintf(", %.0f%% true", 100*e.OverlapScale)
	}
	if e.Unstable {
		words += ", unstable layout"
	}
	return words
}

// digestCollector shows how old the digests of peers are, and of the engines beside this agent what their digests hold
// and how far they can be trusted: those of others are shown by their owners.
type digestCollector struct {
	n *Node
}

func cacheDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("kvmesh", "cachestate", name), help, labels, nil)
}

var (
	digestAge = cacheDesc("digest_age_seconds",
		"Time since the last message of an engine's digest. Worry when it is above three digest periods: its agent is not heard.",
		"engine", "tier")
	digestKeys = cacheDesc("digest_keys", "Prompt keys in the digest of an engine beside this agent.", "engine", "tier")
	digestFill = cacheDesc("digest_fill_ratio",
		"Share of set bits in the digest of an engine beside this agent. Worry above 0.5: at 0.7 it counts as unknown.",
		"engine", "tier")
	residencyInfo = cacheDesc("residency_info",
		"1 for what the digests of an engine beside this agent rest on and are checked by. "+
			"Worry at evidence none: it is unverified, and at layout unstable: it is routed by load alone.",
		"engine", "residency", "evidence", "layout")
	overlapScale = cacheDesc("overlap_scale_ratio",
		"Share of the overlap claimed of an engine beside this agent that turns out true. Worry below 0.9.", "engine")
)

// Describe implements prometheus.Collector.
func (c *digestCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{digestAge, digestKeys, digestFill, residencyInfo, overlapScale} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *digestCollector) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	routed := c.n.index.Geometry()
	for id, age := range c.n.listener.DigestAges(time.Now()) {
		if _, here := c.n.listener.Have(id); here && id.Geometry == routed {
			send(digestAge, age.Seconds(), string(id.Engine), id.Tier.String())
		}
	}
	for _, a := range c.n.agentsOf {
		e := a.Engine()
		id := string(e.ID)
		for _, d := range c.n.digests(e.ID, nil) {
			send(digestKeys, float64(d.Keys), id, d.Tier)
			send(digestFill, d.Fill, id, d.Tier)
		}
		layout := "stable"
		if e.Unstable {
			layout = "unstable"
		}
		send(residencyInfo, 1, id, e.Residency.String(), e.Evidence.String(), layout)
		send(overlapScale, e.OverlapScale(), id)
	}
}
