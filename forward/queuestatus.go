package forward

import (
	"cmp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// QueueStatus is what waits for one model because all of its engines are full.
type QueueStatus struct {
	Model     string         `json:"model"`
	Waiting   int            `json:"waiting"`
	Classes   map[string]int `json:"classes"` // of those that wait, by class of the policy
	Keys      int            `json:"keys"`    // API keys that they came with, each priority for itself
	Bytes     int64          `json:"bytes"`   // of their bodies
	Oldest    float64        `json:"oldest_s"`
	DrainRate float64        `json:"drained_per_s"` // requests a second that got an engine; negative while not known
}

// Queues returns the queues in which requests wait, in order of model. It is safe for concurrent use.
func (g *Ingress) Queues() []QueueStatus { return g.room.status(time.Now()) }

func (r *waitRoom) status(now time.Time) []QueueStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	byModel := map[string]*QueueStatus{}
	keys := map[string]map[tenant]bool{}
	for who, s := range r.all.shares {
		for e := s.places.Front(); e != nil; e = e.Next() {
			p := e.Value.(*place)
			q := byModel[p.model]
			if q == nil {
				q = &QueueStatus{Model: p.model, Classes: map[string]int{}, DrainRate: -1}
				byModel[p.model], keys[p.model] = q, map[tenant]bool{}
				p.queue.drain.advance(now, true)
				if rate, known := p.queue.drain.perSecond(); known {
					q.DrainRate = rate
				}
			}
			keys[p.model][who] = true
			q.Waiting++
			q.Classes[p.class]++
			q.Bytes += p.bytes
			q.Oldest = max(q.Oldest, now.Sub(p.entered).Seconds())
		}
	}
	out := make([]QueueStatus, 0, len(byModel))
	for model, q := range byModel {
		q.Keys = len(keys[model])
		out = append(out, *q)
	}
	slices.SortFunc(out, func(a, b QueueStatus) int { return cmp.Compare(a.Model, b.Model) })
	return out
}

// byClass returns how many requests of each class wait.
func (r *waitRoom) byClass() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := map[string]int{}
	for name, c := range r.classes {
		n[name] = c.requests
	}
	return n
}

// waitingByClass is the gauge of waiting requests. It is read when it is asked for, so that no series of a class that is gone
// stays behind.
type waitingByClass struct {
	g    *Ingress
	desc *prometheus.Desc
}

func newWaitingByClass(g *Ingress) *waitingByClass {
	return &waitingByClass{g, prometheus.NewDesc("kvmesh_forward_waiting_requests",
		"Requests held here because every engine of their model is full, by class of the policy. "+
			"Worry when it stays above zero: the mesh is too small for its load.", []string{"class"}, nil)}
}

// Describe implements prometheus.Collector.
func (w *waitingByClass) Describe(to chan<- *prometheus.Desc) { to <- w.desc }

// Collect implements prometheus.Collector.
func (w *waitingByClass) Collect(to chan<- prometheus.Metric) {
	waiting := w.g.room.byClass()
	for _, c := range w.g.Classes() {
		waiting[c.Name] += 0
	}
	for name, n := range waiting {
		to <- prometheus.MustNewConstMetric(w.desc, prometheus.GaugeValue, float64(n), name)
	}
}
