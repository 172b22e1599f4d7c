package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/lab"
)

// clockTicks is Linux's unit of CPU times in /proc: 100 a second on all architectures that Go has.
const clockTicks = 100

// agentsCPU returns what the agents of a mesh have used so far, user and system.
func agentsCPU(m *lab.Mesh) (time.Duration, error) {
	var sum time.Duration
	for _, a := range m.Agents {
		cpu, err := processCPU(a.Process.PID())
		if err != nil {
			return 0, err
		}
		sum += cpu
	}
	return sum, nil
}

func processCPU(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name, in parentheses, may have spaces. After it come the state and nine more fields, then user and system.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has only %d fields", pid, len(fields))
	}
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / clockTicks, nil
}

// cpuSpent returns what the agents use while f runs, less what they use in that time when nothing happens.
func cpuSpent(m *lab.Mesh, idle float64, f func() error) (time.Duration, error) {
	before, err := agentsCPU(m)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := f(); err != nil {
		return 0, err
	}
	took := time.Since(start)
	after, err := agentsCPU(m)
	return after - before - time.Duration(idle*float64(took)), err
}

// idleCPU returns the share of a core that the agents use when nothing happens.
func idleCPU(m *lab.Mesh, d time.Duration) (float64, error) {
	cpu, err := cpuSpent(m, 0, func() error { time.Sleep(d); return nil })
	return cpu.Seconds() / d.Seconds(), err
}
