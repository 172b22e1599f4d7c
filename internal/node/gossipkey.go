package node

import (
	"context"
	"net/http"
	"time"
)

// rotateTimeout bounds one rotation of gossip keys: gossip needs up to half a minute to hold an agent that has vanished for
// dead, and until then it is waited for.
const rotateTimeout = time.Minute

// compareTimeout bounds the comparison of keys with all peers.
const compareTimeout = 3 * time.Second

// listGossipKeys answers GET /debug/gossip-key with the fingerprints of the keys, and who has others.
func (n *Node) listGossipKeys(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), compareTimeout)
	defer cancel()
	keys := n.mesh.CompareGossipKeys(ctx)
	jsonOf(func() any { return keys }).ServeHTTP(w, r)
}

// rotateGossipKey answers POST /debug/gossip-key: it rotates the gossip key of the whole mesh and returns when that is done,
// or with who has not done it. A rotation goes on when its caller goes away, since half of one helps nobody.
func (n *Node) rotateGossipKey(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), rotateTimeout)
	defer cancel()
	if err := n.mesh.RotateGossipKey(ctx); err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	jsonOf(func() any { return n.mesh.GossipKeys() }).ServeHTTP(w, r)
}
