// Package book is an owner's book of one engine: which requests it accepted, how much prefill they still are, how fast
// the engine has turned out to be, and whether one more may be accepted.
//
// It is pure: no I/O, no goroutine, no clock. Every call that needs the time is given it, and times must not go back. A
// Book is not safe for concurrent use: engineagent calls it under its lock, a simulator in virtual time.
//
// What an engine holds, which requests reach it and what its answers look like is left to others.
package book
