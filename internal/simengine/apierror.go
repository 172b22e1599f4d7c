package simengine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// apiError is an answer other than 200.
type apiError struct {
	status  int
	message string
	param   string
	// form says that the body did not even fit the request's model: FastAPI's fault, not the engine's.
	form bool
	// bare says that the body is FastAPI's own: {"detail": message}.
	bare bool
	// kind is llama.cpp's name of the fault where the status does not say enough.
	kind string
}

// Error implements error.
func (e *apiError) Error() string { return e.message }

func badRequest(message, param string) *apiError {
	return &apiError{status: http.StatusBadRequest, message: message, param: param}
}

// badForm is a body that does not fit; at is the place of the fault.
func badForm(kind, at, message string) *apiError {
	e := badRequest(fmt.Sprintf("1 validation error:\n  {'type': '%s', 'loc': '%s', 'msg': '%s'}", kind, at, message), at)
	e.form = true
	return e
}

func missing(field string) *apiError { return badForm("missing", "body."+field, "Field required") }

// typeName is the name that the Python servers give to a status.
func (e *apiError) typeName() string {
	switch {
	case e.form:
		return "Bad Request"
	case e.status == http.StatusBadRequest:
		return "BadRequestError"
	case e.status == http.StatusForbidden:
		return "PermissionDeniedError"
	case e.status == http.StatusNotFound:
		return "NotFoundError"
	case e.status == http.StatusInternalServerError:
		return "InternalServerError"
	}
	return strings.ReplaceAll(http.StatusText(e.status), " ", "")
}

type errorDetail struct {
	Object  string  `json:"object,omitempty"`
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

type anthropicError struct {
	Type  string          `json:"type"`
	Error anthropicDetail `json:"error"`
}

type anthropicDetail struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

// errorBody is the body of e on a path: nested for vLLM, flat for SGLang and TensorRT-LLM, nested for SGLang's Responses,
// and Anthropic's own shape on /v1/messages, but for vLLM's faults of form.
func errorBody(kind, path string, e *apiError) any {
	d := errorDetail{Message: e.message, Type: e.typeName(), Code: e.status}
	if e.param != "" {
		d.Param = &e.param
	}
	switch {
	case kind == KindOther:
		return llamaError(e)
	case e.bare:
		return map[string]string{"detail": e.message}
	case kind == KindVLLM && e.form:
		return map[string]any{"error": d}
	case strings.HasPrefix(path, "/v1/messages"):
		return anthropicError{"error", anthropicDetail{anthropicType(kind, e), e.message}}
	case kind == KindVLLM || strings.HasPrefix(path, "/v1/responses"):
		return map[string]any{"error": d}
	}
	d.Object = "error"
	return d
}

// anthropicType: vLLM puts its own type names into Anthropic's shape.
func anthropicType(kind string, e *apiError) string {
	switch {
	case kind == KindVLLM:
		return e.typeName()
	case e.status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case e.status == http.StatusNotFound:
		return "not_found_error"
	case e.status >= 500:
		return "api_error"
	}
	return "invalid_request_error"
}

// writeJSON writes v as the Python servers do: no newline at the end, no escapes for HTML.
func writeJSON(w http.ResponseWriter, status int, v any) {
	b := marshal(nil, v)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // a client that went away needs no answer
}

// marshal appends the JSON of v to b.
func marshal(b []byte, v any) []byte {
	a := appender{b}
	enc := json.NewEncoder(&a)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic("simengine: marshal: " + err.Error()) // only our own structs come here
	}
	return a.b[:len(a.b)-1]
}

type appender struct{ b []byte }

func (a *appender) Write(p []byte) (int, error) {
	a.b = append(a.b, p...)
	return len(p), nil
}
