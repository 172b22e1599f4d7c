package node

import (
	"context"
	"io/fs"
	"log/slog"
	"path"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// New requests are refused while the process needs more than highMark of its memory limit, until it needs less than lowMark.
// Above the first the collector would soon run all the time to stay within the limit, and what was taken in still grows: a
// body that is on its way, answers that clients do not read.
const (
	highMark = 0.75
	lowMark  = 0.65
)

const (
	memoryPeriod  = 100 * time.Millisecond // between two looks: what may come in meanwhile is bounded by the byte budget of bodies
	collectPeriod = 2 * time.Second        // without a collection while requests are refused; then one is made
)

// memory watches what the process needs against a limit. It belongs to the process: a process with several nodes has one
// figure for all.
type memory struct {
	limit int64 // bytes; 0 for none
	log   *slog.Logger
	short atomic.Bool

	cycles    uint64 // of the collector so far
	collected time.Time
}

func newMemory(limit int64, log *slog.Logger, reg prometheus.Registerer) *memory {
	f := promauto.With(reg)
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kvmesh_node_memory_needed_bytes",
		Help: "Memory in use, without what the collector can free. Worry above two thirds of the limit: at three quarters new requests are refused.",
	}, func() float64 {
		needed, _ := readMemory()
		return float64(needed)
	})
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kvmesh_node_memory_limit_bytes",
		Help: "Memory that the process may use; 0 when it has no limit.",
	}, func() float64 { return float64(limit) })
	return &memory{limit: limit, log: log}
}

// run looks until ctx ends, if there is a limit.
func (m *memory) run(ctx context.Context) error {
	if m.limit == 0 {
		return nil
	}
	tick := time.NewTicker(memoryPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			needed, cycles := readMemory()
			if m.note(needed, cycles, now) {
				runtime.GC()
			}
		}
	}
}

// note takes in one look. It reports whether the collector is to run: what is needed is known only from its last run, and
// without new requests the next could be minutes away.
func (m *memory) note(needed int64, cycles uint64, now time.Time) (collect bool) {
	if cycles != m.cycles {
		m.cycles, m.collected = cycles, now
	}
	share := float64(needed) / float64(m.limit)
	switch was := m.short.Load(); {
	case !was && share > highMark:
		m.short.Store(true)
		m.log.Warn("short of memory: new requests are refused", "needed_bytes", needed, "limit_bytes", m.limit)
	case was && share < lowMark:
		m.short.Store(false)
		m.log.Info("memory suffices again", "needed_bytes", needed, "limit_bytes", m.limit)
	}
	return m.short.Load() && now.Sub(m.collected) > collectPeriod
}

// readMemory returns the bytes in use: heap that was live at the last collection, and all that is not heap. The pages that
// the runtime holds would say less: up to half of them is what the collector has not looked at yet.
func readMemory() (needed int64, cycles uint64) {
	s := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"},
		{Name: "/gc/cycles/total:gc-cycles"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(s)
	needed = int64(s[0].Value.Uint64() + s[2].Value.Uint64())
	for _, heap := range s[3:] {
		needed -= int64(heap.Value.Uint64())
	}
	return needed, s[1].Value.Uint64()
}

// MemoryLimit returns the least memory limit of the control groups that the process is in, version 2 or 1, in bytes; 0 when
// there is none. Root is the file system's root.
func MemoryLimit(root fs.FS) int64 {
	b, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0
	}
	var least int64
	for line := range strings.Lines(string(b)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3) // hierarchy, controllers, path
		if len(fields) < 3 {
			continue
		}
		base, file := "sys/fs/cgroup", "memory.max"
		if fields[1] == "memory" {
			base, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if fields[1] != "" {
			continue
		}
		// In a container the path may be the host's, and what is mounted the container's own: then only the last look finds it.
		for dir := path.Clean("/" + fields[2]); ; dir = path.Dir(dir) {
			if limit := readLimit(root, path.Join(base, dir, file)); limit > 0 && (least == 0 || limit < least) {
				least = limit
			}
			if dir == "/" {
				break
			}
		}
	}
	return least
}

// readLimit reads one limit; 0 for none: version 2 says max, version 1 a number beyond any memory.
func readLimit(root fs.FS, name string) int64 {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return 0
	}
	limit, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil || limit >= 1<<60 {
		return 0
	}
	return limit
}
