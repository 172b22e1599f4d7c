// Package policy reads the policy language: the YAML in which operators write a forward.Policy. Its errors name line, column
// and reason, for all faults at once where the text can be read at all.
//
// Whoever takes policies in calls Parse: the agent's command line, agreed state before it proposes one and when one comes,
// and kvmesh policy validate. It keeps nothing.
package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/kvmesh/kvmesh/forward"
)

// MaxBytes bounds a policy's text: that of a thousand rules is 100 KiB.
const MaxBytes = 256 << 10

// Parse reads a policy and checks it. An empty text is the policy without classes. What makes the YAML library panic is an error:
// every agent of a mesh reads the same text.
func Parse(text []byte) (p *forward.Policy, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			p, err = nil, fmt.Errorf("policy cannot be read: %v", cause)
		}
	}()
	return parse(text)
}

func parse(text []byte) (*forward.Policy, error) {
	p := new(forward.Policy)
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("policy has %d bytes, at most %d are allowed", len(text), MaxBytes)
	}
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, readable(err)
	}
	if len(file.Docs) > 1 {
		return nil, errors.New("policy has several documents: only one can be in force")
	}
	if err := errors.Join(aliases(file)...); err != nil {
		return nil, err
	}
	err = yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(p)
	if err != nil && !errors.Is(err, io.EOF) { // an empty file
		return nil, readable(err)
	}
	if err := errors.Join(faults(file, p)...); err != nil {
		return nil, err
	}
	return p, nil
}

// readable is a fault of the YAML in one line, that begins with its place.
func readable(err error) error {
	text := strings.TrimSpace(yaml.FormatError(err, false, false))
	if place, rest, ok := strings.Cut(strings.TrimPrefix(text, "["), "] "); ok && strings.HasPrefix(text, "[") {
		if line, column, ok := strings.Cut(place, ":"); ok {
			return fmt.Errorf("line %s, column %s: %s", line, column, rest)
		}
	}
	return errors.New(text)
}

// aliases returns an error for each alias: a few of them can make a small text large.
func aliases(file *ast.File) []error {
	var errs []error
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		for _, n := range ast.Filter(ast.AliasType, doc.Body) {
			errs = append(errs, fmt.Errorf("%s: aliases are not allowed in a policy", placeOf(n)))
		}
	}
	return errs
}

// faults returns what forward finds wrong with p, each with its line, and fields that are set to what means "not set".
func faults(file *ast.File, p *forward.Policy) []error {
	var errs []error
	for _, f := range p.Faults() {
		errs = append(errs, fmt.Errorf("%s: %w", placeOf(nearest(file, f)), f))
	}
	for i := range p.Classes {
		for _, field := range []string{"locality_weight", "min_prompt_tokens", "wait_weight", "overlap_candidates", "random_candidates", "probes", "retry_budget", "queue_limit", "queue_bytes", "queue_timeout"} {
			n := nodeAt(file, fmt.Sprintf("$.classes[%d].%s", i, field))
			if n != nil && strings.Trim(n.String(), "0.smh") == "" {
				errs = append(errs, fmt.Errorf("%s: policy class %d (%q): %s must be above 0; leave it out for the default", placeOf(n), i+1, p.Classes[i].Name, field))
			}
		}
	}
	return errs
}

// nearest returns the node of a fault's field; where that is not written, of what should have it.
func nearest(file *ast.File, f forward.PolicyFault) ast.Node {
	path := "$"
	if f.Class > 0 {
		path = fmt.Sprintf("$.classes[%d]", f.Class-1)
	}
	for field := f.Field; field != ""; {
		if n := nodeAt(file, path+"."+field); n != nil {
			return n
		}
		field, _, _ = strings.Cut(field, ".")
		if field == f.Field || !strings.Contains(f.Field, ".") {
			break
		}
		f.Field = field
	}
	return nodeAt(file, path)
}

// nodeAt returns the node at a YAML path, or nil.
func nodeAt(file *ast.File, path string) ast.Node {
	p, err := yaml.PathString(path)
	if err != nil {
		return nil
	}
	n, err := p.FilterFile(file)
	if err != nil {
		return nil
	}
	return n
}

// placeOf says where a node stands.
func placeOf(n ast.Node) string {
	if n == nil || n.GetToken() == nil {
		return "line 1"
	}
	at := n.GetToken().Position
	return fmt.Sprintf("line %d, column %d", at.Line, at.Column)
}
