package simengine

import (
	"crypto/subtle"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
)

// routes are those of the kind; anything else is FastAPI's 404.
func (e *Engine) routes() *http.ServeMux {
	m := http.NewServeMux()
	m.HandleFunc("POST /v1/chat/completions", e.generating(e.chat))
	m.HandleFunc("POST /v1/completions", e.generating(e.completions))
	m.HandleFunc("POST /v1/responses", e.generating(e.responses))
	m.HandleFunc("GET /v1/models", e.models)
	m.HandleFunc("GET /health", e.health)
	m.HandleFunc("GET /sim/stats", e.simStats)
	m.HandleFunc("POST /sim/faults", e.simFaults)
	m.HandleFunc("POST /sim/resident", e.body(e.simResident))
	m.HandleFunc("GET /sim/blocks", e.simBlocks)
	m.HandleFunc("POST /sim/restart", func(http.ResponseWriter, *http.Request) { e.Restart() })
	m.HandleFunc("/", e.notFound)
	switch e.cfg.Kind {
	case KindVLLM:
		e.vllmRoutes(m)
	case KindSGLang:
		e.sglangRoutes(m)
	case KindTRTLLM:
		e.trtllmRoutes(m)
	case KindOther:
		e.llamaRoutes(m)
	}
	return m
}

func (e *Engine) vllmRoutes(m *http.ServeMux) {
	m.HandleFunc("POST /v1/messages", e.generating(e.messages))
	m.HandleFunc("POST /v1/messages/count_tokens", e.body(e.countTokens))
	m.HandleFunc("POST /v1/chat/completions/render", e.body(e.renderChat))
	m.HandleFunc("POST /tokenize", e.body(e.tokenize))
	m.HandleFunc("POST /detokenize", e.body(e.detokenize))
	m.HandleFunc("GET /metrics", e.vllmMetrics)
	m.HandleFunc("GET /version", e.version)
	m.HandleFunc("GET /openapi.json", e.openAPI)
	m.HandleFunc("GET /kv_event_sources", e.eventSources)
	m.HandleFunc("POST /reset_prefix_cache", e.resetCache)
}

func (e *Engine) sglangRoutes(m *http.ServeMux) {
	m.HandleFunc("POST /v1/messages", e.generating(e.messages))
	m.HandleFunc("POST /v1/messages/count_tokens", e.body(e.countTokens))
	for _, prefix := range []string{"", "/v1"} {
		m.HandleFunc("POST "+prefix+"/tokenize", e.body(e.tokenize))
		m.HandleFunc("POST "+prefix+"/detokenize", e.body(e.detokenize))
	}
	m.HandleFunc("GET /metrics", e.sglangMetrics)
	m.HandleFunc("GET /server_info", e.serverInfo)
	m.HandleFunc("GET /get_server_info", e.serverInfo)
	m.HandleFunc("GET /v1/loads", e.loads)
	m.HandleFunc("GET /openapi.json", e.openAPI)
	m.HandleFunc("POST /flush_cache", e.resetCache)
}

func (e *Engine) trtllmRoutes(m *http.ServeMux) {
	m.HandleFunc("GET /prometheus/metrics", e.trtllmMetrics)
	m.HandleFunc("GET /version", e.version)
	m.HandleFunc("POST /kv_cache_events", e.drainEvents)
}

// serveHTTP applies the faults that hit every route and the API key, then routes.
func (e *Engine) serveHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/sim/") {
		e.mux.ServeHTTP(w, r)
		return
	}
	f := e.currentFaults()
	switch {
	case f.Refuse:
		e.countFault()
		reset(w)
	case f.Hang:
		e.countFault()
		// net/http sees the connection end only once the body is read, however far that goes.
		_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, e.cfg.MaxBodyBytes))
		_ = e.life.Load().wait(w, r, nil) // nothing is produced
	case f.Unavailable:
		e.countFault()
		e.fail(w, r, &apiError{status: http.StatusServiceUnavailable, message: "engine is not available"})
	case !e.authorized(r) && e.cfg.Kind == KindOther:
		e.fail(w, r, &apiError{status: http.StatusUnauthorized, message: "Invalid API Key"})
	case !e.authorized(r):
		writeJSON(w, http.StatusUnauthorized, map[string]string{"error": "Unauthorized"})
	default:
		e.mux.ServeHTTP(w, r)
	}
}

