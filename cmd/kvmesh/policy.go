package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/kvmesh/kvmesh/forward"
)

// loadPolicy reads a policy. What its fields may be is for Validate to say; a field that does not exist is an error here.
func loadPolicy(file string) (forward.Policy, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return forward.Policy{}, err
	}
	var p forward.Policy
	err = yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&p)
	if err != nil && !errors.Is(err, io.EOF) { // an empty file is a policy without classes
		return forward.Policy{}, fmt.Errorf("%s: %s", file, strings.TrimSpace(yaml.FormatError(err, false, false)))
	}
	return p, nil
}
