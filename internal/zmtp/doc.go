// Package zmtp is the client side of ZeroMQ that following an engine takes: SUB and DEALER sockets over ZMTP 3.0 and 3.1
// (RFC 23 and 37) with the NULL mechanism, on connections that are dialled or accepted. Everything that a peer sends is
// bounded before it is allocated, no goroutine is left behind, and nothing is reconnected or dropped silently: a Conn ends
// with an error and its user decides.
//
// The simulated engine has the server side, written apart: each is the other's test.
package zmtp
