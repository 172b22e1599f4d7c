package openai

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
)

// The reasons of an Error: a closed set, fit for a metric label.
const (
	ReasonJSON    = "json"    // the body is not JSON
	ReasonDepth   = "depth"   // nested deeper than Limits.Depth
	ReasonSize    = "size"    // longer than Limits.Body
	ReasonType    = "type"    // a field that is read has the wrong type
	ReasonMissing = "missing" // a field that is needed is absent or empty
	ReasonField   = "field"   // a field that clients may not send
	ReasonRoute   = "route"   // not a route of the list
	ReasonMethod  = "method"  // a known path with another method
)

// typeInvalid is the OpenAI error type of everything that the client got wrong.
const typeInvalid = "invalid_request_error"

// Error is a refusal in the terms of the APIs. It says nothing of the prompt but names and places of fields.
type Error struct {
	Status  int    // HTTP status
	Type    string // OpenAI error type, e.g. "invalid_request_error"
	Code    string // OpenAI error code; "" is null
	Param   string // the field at fault, e.g. "messages[3].role"; "" is null
	Message string // a sentence for the client
	Reason  string // one of a closed set, for a metric label
	Allow   string // the method that the route takes, when it is another
}

// Error returns the status, the field and the message.
func (e *Error) Error() string {
	return fmt.Sprintf("%d: %s", e.Status, e.sentence())
}

// sentence is the message with the field at fault: SDKs show their users the message alone.
func (e *Error) sentence() string {
	if e.Param == "" {
		return e.Message
	}
	return e.Param + ": " + e.Message
}

// Body returns the JSON body of e in the shape of the route's API: OpenAI's {"error":{message,type,param,code}} or
// Anthropic's {"type":"error","error":{type,message}}.
func (e *Error) Body(route Route) []byte {
	if route.anthropic() {
		return e.appendAnthropic(nil)
	}
	b := append([]byte(nil), `{"error":{"message":`...)
	b = appendQuoted(b, e.sentence())
	b = append(b, `,"type":`...)
	b = appendQuoted(b, e.Type)
	b = append(b, `,"param":`...)
	b = appendQuotedOrNull(b, e.Param)
	b = append(b, `,"code":`...)
	b = appendQuotedOrNull(b, e.Code)
	return append(b, "}}"...)
}

func (e *Error) appendAnthropic(b []byte) []byte {
	b = append(b, `{"type":"error","error":{"type":`...)
	b = appendQuoted(b, anthropicType(e.Status))
	b = append(b, `,"message":`...)
	return append(appendQuoted(b, e.sentence()), "}}"...)
}

// anthropicType is the error type that Anthropic's API documents for a status.
func anthropicType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable, 529:
		return "overloaded_error"
	}
	if status >= 500 {
		return "api_error"
	}
	return typeInvalid
}

// ErrorEvent returns e as the event that ends a stream of the route after its head was sent: what vLLM and SGLang send
// on chat and completions, the "error" event of the Responses API, the "error" event of the Messages API.
func ErrorEvent(route Route, e *Error) []byte {
	switch {
	case route.anthropic():
		return append(e.appendAnthropic([]byte("event: error\ndata: ")), "\n\n"...)
	case route == RouteResponses || route == RouteResponseByID:
		b := []byte("event: error\ndata: " + `{"type":"error","sequence_number":0,"code":`)
		b = appendQuotedOrNull(b, cmp.Or(e.Code, e.Type))
		b = append(b, `,"message":`...)
		b = appendQuoted(b, e.Message)
		b = append(b, `,"param":`...)
		b = appendQuotedOrNull(b, e.Param)
		return append(b, "}\n\n"...)
	}
	b := append([]byte("data: "), e.Body(route)...)
	return append(b, "\n\n"...)
}

// under puts the place of the object that has the fault before its Param.
func (e *Error) under(field string, i int) *Error {
	if e == nil {
		return nil
	}
	place := field
	if i >= 0 {
		place += "[" + strconv.Itoa(i) + "]"
	}
	switch {
	case e.Param == "":
		e.Param = place
	case e.Param[0] == '[':
		e.Param = place + e.Param
	default:
		e.Param = place + "." + e.Param
	}
	return e
}

func badRequest(reason, param, format string, args ...any) *Error {
	return &Error{
		Status: http.StatusBadRequest, Type: typeInvalid, Param: param,
		Message: fmt.Sprintf(format, args...), Reason: reason,
	}
}

func missing(param string) *Error {
	return badRequest(ReasonMissing, param, "is needed and must not be empty")
}
