// Package simulate is a discrete-event simulation of a whole mesh in virtual time: N engines, their agents, and a policy
// that sends requests to them. It answers in seconds, on a laptop, how good routing is, and does so with the packages that
// run in production: keys, digests and the peer index of cachestate, the load view and the decision of forward, and the
// owner's book of engineagent/book. Only the transport, the clock and the engines are models.
//
// One run is one policy on one goroutine; Run plays several policies at once, each with the same arrivals. Equal
// configurations give equal results. `kvmesh simulate` binds flags to Config; nothing here reads flags or prints.
package simulate
