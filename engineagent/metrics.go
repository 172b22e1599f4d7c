package engineagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// maxMetricsBytes bounds a metrics page. vLLM with eight data-parallel ranks and all histograms takes some 600 KB.
const maxMetricsBytes = 8 << 20

// errNoLoad is returned for a page that is well formed and says nothing about load.
var errNoLoad = errors.New("no known load metric")

// reading is what an engine says about itself at one moment. Fields that it does not say are zero.
type reading struct {
	running, waiting int
	waitingTokens    int     // uncached prompt tokens of those that wait; 0 when it does not say
	kvUsage          float64 // 0 to 1, mean over ranks
	blockTokens      int
	capacityTokens   int64 // sum over ranks
	maxRunning       int
	ranks            int     // data-parallel ranks that it is of
	noPrefixCache    bool    // the engine says that it reuses nothing
	started          float64 // Unix seconds at which its process began

	hitTokens float64            // prompt tokens served from cache since the start
	hasHits   bool               // whether hitTokens was said
	counters  map[string]float64 // by metric name; each only grows during one life of the process
}

// askLoad asks an engine of the given kind how busy it is, and returns the kind that its answer shows.
func (a *Agent) askLoad(ctx context.Context, kind engine.Kind) (reading, engine.Kind, error) {
	switch kind {
	case engine.KindSGLang:
		return a.sglangLoad(ctx)
	case engine.KindTRTLLM:
		return a.trtllmLoad(ctx)
	case engine.KindOther:
		return a.otherLoad(ctx)
	default:
		return a.metricsPage(ctx, "/metrics")
	}
}

func (a *Agent) metricsPage(ctx context.Context, path string) (reading, engine.Kind, error) {
	page, err := a.get(ctx, path, maxMetricsBytes)
	if err != nil {
		return reading{}, "", err
	}
	return parseMetrics(page, a.cfg.Rank)
}

// parseMetrics reads what a page in the Prometheus text format says about one data-parallel rank, or about all when
// rank is "". It returns the software whose names are on the page, KindOther when there are none. The error is
// errNoLoad when the page says nothing about requests.
func parseMetrics(page []byte, rank string) (reading, engine.Kind, error) {
	wanted, kind := wantedLines(page)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(wanted))
	if err != nil {
		return reading{}, kind, fmt.Errorf("parse metrics: %w", err)
	}
	s := make(sums)
	r := reading{counters: make(map[string]float64)}
	ranks := make(map[string]bool)
	for name, family := range families {
		samples := slices.DeleteFunc(family.GetMetric(), func(m *dto.Metric) bool { return ofOther(m, rank) })
		s.addFamily(&r, name, samples)
		for _, m := range samples {
			ranks[rankOf(m)] = true
		}
	}
	delete(ranks, "")
	r.ranks = len(ranks)
	s.fill(&r)
	if len(s[fieldRunning])+len(s[fieldWaiting]) == 0 {
		return r, kind, errNoLoad
	}
	return r, kind, nil
}

// wantedLines keeps the samples that a reading is made of. The rest of a page is most of it, histograms above all, and
// neither its size nor a fault in it should cost anything here. Without the TYPE lines all samples parse as untyped.
func wantedLines(page []byte) (wanted []byte, kind engine.Kind) {
	kind = engine.KindOther
	for line := range bytes.Lines(page) {
		end := bytes.IndexAny(line, "{ \t\n")
		if end <= 0 || line[0] == '#' {
			continue
		}
		f, k := fieldOf(string(line[:end]))
		if f == fieldNone {
			continue
		}
		wanted = append(wanted, line...)
		if k != engine.KindOther {
			kind = k
		}
	}
	if n := len(wanted); n > 0 && wanted[n-1] != '\n' {
		wanted = append(wanted, '\n')
	}
	return wanted, kind
}

// ofOther reports whether a sample is about another rank than the one asked for. What has no rank is about all.
func ofOther(m *dto.Metric, rank string) bool {
	of := rankOf(m)
	return rank != "" && of != "" && of != rank
}

// rankOf returns the data-parallel rank that a sample is about; "" when it does not say.
func rankOf(m *dto.Metric) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == "engine" || l.GetName() == "dp_rank" {
			return l.GetValue()
		}
	}
	return ""
}

// sums collects the samples of a page: quantity, metric name, then the labels that tell ranks and kinds apart. Two
// names of one quantity are the same fact said twice; two ranks are two facts.
type sums map[field]map[string]map[string]float64