// authorized: vLLM guards only its API routes, SGLang all but health and metrics, llama.cpp all but health and models.
func (e *Engine) authorized(r *http.Request) bool {
	if e.cfg.APIKey == "" {
		return true
	}
	path := r.URL.Path
	guarded := strings.HasPrefix(path, "/v1/")
	switch e.cfg.Kind {
	case KindSGLang:
		guarded = !strings.HasPrefix(path, "/health") && !strings.HasPrefix(path, "/metrics")
	case KindOther:
		guarded = path != "/health" && path != "/v1/models"
	}
	want, got := "Bearer "+e.cfg.APIKey, r.Header.Get("Authorization")
	return !guarded || subtle.ConstantTimeCompare([]byte(want), []byte(got)) == 1
}

// bodyHandler answers one request whose body was read; an *apiError becomes an error body of the kind.
type bodyHandler func(w http.ResponseWriter, r *http.Request, body []byte) error

// body reads the whole body before h runs, as FastAPI does; only then does net/http notice that a client goes away.
func (e *Engine) body(h bodyHandler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, e.cfg.MaxBodyBytes))
		_, large := errors.AsType[*http.MaxBytesError](err)
		switch {
		case large:
			err = &apiError{status: http.StatusRequestEntityTooLarge, message: "body is too large"}
		case err == nil && !e.takes(r):
			err = badForm("value_error", "", "Unsupported Media Type: Only 'application/json' is allowed")
		case err == nil:
			err = h(w, r, body)
		}
		if err != nil {
			e.fail(w, r, err)
		}
	}
}

// takes reports whether the kind takes a body of the type that the client says it has.
func (e *Engine) takes(r *http.Request) bool {
	if e.cfg.Kind == KindTRTLLM || e.cfg.Kind == KindOther || strings.HasPrefix(r.URL.Path, "/sim/") {
		return true
	}
	t, _, _ := strings.Cut(strings.ToLower(r.Header.Get("Content-Type")), ";")
	return strings.TrimSpace(t) == "application/json"
}

// generating adds the faults that hit requests for generation.
func (e *Engine) generating(h bodyHandler) http.HandlerFunc {
	return e.body(func(w http.ResponseWriter, r *http.Request, body []byte) error {
		f := e.currentFaults()
		switch {
		case f.TooMany:
			e.countFault()
			return &apiError{status: http.StatusTooManyRequests, message: "too many requests"}
		case f.Stall:
			e.countFault()
			return e.life.Load().wait(w, r, nil) // nothing is produced
		case e.picked():
			e.countFault()
			status := f.ErrorStatus
			if status == 0 {
				status = http.StatusInternalServerError
			}
			return &apiError{status: status, message: "injected failure"}
		}
		return h(w, r, body)
	})
}

// fail writes err, unless the client has gone or the answer has begun.
func (e *Engine) fail(w http.ResponseWriter, r *http.Request, err error) {
	if apiErr, ok := errors.AsType[*apiError](err); ok {
		writeJSON(w, apiErr.status, errorBody(e.cfg.Kind, r.URL.Path, apiErr))
	}
}

// health answers GET /health while the engine is well.
func (e *Engine) health(w http.ResponseWriter, _ *http.Request) {
	if e.cfg.Kind == KindOther {
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	}
}

// notFound answers what no route takes, and the other method of what one does.
func (e *Engine) notFound(w http.ResponseWriter, r *http.Request) {
	other := r.Clone(r.Context())
	if other.Method = http.MethodPost; r.Method == http.MethodPost {
		other.Method = http.MethodGet
	}
	_, pattern := e.mux.Handler(other)
	switch {
	case e.cfg.Kind == KindOther:
		e.fail(w, r, &apiError{status: http.StatusNotFound, message: "File Not Found"})
		return
	case pattern != "/":
		writeJSON(w, http.StatusMethodNotAllowed, map[string]string{"detail": "Method Not Allowed"})
		return
	}
	writeJSON(w, http.StatusNotFound, map[string]string{"detail": "Not Found"})
}

// reset ends the connection without an answer, by a TCP reset where there is TCP.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // HTTP/2: net/http resets the stream
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // it fails only where the connection is gone already
	}
	conn.Close()
}
