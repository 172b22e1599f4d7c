// Package kvevents follows the KV events of one engine: it decodes every wire form that vLLM, SGLang and TensorRT-LLM
// have had, finds out where they come from, and keeps them whole over lost messages, reconnects and restarts.
//
// What events mean for a cache is left to package cachestate, and which engine is followed to package engineagent,
// which alone calls it: a Follower or a Drainer for each source, each of them from one goroutine. DESIGN.md has the
// forms that are read and the rules.
package kvevents
