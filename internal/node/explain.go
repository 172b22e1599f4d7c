package node

import (
	"io"
	"net/http"
	"strings"
)

// explain answers POST /debug/explain?route=/v1/chat/completions&header=NAME:VALUE with what would happen to the request in
// the body. It is sent to no engine, and nothing of it is kept.
func (n *Node) explain(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(n.config.Forward.MaxBody)))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	query, header := r.URL.Query(), http.Header{}
	for _, field := range query["header"] {
		name, value, ok := strings.Cut(field, ":")
		if !ok {
			http.Error(w, "a header is NAME:VALUE", http.StatusBadRequest)
			return
		}
		header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	e := n.ingress.ExplainRequest(r.Context(), query.Get("route"), header, body)
	jsonOf(func() any { return e }).ServeHTTP(w, r)
}
