// Package simcluster runs whole meshes in one process: agents as internal/node makes them, simulated engines beside
// them, and a network in memory between all. It is meant for testing/synctest: every delay passes in fake time, so a
// test may wait for minutes and takes milliseconds.
//
// Each agent has a host of its own with the default ports, and its engine runs on that host as a process of its own.
// UDP between hosts can be cut; TCP, which clients and engines use, always gets through. What a process holds ends with
// it: Kill and StopEngine reset its connections, as a kernel does for a process that is killed.
//
// What happens to a cluster for minutes is told by scripts, which read like its log: RunScript plays those in testdata.
//
// Everything that a Cluster starts has ended when its test has.
package simcluster
