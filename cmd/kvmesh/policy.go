package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/policy"
)

// loadPolicy reads and checks the policy in a file. Each fault is a line that begins with the file's name.
func loadPolicy(file string) (forward.Policy, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return forward.Policy{}, err
	}
	p, err := policy.Parse(text)
	if err != nil {
		return forward.Policy{}, fmt.Errorf("%s: %s", file, strings.ReplaceAll(err.Error(), "\n", "\n"+file+": "))
	}
	return *p, nil
}
