package main

import (
	"context"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/lab"
)

// testMesh is a mesh of processes on this machine, an engine and an agent for each name.
type testMesh struct {
	*lab.Mesh
	h   *harness
	ctx context.Context // of its processes
}

type agent = lab.Agent

// startMesh starts agents with the given names and waits until each of them knows all engines.
func startMesh(ctx context.Context, h *harness, names []string, engineFlags ...string) (*testMesh, error) {
	m, err := lab.Start(ctx, h.Harness, lab.Config{Names: names, EngineFlags: func(string) []string { return engineFlags }})
	return &testMesh{Mesh: m, h: h, ctx: ctx}, err
}
