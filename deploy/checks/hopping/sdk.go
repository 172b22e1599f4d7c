package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/deploy/checks/internal/lab"
	"github.com/kvmesh/kvmesh/internal/node"
)

// retried is what a client printed: deploy/checks/sdk/retry.go.
type retried struct {
	Statuses []int  `json:"statuses"`
	Text     string `json:"text"`
	Error    string `json:"error"`
}

// freeAfter is when the only slot of the mesh becomes free.
const freeAfter = 3 * time.Second

// checkSDK has the official clients, as they come, meet a mesh that is full for some seconds: they must be told when to try
// again, do so, and be served. Nothing may wait in this mesh, so that it is their retries that help.
func checkSDK(ctx context.Context, h *check.Harness) error {
	clients, err := sdkClients(ctx, h)
	if err != nil {
		return err
	}
	m, err := lab.Start(ctx, h, lab.Config{
		Names: []string{"a", "b"}, EngineOptions: "max-running=1",
		AgentFlags: func(string) []string { return []string{"--queue-limit", "0"} },
	})
	if err != nil {
		return err
	}
	defer m.Close()
	for _, name := range []string{"go", "node", "python"} {
		h.Say("sdk: %s", name)
		r, took, err := meetsFullMesh(ctx, m, clients[name])
		if err != nil {
			h.Figures.Broken("sdk_"+name, err)
			continue
		}
		refused := 0
		for _, status := range r.Statuses {
			if status == 429 {
				refused++
			}
		}
		h.Figures.AtLeast("sdk_"+name+"_retries", float64(refused), 1, "429s that the client got of a mesh that is full for %v: %v in %.1f s", freeAfter, r.Statuses, took.Seconds())
		served := slices.Contains(r.Statuses, 200) && r.Text != ""
		h.Figures.AtLeast("sdk_"+name+"_served", map[bool]float64{true: 1}[served], 1, "it was served in the end; %q", r.Error)
	}
	return nil
}

// meetsFullMesh runs a client while the slots of both engines are taken, and frees them after a while.
func meetsFullMesh(ctx context.Context, m *lab.Mesh, args []string) (r retried, took time.Duration, err error) {
	if err := m.AwaitRest(ctx, 10*time.Second); err != nil {
		return r, 0, err
	}
	busy, free := context.WithCancel(ctx)
	defer free()
	client := newClient()
	defer client.CloseIdleConnections()
	long := completion("a story without an end", 100_000)
	for range m.Agents {
		go func() { _, _ = long.send(busy, client, m.Agents[0].HTTP) }() // the mesh has as many slots as agents
	}
	err = check.Await(ctx, 10*time.Second, "both engines to be full", func() bool {
		s, err := m.Agents[0].Status(ctx)
		return err == nil && !slices.ContainsFunc(s.Engines, func(e node.EngineStatus) bool { return e.State != "full" })
	})
	if err != nil {
		return r, 0, err
	}
	defer time.AfterFunc(freeAfter, free).Stop()
	begin := time.Now()
	out, err := check.Command{Dir: filepath.Dir(args[0]), Args: append(args, "http://"+m.Agents[0].HTTP+"/v1")}.Run(ctx)
	if err != nil {
		return r, 0, err
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return r, 0, fmt.Errorf("read what the client printed: %w: %s", err, check.Tail(out, 200))
	}
	return r, time.Since(begin), nil
}

// sdkClients makes the clients ready and returns what runs each, but for the base URL.
func sdkClients(ctx context.Context, h *check.Harness) (map[string][]string, error) {
	binary, goErr := h.BuildGoSDK(ctx)
	npm, nodeErr := h.InstallNodeSDK(ctx)
	python, pythonErr := h.InstallPythonSDK(ctx)
	return map[string][]string{
		"go":     {binary, "-retry", "-base"},
		"node":   {"node", filepath.Join(npm, "retry.mjs")},
		"python": {python, filepath.Join(h.Root, "deploy", "checks", "sdk", "retry.py")},
	}, errors.Join(goErr, nodeErr, pythonErr)
}
