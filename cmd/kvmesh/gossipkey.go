package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/mesh"
)

type gossipKeyCmd struct {
	List   gossipKeyListCmd   `cmd:"" help:"Print the fingerprints of the gossip keys, and which agents have others."`
	Rotate gossipKeyRotateCmd `cmd:"" help:"Replace the gossip key of the whole mesh by a new one, without a gap: add it everywhere, use it, remove the old one. Agents that are away take it when they connect."`
}

type gossipKeyListCmd struct {
	agentFlags
}

// Run asks an agent for the fingerprints of its keys.
func (c *gossipKeyListCmd) Run(ctx context.Context) error {
	return c.client().gossipKeys(ctx, http.MethodGet, answerTimeout)
}

type gossipKeyRotateCmd struct {
	agentFlags
}

// rotateTimeout is longer than the agent tries.
const rotateTimeout = 90 * time.Second

// Run has an agent rotate the key of its mesh.
func (c *gossipKeyRotateCmd) Run(ctx context.Context) error {
	return c.client().gossipKeys(ctx, http.MethodPost, rotateTimeout)
}

func (s *debugClient) gossipKeys(ctx context.Context, method string, timeout time.Duration) error {
	body, err := s.ask(ctx, method, "/debug/gossip-key", timeout)
	if err != nil {
		return err
	}
	var keys mesh.GossipKeys
	if err := json.Unmarshal(body, &keys); err != nil {
		return fmt.Errorf("%s is no debug server of an agent: %w", s.Addr, err)
	}
	printGossipKeys(os.Stdout, keys)
	return nil
}

func printGossipKeys(out io.Writer, keys mesh.GossipKeys) {
	fmt.Fprintf(out, "gossip keys, version %d\n", keys.Version)
	for i, k := range keys.Keys {
		use := "decrypts"
		if i == 0 {
			use = "encrypts"
		}
		fmt.Fprintf(out, "  %s %s\n", k, use)
	}
	if len(keys.Behind) > 0 {
		fmt.Fprintf(out, "without them: %s\n", strings.Join(keys.Behind, ", "))
	}
}
