package forward

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// modelLabels bounds the values of the model label: clients choose model names, and each value is a time series.
const modelLabels = 64

type metrics struct {
	requests  *prometheus.CounterVec
	refused   *prometheus.CounterVec
	attempts  *prometheus.CounterVec
	retries   *prometheus.CounterVec
	decisions *prometheus.CounterVec
	probes    *prometheus.CounterVec
	continued *prometheus.CounterVec
	doubts    *prometheus.CounterVec
	overruled prometheus.Counter
	ttft      *prometheus.HistogramVec
	decision  prometheus.Histogram
	overlap   prometheus.Histogram
	promptTok *prometheus.CounterVec
	cachedTok *prometheus.CounterVec
	inFlight  prometheus.Gauge
	queueWait *prometheus.HistogramVec

	retryBudget *prometheus.CounterVec
	hedges      *prometheus.CounterVec

	mu     sync.Mutex
	models map[string]bool
}

func newMetrics(reg prometheus.Registerer, g *Ingress) *metrics {
	f := promauto.With(reg)
	const ns, sub = "kvmesh", "forward"
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help}
	}
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help, Buckets: buckets}
	}
	reg.MustRegister(newWaitingByClass(g))
	f.NewGaugeFunc(gauge("body_bytes", "Bytes of request bodies held, of clients and of peers. Worry near the byte budget."),
		func() float64 { return float64(g.bodies.held.Load()) })
	return &metrics{
		models: map[string]bool{},
		requests: counter("requests_total", "Requests taken in by this agent, by how they ended. "+
			"Worry about any outcome other than ok, canceled, bad_request and engine_refused.", "model", "outcome"),
		refused: counter("refused_total", "Requests refused before any engine saw them, by reason. "+
			"Worry about those that begin with queue: the mesh is too small for its load.", "reason"),
		attempts: counter("attempts_total", "Engines tried for requests of this agent, by result. "+
			"Worry when bounces or missed accepts are more than a few in a hundred.", "result"),
		retries: counter("retries_total", "Requests sent to one more engine after one that had them failed, by class of the policy. "+
			"Worry when they are more than a few in a hundred: engines fail.", "class"),
		retryBudget: counter("retry_budget_exhausted_total", "Retries not made because their class had as many as its budget allows. "+
			"Worry about any: more engines fail than the others can make up for.", "class"),
		hedges: counter("hedges_total", "Second engines asked beside a late first one, by class of the policy and result: won, lost, "+
			"failed, canceled; and those not asked: budget (the class had as many as it may), none (no engine was free). "+
			"Worry when few are won: they are mostly wasted. When many lack budget, more than a few engines are late.", "class", "result"),
		decisions: counter("decisions_total", "Decisions by class of the policy and reason: prefix, load, cold, short, hash, only. "+
			"Worry when prefix falls: prompts have ceased to share a beginning, or digests do not arrive.", "class", "reason"),
		probes: counter("probes_total", "Probes sent, by result: answered, late (answered, but not waited for), missed.", "result"),
		continued: counter("continued_total", "Streams that broke, of classes that want them continued, by cause and result: continued by another "+
			"engine, completed (only the end was missing), impossible, failed. Worry about failed: no engine took over.", "cause", "result"),
		doubts: counter("doubts_total", "What peers told and cannot be true, so that it counts as unknown. "+
			"Worry about any: an agent is broken, lies, or is of another version. Status and the log name it.", "what"),
		overruled: f.NewCounter(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "ejections_overruled_total",
			Help: "Decisions for an engine that is ejected, because more than half of those that could serve are. " +
				"Worry when it grows: what ails the engines ails them all.",
		}),
		ttft: f.NewHistogramVec(histogram("ttft_seconds", "Time from a streamed request's arrival to the first content sent to the client.",
			prometheus.ExponentialBuckets(0.005, 2, 15)), []string{"model"}),
		decision: f.NewHistogram(histogram("decision_duration_seconds", "Time for keys, overlap and choice, without probes. "+
			"Worry above a millisecond.", prometheus.ExponentialBuckets(0.00001, 2, 14))),
		overlap: f.NewHistogram(histogram("overlap_tokens", "Estimated overlap with the chosen engine.",
			prometheus.ExponentialBuckets(64, 2, 13))),
		promptTok: counter("prompt_tokens_total", "Prompt tokens of requests whose engine reported cached tokens, by class of the policy.", "class"),
		cachedTok: counter("cached_tokens_total", "Prompt tokens served from cache, as engines report, by class of the policy. "+
			"Its share of prompt_tokens_total is the hit rate. Worry when it falls to nearly nothing: the class's prompts share no beginning.", "class"),
		queueWait: f.NewHistogramVec(histogram("queue_wait_seconds", "Time that requests which were served waited here because every engine was full, by class of the policy. "+
			"Worry when it is more than the class can bear.", prometheus.ExponentialBuckets(0.001, 2, 18)), []string{"class"}),
		inFlight: f.NewGauge(gauge("in_flight_requests", "Requests taken in by this agent and not ended yet.")),
	}
}

// model returns the label for a model: its name while there are few, then "other".
func (m *metrics) model(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.models[name] {
		if len(m.models) >= modelLabels {
			return "other"
		}
		m.models[name] = true
	}
	return name
}

// forgetClass drops the series of a class, so that policies that change do not leave ever more of them.
func (m *metrics) forgetClass(name string) {
	for _, v := range []*prometheus.CounterVec{m.decisions, m.promptTok, m.cachedTok, m.retries, m.retryBudget, m.hedges} {
		v.DeletePartialMatch(prometheus.Labels{"class": name})
	}
	m.queueWait.DeletePartialMatch(prometheus.Labels{"class": name})
}

// observe counts one ended request.
func (m *metrics) observe(e *Event) {
	model := "none"
	if e.Outcome != outcomeBadRequest && e.Model != "" {
		model = m.model(e.Model)
	}
	m.requests.WithLabelValues(model, e.Outcome).Inc()
	for _, a := range e.Attempts {
		m.attempts.WithLabelValues(a.Result).Inc()
	}
	if e.TTFT > 0 {
		m.ttft.WithLabelValues(model).Observe(e.TTFT.Seconds())
	}
	if e.Engine != "" && e.PromptBytes > 0 {
		m.decisions.WithLabelValues(e.Class, e.Reason).Inc()
		m.decision.Observe(e.Decision.Seconds())
		m.overlap.Observe(float64(e.OverlapTokens))
	}
	if e.CachedTokens != nil {
		m.promptTok.WithLabelValues(e.Class).Add(float64(e.PromptTokens))
		m.cachedTok.WithLabelValues(e.Class).Add(float64(*e.CachedTokens))
	}
}
