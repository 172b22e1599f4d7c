package simscale

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// Result is what a mesh of that size costs. Bytes are at IP level. A listener hears from all others and, as every agent does,
// would tell all others: what leaves it is by symmetry what others send to it.
type Result struct {
	Agents       int                `json:"agents"`
	Listeners    int                `json:"listeners"`
	Changes      float64            `json:"changes_per_s"`
	Seconds      float64            `json:"seconds"`         // of fake time that counted
	BytesIn      map[string]float64 `json:"bytes_in_per_s"`  // of an agent: wire, and what it consists of: feed, heartbeat, pull, ack, gossip
	BytesOut     map[string]float64 `json:"bytes_out_per_s"` // likewise
	PacketsIn    float64            `json:"packets_in_per_s"`
	PacketsOut   float64            `json:"packets_out_per_s"`
	Staleness    Spread             `json:"digest_staleness_s"` // age of the oldest change that a listener misses, 0 when it misses none
	HeartbeatAge Spread             `json:"heartbeat_age_s"`
	Unknown      int                `json:"unknown_digests"` // samples of digests that were not there
	Memory       []Memory           `json:"memory"`
	Connections  int64              `json:"connection_bytes"` // what an agent's connections to all others take beside it; no part of the model
}

// Memory is how much of the machine the process had at one moment.
type Memory struct {
	After float64 `json:"after_s"` // fake time since the begin
	RSS   int64   `json:"rss_bytes"`
}

// connectionBytes is heap and stack of one end of an idle connection, the more of what mesh's BenchmarkIdleConnections gives.
const connectionBytes = 75 << 10

// residentNow returns the resident memory of this process; 0 where the system does not tell.
func residentNow() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	fields := strings.Fields(string(b))
	if err != nil || len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// result sums up what was measured.
func (m *model) result() Result {
	seconds := m.For.Seconds()
	gossipBytes, gossipPackets := gossip(m.Agents)
	r := Result{
		Agents: m.Agents, Listeners: m.Listeners, Changes: m.Changes, Seconds: seconds,
		Staleness: m.stale.spread(), HeartbeatAge: m.silent.spread(), Unknown: m.unknown,
		Memory: m.memory, Connections: int64(m.Agents-1) * connectionBytes,
	}
	m.traffic.mu.Lock()
	defer m.traffic.mu.Unlock()
	r.BytesIn, r.PacketsIn = rates(m.traffic.in, m.Listeners, seconds, gossipBytes, gossipPackets)
	r.BytesOut, r.PacketsOut = rates(m.traffic.out, m.Listeners, seconds, gossipBytes, gossipPackets)
	return r
}

func (m *model) remember(began time.Time) {
	m.memory = append(m.memory, Memory{After: time.Since(began).Seconds(), RSS: residentNow()})
}
