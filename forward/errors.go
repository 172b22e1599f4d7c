package forward

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// errNoEngine says that no engine of the model can be chosen at all.
var errNoEngine = errors.New("no healthy engine")

// noEngineRetry is what a client is told to wait where no engine can be chosen: an agent that restarts is back by then, and an
// engine that loads its model is not long.
const noEngineRetry = 5 * time.Second

// retryAfter returns what a client is told to wait after err, for a status after which it may come again: SDKs go by it.
func retryAfter(err error) time.Duration {
	switch r, ok := errors.AsType[*refusal](err); {
	case ok:
		return r.after
	case errors.Is(err, errNoEngine):
		return noEngineRetry
	default:
		return leastRetry
	}
}

// writeError answers with e. After is what the client is told to wait, where it may come again.
func writeError(w http.ResponseWriter, route openai.Route, e *openai.Error, after time.Duration) {
	w.Header().Set("Content-Type", "application/json")
	if mayComeAgain(e.Status) {
		setRetryAfter(w.Header(), after)
	}
	if e.Allow != "" {
		w.Header().Set("Allow", e.Allow)
	}
	w.WriteHeader(e.Status)
	_, _ = w.Write(e.Body(route))
}

// askToRetry adds to an engine's refusal when the client may come again, unless the engine says so itself.
func askToRetry(h *head) {
	if h.Header.Get("Retry-After") == "" && mayComeAgain(h.Status) {
		setRetryAfter(h.Header, leastRetry)
	}
}

// mayComeAgain reports whether a status says that the same request may be served later.
func mayComeAgain(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
}

func setRetryAfter(h http.Header, after time.Duration) {
	h.Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
}

// asError returns err as the error that the client gets.
func asError(err error) *openai.Error {
	if e, ok := errors.AsType[*openai.Error](err); ok {
		return e
	}
	return &openai.Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Reason: "body", Message: err.Error()}
}

// unknownModel refuses a model that no engine of the mesh serves. While no engine has announced any, the model may be one
// that is about to come: then the client is to try again.
func unknownModel(name string, known []engine.Model) *openai.Error {
	if len(known) == 0 {
		return &openai.Error{
			Status: http.StatusServiceUnavailable, Type: "server_error", Code: "no_engine", Reason: "no_engine",
			Message: "no engine of this mesh has announced a model yet; try again later",
		}
	}
	message := fmt.Sprintf("%q does not exist in this mesh; it serves %s", name, strings.Join(modelNames(known), ", "))
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

// answerError says to the client why its request was not served. Reason is the outcome in metrics. Advice is what it may do
// about an answer that broke off.
func answerError(err error, advice string) *openai.Error {
	e := &openai.Error{Status: http.StatusBadGateway, Type: "server_error"}
	failed, isFailure := errors.AsType[*failure](err)
	_, isBounce := errors.AsType[*bounce](err)
	refused, isRefusal := errors.AsType[*refusal](err)
	switch {
	case errors.Is(err, errNotHere):
		e.Status, e.Type, e.Code, e.Reason = http.StatusNotFound, "invalid_request_error", "not_found", outcomeNotFound
		e.Message = "no engine of this mesh has stored what the request names"
	case errors.Is(err, errLateStatus):
		e.Code, e.Reason = "engine_refused", "late_status"
		e.Message = "the engine refused the request after the stream had been announced; send it without stream to see why"
	case isRefusal:
		e.Status, e.Type, e.Code, e.Reason = http.StatusTooManyRequests, "rate_limit_error", "mesh_full", "full"
		e.Message = "every engine of this model is full, and " + refused.why() + "; try again later"
	case errors.Is(err, errNoEngine):
		e.Status, e.Code, e.Reason = http.StatusServiceUnavailable, "no_engine", "no_engine"
		e.Message = "no healthy engine of this model can be reached; try again later"
	case isBounce, errors.Is(err, errMissed), errors.Is(err, errUnreached):
		e.Status, e.Code, e.Reason = http.StatusServiceUnavailable, "busy", "not_accepted"
		e.Message = "no engine of this model accepted the request; try again later"
	case errors.Is(err, context.DeadlineExceeded):
		e.Status, e.Code, e.Reason = http.StatusGatewayTimeout, "timeout", "timeout"
		e.Message = "the request took longer than this agent's timeout; ask for a shorter answer, or raise the timeout"
	case isFailure:
		e.Code, e.Reason = "engine_failed", failed.Reason
		e.Message = "the engine or its agent failed before the answer was complete (" + failed.Reason + "); " + advice
		if failed.Reason == reasonStopped {
			e.Code, e.Message = reasonStopped, "an agent stopped before the answer was complete; "+advice
		}
	default:
		e.Code, e.Reason = "engine_failed", "internal"
		e.Message = "the answer could not be completed; " + advice
	}
	return e
}
