package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/kvmesh/kvmesh/mesh"
)

type certCmd struct {
	Dir      string        `help:"Folder for the files. The authority and the gossip key are made when they are missing." default:"certs"`
	MeshID   string        `help:"Name of the mesh." default:"kvmesh"`
	Validity time.Duration `help:"How long the agents' certificates are valid." default:"8760h"`
	Revoke   []string      `help:"Agents by name, or serial numbers as openssl x509 -serial prints them: their certificates go onto the list in the file revoked, which every agent is to get. An agent that is named both here and as argument gets a new one." placeholder:"AGENT"`
	Agents   []string      `arg:"" optional:"" name:"agent" help:"Names of the agents to make certificates for. A certificate that is there is replaced: that is how to renew one."`
}

// caValidity is how long a certificate authority lasts: replacing it means a new certificate for every agent.
const caValidity = 10 * 365 * 24 * time.Hour

// Run makes what is missing, and certificates for the named agents.
func (c *certCmd) Run() error {
	if len(c.Agents)+len(c.Revoke) == 0 {
		return errors.New("name the agents to make certificates for, or to --revoke")
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return err
	}
	if err := c.revoke(); err != nil {
		return err
	}
	if len(c.Agents) == 0 {
		return nil
	}
	ca, err := c.authority()
	if err != nil {
		return err
	}
	if err := c.gossipKey(); err != nil {
		return err
	}
	for _, name := range c.Agents {
		id, err := ca.Issue(name, c.Validity)
		if err != nil {
			return err
		}
		if err := id.Write(c.Dir); err != nil {
			return err
		}
		fmt.Printf("agent %s: %s.pem and %s-key.pem, valid until %s, serial %s\n",
			name, name, name, id.Expires().Format(time.DateOnly), id.Serial())
	}
	fmt.Printf("Give each agent %s, %s, and its own two files; keep %s where you make certificates.\n",
		mesh.CAFile, mesh.GossipKeyFile, mesh.CAKeyFile)
	return nil
}

// revoke puts the certificates that were named onto the list.
func (c *certCmd) revoke() error {
	file := filepath.Join(c.Dir, mesh.RevokedFile)
	for _, who := range c.Revoke {
		serial := who
		if exists(filepath.Join(c.Dir, who+".pem")) {
			id, err := mesh.LoadIdentity(c.Dir, who)
			if err != nil {
				return err
			}
			serial = id.Serial()
		}
		added, err := mesh.AddRevoked(file, "revoked "+time.Now().Format(time.DateOnly)+", given as "+who, serial)
		if err != nil {
			return fmt.Errorf("revoke %s: there is no %s.pem in %s, and %w", who, who, c.Dir, err)
		}
		if len(added) == 0 {
			fmt.Printf("%s is revoked already\n", who)
			continue
		}
		fmt.Printf("revoked %s, serial %s: give every agent the file %s\n", who, added[0], mesh.RevokedFile)
	}
	return nil
}

func (c *certCmd) authority() (*mesh.Authority, error) {
	if exists(filepath.Join(c.Dir, mesh.CAFile)) {
		ca, err := mesh.LoadAuthority(c.Dir)
		if err == nil && ca.Mesh() != c.MeshID {
			err = fmt.Errorf("%s in %s is for the mesh %q, not for %q", mesh.CAFile, c.Dir, ca.Mesh(), c.MeshID)
		}
		return ca, err
	}
	ca, err := mesh.NewAuthority(c.MeshID, caValidity)
	if err != nil {
		return nil, err
	}
	fmt.Printf("certificate authority of mesh %s: %s and %s\n", c.MeshID, mesh.CAFile, mesh.CAKeyFile)
	return ca, ca.Write(c.Dir)
}

func (c *certCmd) gossipKey() error {
	file := filepath.Join(c.Dir, mesh.GossipKeyFile)
	if exists(file) {
		return nil
	}
	fmt.Printf("gossip key: %s\n", mesh.GossipKeyFile)
	return mesh.WriteGossipKeys(file, mesh.NewGossipKey())
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return !errors.Is(err, fs.ErrNotExist)
}