func (s sums) addFamily(r *reading, name string, samples []*dto.Metric) {
	f, _ := fieldOf(name)
	if f == fieldConfig {
		addConfig(r, samples)
		return
	}
	for _, m := range samples {
		f := f
		if f == fieldLabelled {
			f = labelledField(m.GetLabel())
		}
		if v := m.GetUntyped().GetValue(); v >= 0 && !math.IsInf(v, 0) { // false for NaN
			s.add(f, name, groupOf(m.GetLabel()), v)
		}
	}
	if f.counts() {
		r.counters[name] = total(s[f][name])
	}
}

// add keeps the largest value of a group: the samples of a group come from processes that share one scheduler.
func (s sums) add(f field, name, group string, v float64) {
	if s[f] == nil {
		s[f] = make(map[string]map[string]float64)
	}
	if s[f][name] == nil {
		s[f][name] = make(map[string]float64)
	}
	s[f][name][group] = max(s[f][name][group], v)
}

// groupOf names the scheduler and the kind that a sample is about: all its labels but those of the tensor, pipeline
// and expert ranks of one scheduler.
func groupOf(labels []*dto.LabelPair) string {
	var parts []string
	for _, l := range labels {
		switch l.GetName() {
		case "tp_rank", "pp_rank", "moe_ep_rank", "moe_dp_rank", "cp_rank":
		default:
			parts = append(parts, l.GetName()+"="+l.GetValue())
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ";")
}

func (s sums) fill(r *reading) {
	r.running = clampInt(s.sum(fieldRunning), 1<<20)
	r.waiting = clampInt(s.sum(fieldWaiting)+s.sum(fieldHeld), 1<<20)
	r.maxRunning = clampInt(s.sum(fieldMaxRunning), maxMaxRunning)
	r.kvUsage = min(s.mean(fieldUsage), 1)
	r.started = s.mean(fieldStarted)
	r.hitTokens, r.hasHits = s.sum(fieldHits)+s.sum(fieldLoaded), len(s[fieldHits]) > 0
	if len(s[fieldCached]) > 0 { // of each prompt once, and from every tier
		r.hitTokens, r.hasHits = s.sum(fieldCached), true
	}
	if n := s.mean(fieldBlockTokens); n > 0 {
		r.blockTokens = clampInt(n, maxBlockTokens)
	}
	if n := max(s.sum(fieldCapacity), s.sum(fieldBlocks)*float64(r.blockTokens)); n > 0 {
		r.capacityTokens = int64(min(n, maxCapacityTokens))
	}
}

// sum adds up the groups of a quantity; of several names the one that says most counts.
func (s sums) sum(f field) float64 { return greatest(s[f], total) }

// mean is the mean over the groups of a quantity.
func (s sums) mean(f field) float64 {
	return greatest(s[f], func(groups map[string]float64) float64 { return total(groups) / float64(len(groups)) })
}

func greatest(names map[string]map[string]float64, of func(map[string]float64) float64) (v float64) {
	for _, groups := range names {
		v = max(v, of(groups))
	}
	return v
}

func total(groups map[string]float64) (v float64) {
	for _, x := range sorted(groups) {
		v += x
	}
	return v
}

// sorted yields a map in the order of its keys, so that adding floats gives the same sum each time.
func sorted(m map[string]float64) iter.Seq2[string, float64] {
	return func(yield func(string, float64) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

// addConfig reads vllm:cache_config_info and sglang:cache_config_info: one sample a rank, with the settings of its cache
// as labels. Some vLLM models have several sizes of block, and with context parallelism a block holds more tokens than
// its size says: the size of the whole in tokens, where it is given, counts that in.
func addConfig(r *reading, samples []*dto.Metric) {
	capacity := make(map[string]float64)
	for _, m := range samples {
		c := make(map[string]string)
		for _, l := range m.GetLabel() {
			c[l.GetName()] = l.GetValue()
		}
		block := max(number(c["block_size"]), number(c["page_size"]))
		blocks := max(number(c["num_gpu_blocks"]), number(c["num_pages"]))
		tokens := number(c["kv_cache_size_tokens"])
		if tokens == 0 {
			tokens = block * blocks
		}
		r.blockTokens = max(r.blockTokens, clampInt(block, maxBlockTokens))
		r.noPrefixCache = r.noPrefixCache || c["enable_prefix_caching"] == "False"
		rank := c["engine"] + c["dp_rank"]
		capacity[rank] = max(capacity[rank], tokens)
	}
	r.capacityTokens = int64(min(total(capacity), maxCapacityTokens))
}

// number reads a label that may also be "None", "auto" or missing: those are 0.
func number(s string) float64 {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v > 0) || math.IsInf(v, 0) {
		return 0
	}
	return v
}

// Bounds of what an engine may say about itself: those of the wire form of engine.Engine.
const (
	maxBlockTokens    = 1 << 20
	maxCapacityTokens = 1 << 50
	maxMaxRunning     = 1 << 20
)

func clampInt(v float64, limit int) int { return int(min(max(v, 0), float64(limit))) }
