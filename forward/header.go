package forward

import (
	"maps"
	"net/http"
	"strings"
)

// requestHeaders are the fields of a client's request that reach the engine. Everything else stays at the ingress:
// credentials, hop-by-hop fields, and whatever an engine might take for an instruction (X-data-parallel-rank,
// X-Vllm-Priority).
var requestHeaders = []string{
	"Accept", "Content-Type", "User-Agent", "Traceparent", "Tracestate", "Anthropic-Version", "Anthropic-Beta",
	"Openai-Beta", "X-Session-Id",
}

// hopsHeader tells an agent that takes itself for an engine's client of another, or of itself, that the request went through
// one already.
const hopsHeader = "X-Kvmesh-Hops"

func engineHeader(h http.Header) http.Header {
	out := http.Header{}
	for _, k := range requestHeaders {
		if v := h.Values(k); len(v) > 0 {
			out[k] = v
		}
	}
	return out
}

// droppedHeaders are the fields of an engine's answer that belong to its connection, or that the ingress sets itself.
var droppedHeaders = []string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Alt-Svc",
	"X-Request-Id",
}

func answerHeader(h http.Header) http.Header {
	out := h.Clone()
	for _, k := range h.Values("Connection") {
		for name := range strings.SplitSeq(k, ",") {
			out.Del(strings.TrimSpace(name))
		}
	}
	for _, k := range droppedHeaders {
		out.Del(k)
	}
	return out
}

// answerTrailer returns the fields after an engine's answer that clients get; nil for none.
func answerTrailer(h http.Header) http.Header {
	if len(h) == 0 {
		return nil
	}
	out := answerHeader(h)
	maps.DeleteFunc(out, func(_ string, v []string) bool { return v == nil }) // declared, and did not come
	return out
}
