// Package forward takes a request from its ingress to its owner and the answer back: ServeHTTP → parse → keys → overlap →
// decide → carry → observe. Decide is pure (Shortlist, ProbeSet and Rank take values and return values), so that policy
// tests are tables and a simulator can run the same code.
//
// An Ingress takes requests in; its Owner serves requests, of this agent and of peers, on the engines beside this
// agent. Both are made by New and are safe for concurrent use. The View is what they know of the mesh: whoever composes
// the agent tells it what it hears. The package knows neither the mesh nor the engine agents; Peers and Booker are what
// it needs of them.
//
// Locks: those of View, answer, waitRoom, classes and Recorder are leaves, except that View calls cachestate.Index under its own.
// DESIGN.md has the hop's wire format and the failure cases.
package forward
