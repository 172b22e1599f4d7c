package engineagent

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// instruments are the metrics of one engine: what only grows, and gauges that are read from its load when asked for.
type instruments struct {
	agent *Agent

	requests  *prometheus.CounterVec // by outcome
	refusals  *prometheus.CounterVec // by reason
	restarts  prometheus.Counter
	events    prometheus.Counter
	lessons   *prometheus.CounterVec // by source
	predicted prometheus.Counter
	cached    prometheus.Counter
	overlap   *prometheus.HistogramVec // by direction
	wait      prometheus.Histogram

	up, inFlight, waiting, queued, usage, rate *prometheus.Desc
	meanError, capacity, evidence              *prometheus.Desc
	gaps, lost, skipped                        *prometheus.Desc
	ejected, ejections                         *prometheus.Desc
}

const namespace, subsystem = "kvmesh", "engineagent"

func newInstruments(a *Agent) *instruments {
	m := &instruments{
		agent: a,
		requests: counters(a, "requests_total",
			"Booked requests that ended, by outcome: answered, refused (a status of 400 to 499), failed or abandoned.", "outcome"),
		refusals: counters(a, "refusals_total",
			"Requests not booked, by reason. Worry when queue grows without full.", "reason"),
		restarts: counter(a, "restarts_total", "Lives of the engine's cache that ended. Worry above a few a day."),
		events:   counter(a, "kv_events_total", "KV events applied. Worry when it stands still while requests are answered."),
		lessons: counters(a, "lessons_total",
			"Prompts whose token ids were learned, by source: answer, or a rendering off the path. Worry at 0 when KV events come.",
			"source"),
		predicted: counter(a, "overlap_predicted_tokens_total",
			"Prompt tokens that were predicted to be cached."),
		cached: counter(a, "overlap_reported_tokens_total",
			"Prompt tokens that the engine reported cached, of the same prompts."),
		overlap: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "overlap_error_tokens", ConstLabels: labels(a),
			Help:    "Predicted against reported cached tokens of a prompt. Worry when over has more than few above 1000.",
			Buckets: prometheus.ExponentialBuckets(16, 4, 7), // one block to 65,536 tokens
		}, []string{"direction"}),
	}
	m.wait = prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "queue_wait_seconds", ConstLabels: labels(a),
		Help:    "Time from acceptance to hand-over to the engine. Worry when seconds are the rule: engines are missing.",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 8), // 1 ms to 16 s
	})
	m.up = gauge(a, "up", "Whether the engine answers. Worry at 0.")
	m.inFlight = gauge(a, "inflight", "Requests booked or reported by the engine.")
	m.waiting = gauge(a, "waiting", "Requests without a first token. Worry when it grows while prefill speed does not.")
	m.queued = gauge(a, "queued", "Requests that wait with the owner for their turn. Worry when it does not fall to 0 for minutes.")
	m.usage = gauge(a, "kv_usage_ratio", "Share of KV blocks in use. Worry above 0.95.")
	m.rate = gauge(a, "prefill_tokens_per_second", "Learned prefill speed.")
	m.meanError = gauge(a, "overlap_error_ratio",
		"Predicted less reported cached tokens, as a share of the prompt. Worry above 0.1.")
	m.capacity = gauge(a, "believed_capacity_tokens",
		"KV capacity that the mirror uses. Worry when far below the engine's.")
	m.gaps = gauge(a, "gaps_total", "Gaps in the stream of KV events, those that a replay has filled too.")
	m.skipped = gauge(a, "kv_events_skipped_total",
		"KV events that are not understood. Worry when it grows after an upgrade of the engine.")
	m.lost = gauge(a, "lost_total", "Times that what the engine holds was not known any more. Worry above a few a day.")
	m.ejected = gauge(a, "ejected", "Whether requests go to other engines while they can serve: it is an outlier, or returns. Worry at 1 for minutes.")
	m.ejections = gauge(a, "ejections_total", "Times that the engine was found an outlier or failed a trial, by reason: "+
		"errors, slow (against its own past), stuck (accepts and does not answer). Worry above a few a day.", "reason")
	m.evidence = gauge(a, "evidence_info", "1 for what predictions are checked by. Worry at none.", "source")
	return m
}

func labels(a *Agent) prometheus.Labels { return prometheus.Labels{"engine": string(a.cfg.ID)} }

func counter(a *Agent, name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, ConstLabels: labels(a),
	})
}

func counters(a *Agent, name, help, label string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, ConstLabels: labels(a),
	}, []string{label})
}

func gauge(a *Agent, name, help string, variable ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, name), help, variable, labels(a))
}

// observe counts one prediction and what became of it.
func (m *instruments) observe(p prediction, cached int) {
	m.predicted.Add(float64(p.overlap))
	m.cached.Add(float64(cached))
	if p.overlap >= cached {
		m.overlap.WithLabelValues("over").Observe(float64(p.overlap - cached))
	} else {
		m.overlap.WithLabelValues("under").Observe(float64(cached - p.overlap))
	}
}

func (m *instruments) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.refusals, m.restarts, m.events, m.lessons, m.predicted, m.cached, m.overlap, m.wait}
}

// Describe implements prometheus.Collector.
func (m *instruments) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{
		m.up, m.inFlight, m.waiting, m.queued, m.usage, m.rate, m.meanError, m.capacity, m.evidence,
		m.gaps, m.lost, m.skipped, m.ejected, m.ejections,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *instruments) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(ch)
	}
	l := m.agent.Load()
	m.send(ch, m.up, boolean(l.Flags&engine.Down == 0))
	m.send(ch, m.inFlight, float64(l.InFlight))
	m.send(ch, m.waiting, float64(l.Waiting))
	m.send(ch, m.queued, float64(m.agent.Queued()))
	m.send(ch, m.usage, l.KVUsage)
	m.send(ch, m.rate, l.PrefillRate)
	stats := m.agent.eventStats()
	ch <- prometheus.MustNewConstMetric(m.gaps, prometheus.CounterValue, float64(stats.gaps))
	ch <- prometheus.MustNewConstMetric(m.skipped, prometheus.CounterValue, float64(stats.skipped))
	ch <- prometheus.MustNewConstMetric(m.lost, prometheus.CounterValue, float64(stats.lost))
	m.send(ch, m.ejected, boolean(l.Flags&engine.Ejected != 0))
	for cause, n := range m.agent.Standing().Ever {
		ch <- prometheus.MustNewConstMetric(m.ejections, prometheus.CounterValue, float64(n), string(cause))
	}
	meanError, capacity, source := m.agent.belief()
	m.send(ch, m.meanError, meanError)
	m.send(ch, m.capacity, float64(capacity))
	for _, s := range []engine.Evidence{engine.EvidenceNone, engine.EvidenceCounters, engine.EvidenceUsage} {
		m.send(ch, m.evidence, boolean(s == source), s.String())
	}
}

func (m *instruments) send(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, label ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, label...)
}

// belief returns how far predictions are off, what the mirror may use, and what checks it.
func (a *Agent) belief() (meanError float64, capacityTokens int64, source engine.Evidence) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.evidence.meanError, a.capacityLocked(), a.evidence.source
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
