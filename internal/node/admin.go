package node

import (
	"embed"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

//go:embed page
var page embed.FS

// ingressMux serves requests, and the two probes of an orchestrator that can reach nothing else.
func (n *Node) ingressMux() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", n.ingress)
	mux.HandleFunc("GET /kvmesh/healthz", n.healthz)
	mux.HandleFunc("GET /kvmesh/readyz", n.readyz)
	return n.sendAway(mux)
}

// sendAway has clients of a draining agent close their connections, each with its next answer. Closing an idle one from here
// meets, now and then, a request that its client just sends, and few clients send that again.
func (n *Node) sendAway(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// debugMux serves everything there is to look at.
func (n *Node) debugMux() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", n.healthz)
	mux.HandleFunc("GET /readyz", n.readyz)
	mux.Handle("GET /metrics", n.guard(promhttp.HandlerFor(n.registry, promhttp.HandlerOpts{})))
	mux.Handle("GET /debug/mesh.json", n.guard(jsonOf(func() any { return n.Status() })))
	mux.Handle("POST /debug/residency", n.guard(http.HandlerFunc(n.residency)))
	mux.Handle("POST /debug/explain", n.guard(http.HandlerFunc(n.explain)))
	mux.Handle("GET /debug/gossip-key", n.guard(http.HandlerFunc(n.listGossipKeys)))
	mux.Handle("POST /debug/gossip-key", n.guard(http.NewCrossOriginProtection().Handler(http.HandlerFunc(n.rotateGossipKey))))
	n.handleAgreed(mux)
	mux.Handle("GET /debug/decisions.json", n.guard(jsonOf(func() any { return n.recorder.Events() })))
	mux.Handle("GET /debug/", n.guard(http.StripPrefix("/debug/", http.FileServerFS(subFS(page, "page")))))
	mux.Handle("GET /{$}", http.RedirectHandler("/debug/", http.StatusFound))
	return mux
}

// guard asks for the bearer token, where there is one. A browser can send it as the password of basic auth.
func (n *Node) guard(h http.Handler) http.Handler {
	if n.config.DebugToken == "" {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if _, password, ok := r.BasicAuth(); ok {
			token = password
		}
		if !tokenMatches(token, n.config.DebugToken) {
			w.Header().Set("WWW-Authenticate", `Basic realm="kvmesh", charset="UTF-8"`)
			http.Error(w, "the debug server needs its token", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func jsonOf(value func() any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(value())
	})
}

// healthz says that the process serves; readyz whether to send it requests.
func (n *Node) healthz(w http.ResponseWriter, _ *http.Request) { answer(w, true, "ok", "") }

func (n *Node) readyz(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("engine") != "" {
		answer(w, n.EngineReady(), "ready", "an engine beside this agent is down, or there is none")
		return
	}
	why := "no engine of the mesh can take a request"
	switch {
	case n.draining.Load():
		why = "the agent drains"
	case !n.mesh.Settled():
		why = "the mesh has not settled"
	case !n.agreement.ready(time.Now()):
		why = "the agreed state of the mesh is not here yet"
	}
	answer(w, n.Ready(), "ready", why)
}

func answer(w http.ResponseWriter, ok bool, good, bad string) {
	if !ok {
		http.Error(w, bad, http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte(good + "\n"))
}

func (n *Node) registerMetrics() {
	f := promauto.With(n.registry)
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kvmesh_node_peer_streams",
		Help: "Requests of peers being served on the engines beside this agent.",
	}, func() float64 { return float64(n.serving.Load()) })
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kvmesh_node_agreed_index",
		Help: "Raft index of the agreed state here. Worry when it stays behind that of other agents.",
	}, func() float64 { return float64(n.agreement.group.State().Index) })
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kvmesh_node_agreed_quorum",
		Help: "1 while a leader of the agreed state is known here. Worry at 0 once there was one: policy and cordons cannot change.",
	}, func() float64 {
		if n.agreement.group.Status().Leader != "" {
			return 1
		}
		return 0
	})
	n.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		&digestCollector{n})
}
