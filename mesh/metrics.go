package mesh

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what an agent counts here. Labels come from closed lists, so a peer cannot make new series.
type metrics struct {
	reg       prometheus.Registerer
	peersDesc *prometheus.Desc
	peers     atomic.Pointer[Mesh] // whose peers are counted
	dropped   *prometheus.CounterVec
	refused   *prometheus.CounterVec
	carried   *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		reg:       reg,
		peersDesc: prometheus.NewDesc("kvmesh_mesh_peers", "Known peers by their state.", []string{"state"}, nil),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kvmesh_mesh_dropped_total",
			Help: "Datagrams, streams, packets and states that were dropped, by reason.",
		}, []string{"reason"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kvmesh_mesh_refused_total",
			Help: "Connections that this agent or the other side refused, by reason.",
		}, []string{"reason"}),
		carried: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kvmesh_mesh_bytes_total",
			Help: "Payload bytes carried, by channel (the kind of stream, packet or datagram) and direction.",
		}, []string{"channel", "direction"}),
	}
	if reg == nil {
		return m, nil
	}
	return m, reg.Register(m)
}

func (m *metrics) unregister() {
	if m.reg != nil {
		m.reg.Unregister(m)
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.peersDesc
	ch <- wireBytes
	ch <- wirePackets
	m.dropped.Describe(ch)
	m.refused.Describe(ch)
	m.carried.Describe(ch)
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	if mesh := m.peers.Load(); mesh != nil {
		for s, n := range mesh.countPeers() {
			ch <- prometheus.MustNewConstMetric(m.peersDesc, prometheus.GaugeValue, float64(n), s.String())
		}
		mesh.collectTraffic(ch)
	}
	m.dropped.Collect(ch)
	m.refused.Collect(ch)
	m.carried.Collect(ch)
}

func (m *metrics) drop(reason string) { m.dropped.WithLabelValues(reason).Inc() }

// bytes returns the counters of one channel.
func (m *metrics) bytes(channel string) (in, out prometheus.Counter) {
	return m.carried.WithLabelValues(channel, "in"), m.carried.WithLabelValues(channel, "out")
}
