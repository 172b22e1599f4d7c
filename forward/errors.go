package forward

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// errNoEngine says that no engine of the model can be chosen at all.
var errNoEngine = errors.New("no healthy engine")

// retryAfter is what a refused client is told to wait, in seconds: SDKs retry only when they are told.
const retryAfter = 1

func writeError(w http.ResponseWriter, route openai.Route, e *openai.Error) {
	w.Header().Set("Content-Type", "application/json")
	if e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	}
	w.WriteHeader(e.Status)
	_, _ = w.Write(e.Body(route))
}

// asError returns err as the error that the client gets.
func asError(err error) *openai.Error {
	if e, ok := errors.AsType[*openai.Error](err); ok {
		return e
	}
	return &openai.Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Reason: "body", Message: err.Error()}
}

func unknownModel(name string, known []engine.Model) *openai.Error {
	message := fmt.Sprintf("the model %q does not exist in this mesh", name)
	if names := modelNames(known); len(names) > 0 {
		message += "; it serves " + strings.Join(names, ", ")
	} else {
		message += "; no engine has announced a model yet"
	}
	return &openai.Error{
		Status: http.StatusNotFound, Type: "invalid_request_error", Code: "model_not_found", Param: "model",
		Reason: "unknown_model", Message: message,
	}
}

// modelNames returns at most eight names: an error is for a person.
func modelNames(models []engine.Model) []string {
	var names []string
	for _, m := range models[:min(len(models), 8)] {
		names = append(names, m.Name)
	}
	return names
}

// answerError says to the client why its request was not served. Reason is the outcome in metrics.
func answerError(err error) *openai.Error {
	e := &openai.Error{Status: http.StatusBadGateway, Type: "server_error"}
	failed, isFailure := errors.AsType[*failure](err)
	switch {
	case errors.Is(err, errQueueFull), errors.Is(err, errQueueTime):
		e.Status, e.Type, e.Code, e.Reason = http.StatusTooManyRequests, "rate_limit_error", "mesh_full", "full"
		e.Message = "every engine of this model is full; try again later"
	case errors.Is(err, errNoEngine):
		e.Status, e.Code, e.Reason = http.StatusServiceUnavailable, "no_engine", "no_engine"
		e.Message = "no healthy engine of this model can be reached; try again later"
	case errors.Is(err, context.DeadlineExceeded):
		e.Status, e.Code, e.Reason = http.StatusGatewayTimeout, "timeout", "timeout"
		e.Message = "the request took longer than this agent allows"
	case isFailure:
		e.Code, e.Reason = "engine_failed", failed.Reason
		e.Message = "the engine failed before the answer was complete (" + failed.Reason + ")"
	default:
		e.Code, e.Reason = "engine_failed", "internal"
		e.Message = "the answer could not be completed"
	}
	return e
}
