// Package openai reads what clients send and what engines answer, on the routes of the OpenAI and Anthropic APIs that
// kvmesh carries. Parse checks a request once and keeps the body as it came; Request.Walk gives its canonical prompt as
// (tag, bytes) pairs for whoever makes prompt keys of it; Stream cuts an answer into events and finds its first content,
// its usage and its end.
//
// It does no I/O, starts no goroutine and never changes a body: fields that it does not know pass untouched. Values are
// not safe for concurrent use while they are written; a Request may be walked from several goroutines at once.
//
// DESIGN.md beside this file defines the canonical walk.
package openai
