package agreed

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/hashicorp/raft"
)

// Peer is a voter that a recovery begins with.
type Peer struct {
	RaftID string
	Agent  string
}

// Recover makes peers the voters of the group whose log is in folder, after a majority of its voters was lost for good. The
// agent must not run, and must be among the peers; what only lost voters had decided may be missing. Run it on the one
// agent whose Status has the highest epoch and index, with that agent alone as peers, and move the other voters' data
// folders away: they join as new voters. The group that goes on is newer than all that the old one decided.
func Recover(folder string, peers []Peer) error {
	if err := survive(func() error { return recoverGroup(folder, peers) }); err != nil {
		return fmt.Errorf("recover agreed state in %s: %w", folder, err)
	}
	return nil
}

func recoverGroup(folder string, peers []Peer) (err error) {
	id, err := loadID(folder, writeFile)
	if err != nil {
		return err
	}
	var c raft.Configuration
	self := ""
	for _, p := range peers {
		if p.RaftID == id {
			self = p.Agent
		}
		c.Servers = append(c.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(p.RaftID), Address: raft.ServerAddress(p.Agent)})
	}
	if self == "" {
		return fmt.Errorf("raft id %s of this folder must be among the peers", id)
	}
	s, err := openStores(folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	var fault error
	m, err := newMachine(func(*held) {}, func() {}, func(err error) { fault = err })
	if err != nil {
		return err
	}
	_, trans := raft.NewInmemTransport(raft.ServerAddress(self))
	config := raft.DefaultConfig()
	config.LocalID, config.LogOutput = raft.ServerID(id), io.Discard
	// The mark comes first: without a recovery it only begins an epoch.
	if err := writeFile(filepath.Join(folder, recoveryFile), []byte("recovery-"+randomID())); err != nil {
		return err
	}
	return errors.Join(raft.RecoverCluster(config, m, s.logs, s.stable, s.snaps, trans, c), fault)
}

// RecoverAlone is Recover with this agent as the only voter, by the raft id that its folder has.
func RecoverAlone(folder, agent string) error {
	id, err := loadID(folder, writeFile)
	if err != nil {
		return fmt.Errorf("recover agreed state in %s: %w", folder, err)
	}
	return Recover(folder, []Peer{{RaftID: id, Agent: agent}})
}
