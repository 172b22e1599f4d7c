// Package agreed keeps what must be the same on every agent and outlive restarts: policy, digest geometry, key schemes,
// cordons, revoked certificates and the version of the API-key set. Up to five agents with a data folder decide about it
// by raft (the voters); all others watch one of them and keep a copy on disk.
//
// A Group is this agent's part in it. State never waits and works without a quorum, so the data path may call it; all
// other methods that can wait are for operators and their commands. The package carries policy text without reading it,
// and knows other agents only by Agents and Streams, which its caller provides.
//
// Locks: each is taken alone, and none is held over a call that can wait.
package agreed
