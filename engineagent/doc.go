// Package engineagent follows one engine: it asks the engine what it is and how busy it is, books the requests that its
// owner sends there, and learns from the answers how fast the engine is and how much of each prompt it already held.
//
// The package leaves the choice between engines to forward and the spreading of what it knows to mesh. Its Agent is
// made by the composition root, one for each engine; Run is called once, everything else from any goroutine.
//
// An Agent has two locks, and no I/O happens under them: its own, and then that of its book, which is never held for longer
// than a look at the counters takes. Values that leave it are copies or are never written again.
package engineagent
