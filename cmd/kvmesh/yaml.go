package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"
)

// yamlFile resolves flags from a config file: its keys are the names of the flags of kvmesh agent, its values scalars or
// lists. The command line wins over the environment, the environment over the file.
type yamlFile struct {
	values   map[string]any
	problems *problems
}

// problems are the faults of the config file that do not keep it from being read: they are told with all others.
type problems struct {
	errs []error
}

func (p *problems) load(r io.Reader) (kong.Resolver, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read config file: %w", err)
	}
	f := &yamlFile{values: map[string]any{}, problems: p}
	if err := yaml.Unmarshal(text, &f.values); err != nil {
		return nil, fmt.Errorf("config file is not valid YAML: %s", strings.TrimSpace(yaml.FormatError(err, false, true)))
	}
	for _, key := range slices.Sorted(maps.Keys(f.values)) {
		if !plain(f.values[key]) {
			p.errs = append(p.errs, fmt.Errorf("%s must be a value or a list of values", key))
			f.values[key] = nil // the key may still be unknown
		}
	}
	return f, nil
}

// Validate notes every key that is no flag.
func (f *yamlFile) Validate(app *kong.Application) error {
	known := map[string]bool{}
	for _, cmd := range app.Children {
		for _, flag := range cmd.Flags {
			known[flag.Name] = known[flag.Name] || (cmd.Name == "agent" && flag.Name != "config")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(f.values)) {
		if !known[key] {
			f.problems.errs = append(f.problems.errs, fmt.Errorf("unknown key %q in the config file", key))
		}
	}
	return nil
}

// Resolve returns the value of a flag that neither the command line nor the environment gives.
func (f *yamlFile) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	for _, env := range flag.Envs {
		if _, ok := os.LookupEnv(env); ok {
			return nil, nil
		}
	}
	return f.values[flag.Name], nil
}

func plain(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return false
	case []any:
		return !slices.ContainsFunc(v, func(e any) bool { _, list := e.([]any); return list || !plain(e) })
	default:
		return v != nil
	}
}
