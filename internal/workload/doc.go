// Package workload is traffic and the load runner: it reads recorded traces, generates conversations, and plays either
// against real HTTP servers while it measures what a client sees.
//
// A Workload is a list of Sessions, each a list of Turns: a trace's request is a session of one turn, a chat is one of
// several, whose later prompts hold the answers that came before. Texts are not stored. They are made from numbers when
// a request is built, so that equal numbers give equal text and a workload of gigabytes fits in memory.
//
// `kvmesh demo` and `kvmesh bench` bind flags to the Config structs of this package and call Run; nothing here reads
// flags, prints, or knows kvmesh: the targets may be agents, engines or any other server that speaks the OpenAI API.
package workload
