package lab

import (
	"bytes"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics are the metrics of one agent at one moment, by name.
type Metrics map[string]*dto.MetricFamily

func readMetrics(page []byte) (Metrics, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(bytes.NewReader(page))
}

// Sum adds up a counter or gauge over all series that have the given labels, each written NAME=VALUE; 0 when there is none.
// Of a histogram it is how many values were observed.
func (m Metrics) Sum(name string, labels ...string) float64 {
	f := m[name]
	if f == nil {
		return 0
	}
	sum := 0.0
	for _, x := range f.GetMetric() {
		if has(x, labels) {
			sum += x.GetCounter().GetValue() + x.GetGauge().GetValue() + float64(x.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// By adds up a counter or gauge by the values of one label, leaving out what is 0.
func (m Metrics) By(name, label string) map[string]float64 {
	out := map[string]float64{}
	for _, x := range m[name].GetMetric() {
		for _, l := range x.GetLabel() {
			if n := x.GetCounter().GetValue() + x.GetGauge().GetValue(); n != 0 && l.GetName() == label {
				out[l.GetValue()] += n
			}
		}
	}
	return out
}

func has(x *dto.Metric, labels []string) bool {
	for _, want := range labels {
		name, value, _ := strings.Cut(want, "=")
		found := false
		for _, l := range x.GetLabel() {
			found = found || l.GetName() == name && l.GetValue() == value
		}
		if !found {
			return false
		}
	}
	return true
}

// Total adds up what was observed by a histogram, over all series.
func (m Metrics) Total(name string) float64 {
	sum := 0.0
	for _, x := range m[name].GetMetric() {
		sum += x.GetHistogram().GetSampleSum()
	}
	return sum
}
