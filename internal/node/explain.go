package node

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// explain answers POST /debug/explain?route=/v1/completions&header=NAME:VALUE with what would happen to the request in the
// body, a chat when no route is given. It is sent to no engine, and nothing of it is kept.
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
			http.Error(w, fmt.Sprintf("header (%q) must be NAME:VALUE", field), http.StatusBadRequest)
			return
		}
		header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	e := n.ingress.ExplainRequest(r.Context(), cmp.Or(query.Get("route"), chatRoute), header, body)
	jsonOf(func() any { return e }).ServeHTTP(w, r)
}
