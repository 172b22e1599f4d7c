package node

import (
	"log/slog"
	"testing"
	"testing/fstest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func TestMemoryLimitIsTheLeastOfTheControlGroups(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	for _, tt := range []struct {
		name string
		root fstest.MapFS
		want int64
	}{
		{"no control groups", fstest.MapFS{}, 0},
		{"version 2, own", fstest.MapFS{
			"proc/self/cgroup":                    file("0::/kube/pod1\n"),
			"sys/fs/cgroup/kube/pod1/memory.max":  file("1000\n"),
			"sys/fs/cgroup/kube/memory.max":       file("max\n"),
			"sys/fs/cgroup/other/pod2/memory.max": file("10\n"),
		}, 1000},
		{"version 2, of the parent", fstest.MapFS{
			"proc/self/cgroup":                   file("0::/kube/pod1\n"),
			"sys/fs/cgroup/kube/pod1/memory.max": file("1000\n"),
			"sys/fs/cgroup/kube/memory.max":      file("500\n"),
		}, 500},
		{"version 2, in a container that sees the host's path", fstest.MapFS{
			"proc/self/cgroup":         file("0::/kube/pod1\n"),
			"sys/fs/cgroup/memory.max": file("700\n"),
		}, 700},
		{"version 2, none", fstest.MapFS{"proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/memory.max": file("max\n")}, 0},
		{"version 1", fstest.MapFS{
			"proc/self/cgroup": file("12:cpu,cpuacct:/a\n4:memory:/docker/x\n0::/\n"),
			"sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": file("2000\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes":          file("9223372036854771712\n"),
			"sys/fs/cgroup/cpu,cpuacct/a/memory.limit_in_bytes":   file("1\n"),
		}, 2000},
		{"not a number", fstest.MapFS{"proc/self/cgroup": file("0::/a\nnonsense\n"), "sys/fs/cgroup/a/memory.max": file("lots\n")}, 0},
	} {
		if got := MemoryLimit(tt.root); got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestShortOfMemoryFromTheHighMarkToTheLow(t *testing.T) {
	m := newMemory(1000, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	now := time.Unix(1, 0)
	for i, step := range []struct {
		needed int64
		cycles uint64
		short  bool
		gc     bool
	}{
		{700, 1, false, false},
		{751, 2, true, false},
		{740, 2, true, false}, // a second later
		{740, 2, true, false},
		{740, 2, true, true}, // nothing was collected for more than two
		{660, 3, true, false},
		{640, 4, false, false},
		{740, 4, false, false},
	} {
		now = now.Add(time.Second)
		if gc := m.note(step.needed, step.cycles, now); gc != step.gc || m.short.Load() != step.short {
			t.Errorf("step %d: short %v, collect %v; want %+v", i, m.short.Load(), gc, step)
		}
	}
}

func TestNeededMemoryIsThatOfTheProcess(t *testing.T) {
	if needed, _ := readMemory(); needed < 1<<20 || needed > 1<<30 {
		t.Errorf("a test needs %d bytes", needed)
	}
}
