package node

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics returns what the debug server shows under /metrics.
func (n *Node) Metrics() prometheus.Gatherer { return n.registry }

// Probe asks another agent for its load, as a decision does.
func (n *Node) Probe(ctx context.Context, agent string) error { return n.ingress.Probe(ctx, agent) }
