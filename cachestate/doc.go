// Package cachestate knows which prompts are cached where: it turns prompts into keys, the keys an engine holds into a
// digest, the digests of all engines into an index, and a prompt's keys into the overlap with every engine.
//
// It leaves to others how prompts are read (internal/openai), how an engine's residency is learned (engineagent), how
// digests travel (mesh) and what is done with an overlap (forward). It does no I/O, starts no goroutine and reads no
// clock; times are arguments. Only Index may be used from several goroutines at once. The other types belong to one
// goroutine or to a lock of their owner.
//
// A wrong or stale digest costs a cache miss, never a wrong answer. That is why keys are short, filters may lie a
// little, and readers of the index need no lock.
package cachestate
