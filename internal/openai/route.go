package openai

import (
	"net/http"
	"strings"
)

// Route is one of the API routes that kvmesh carries. The zero Route is none of them.
type Route uint8

// The routes. Everything else an engine serves, its admin routes above all, is not for clients.
const (
	RouteChat Route = iota + 1
	RouteCompletions
	RouteResponses
	RouteMessages
	RouteCountTokens
	RouteEmbeddings
	RouteRerank
	RouteScore
	RouteModels
	RouteResponseByID
)

// responsesByID is the path before the id of a stored response.
const responsesByID = "/v1/responses/"

// maxResponseID bounds the id in a path: engines make ids of about 40 bytes.
const maxResponseID = 128

// String returns a short name for logs and metric labels.
func (r Route) String() string {
	switch r {
	case RouteChat:
		return "chat"
	case RouteCompletions:
		return "completions"
	case RouteResponses:
		return "responses"
	case RouteMessages:
		return "messages"
	case RouteCountTokens:
		return "count_tokens"
	case RouteEmbeddings:
		return "embeddings"
	case RouteRerank:
		return "rerank"
	case RouteScore:
		return "score"
	case RouteModels:
		return "models"
	case RouteResponseByID:
		return "response_by_id"
	}
	return "none"
}

// RouteFor returns the route of a request by its method and its path, without query. A path that is not on the list
// gives 404 and the zero Route; the wrong method on a known path gives 405 and the Route, so that the error can be
// written in that route's shape. The error is nil or complete.
func RouteFor(method, path string) (Route, *Error) {
	route, want := routeOf(path)
	switch {
	case route == 0:
		return 0, &Error{
			Status: http.StatusNotFound, Type: typeInvalid, Reason: ReasonRoute,
			Message: "no such route; a mesh takes some of the OpenAI and the Anthropic API, such as /v1/chat/completions",
		}
	case method != want:
		return route, &Error{
			Status: http.StatusMethodNotAllowed, Type: typeInvalid,
			Message: "this route takes " + want + " only", Reason: ReasonMethod, Allow: want,
		}
	}
	return route, nil
}

func routeOf(path string) (Route, string) {
	switch path {
	case "/v1/chat/completions":
		return RouteChat, http.MethodPost
	case "/v1/completions":
		return RouteCompletions, http.MethodPost
	case "/v1/responses":
		return RouteResponses, http.MethodPost
	case "/v1/messages":
		return RouteMessages, http.MethodPost
	case "/v1/messages/count_tokens":
		return RouteCountTokens, http.MethodPost
	case "/v1/embeddings":
		return RouteEmbeddings, http.MethodPost
	case "/v1/rerank":
		return RouteRerank, http.MethodPost
	case "/v1/score":
		return RouteScore, http.MethodPost
	case "/v1/models":
		return RouteModels, http.MethodGet
	}
	if _, ok := ResponseID(path); ok {
		return RouteResponseByID, http.MethodGet
	}
	return 0, ""
}

// ResponseID returns the id that the path of RouteResponseByID names: letters, digits, '_' and '-', at most 128 of them,
// so that it can be used as a key and cannot lead out of the route.
func ResponseID(path string) (string, bool) {
	id, ok := strings.CutPrefix(path, responsesByID)
	if !ok || id == "" || len(id) > maxResponseID {
		return "", false
	}
	for _, c := range []byte(id) {
		if !isIDByte(c) {
			return "", false
		}
	}
	return id, true
}

func isIDByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-'
}

// anthropic reports whether the route speaks the Anthropic API.
func (r Route) anthropic() bool { return r == RouteMessages || r == RouteCountTokens }

// bodyless reports whether the route's requests have no body.
func (r Route) bodyless() bool { return r == RouteModels || r == RouteResponseByID }
