package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/kvmesh/kvmesh"

// anything stands for every package of the module.
const anything = "..."

// layers says which packages of this module each package may import. A package without a line here fails the test:
// placing it is a decision. A line that ends in "/..." is for every package below it. Tests may import what they like.
var layers = map[string][]string{
	"internal/engine": {},
	"cachestate":      {"internal/engine"},
	"mesh":            {},
	"mesh/agreed":     {},
	// A request never waits for what the mesh agrees on: forward can import neither mesh nor mesh/agreed.
	"forward":              {"cachestate", "internal/engine", "internal/openai"},
	"engineagent":          {"cachestate", "engineagent/book", "engineagent/kvevents", "internal/engine", "internal/openai"},
	"engineagent/book":     {"internal/engine"},
	"engineagent/kvevents": {"cachestate", "internal/engine", "internal/zmtp"},
	"internal/zmtp":        {},
	"internal/openai":      {},
	"internal/policy":      {"forward"},
	"internal/workload":    {},
	"internal/simengine":   {},
	"internal/spread":      {"cachestate", "forward", "internal/engine"},
	"internal/simscale":    {"cachestate", "forward", "internal/engine", "internal/spread"},
	"internal/simulate":    {"cachestate", "engineagent/book", "forward", "internal/engine", "internal/spread", "internal/workload"},
	"internal/node":        {"cachestate", "engineagent", "forward", "internal/engine", "internal/openai", "internal/policy", "internal/spread", "mesh", "mesh/agreed"},
	"internal/simcluster":  {anything},
	"internal/lint":        {},
	"cmd/kvmesh":           {anything},
	"deploy/checks/...":    {anything},
}

// goPackage is what `go list` says about one package. Imports leaves out what only tests import.
type goPackage struct {
	ImportPath string
	Doc        string
	Imports    []string
}

// name is the package's path inside the module.
func (p goPackage) name() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

func TestEveryPackageKeepsToItsLayer(t *testing.T) {
	packages, err := listPackages(t)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packages {
		for _, fault := range faultsOf(p, layers) {
			t.Error(fault)
		}
	}
}

// faultsOf returns what is wrong with p, in words.
func faultsOf(p goPackage, layers map[string][]string) []string {
	var faults []string
	if p.Doc == "" {
		faults = append(faults, fmt.Sprintf("%s: no package comment", p.name()))
	}
	allowed, ok := layerOf(p.name(), layers)
	if !ok {
		return append(faults, fmt.Sprintf("%s: not in the layers of internal/lint: say what it may import", p.name()))
	}
	for _, imported := range p.Imports {
		short, ours := strings.CutPrefix(imported, module+"/")
		if ours && !slices.Contains(allowed, short) && !slices.Contains(allowed, anything) {
			faults = append(faults, fmt.Sprintf("%s: may not import %s", p.name(), short))
		}
	}
	return faults
}

func layerOf(name string, layers map[string][]string) ([]string, bool) {
	if allowed, ok := layers[name]; ok {
		return allowed, true
	}
	for pattern, allowed := range layers {
		if below, ok := strings.CutSuffix(pattern, "/..."); ok && strings.HasPrefix(name+"/", below+"/") {
			return allowed, true
		}
	}
	return nil, false
}

// listPackages asks the go command for every package of the module. A package that does not compile is listed all the
// same: that it does not is for the compiler to say.
func listPackages(t *testing.T) ([]goPackage, error) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Doc,Imports", "./...")
	cmd.Dir = root(t)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, stderr.String())
	}
	var packages []goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("read go list: %w", err)
		}
		packages = append(packages, p)
	}
}

// root is the folder of go.mod, seen from this package.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestNoDecisionCanCallIntoRaft(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "./forward", "./cachestate", "./internal/openai")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for p := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(p, module+"/mesh") || strings.Contains(p, "hashicorp/") {
			t.Errorf("the path of a request reaches %s", p)
		}
	}
}

func TestLayerFaultsAreFound(t *testing.T) {
	layers := map[string][]string{"a": {"b"}, "b": {}, "c/...": {anything}}
	tests := []struct {
		name string
		give goPackage
		want int
	}{
		{"listed import", goPackage{module + "/a", "doc", []string{module + "/b", "fmt"}}, 0},
		{"unlisted import", goPackage{module + "/b", "doc", []string{module + "/a"}}, 1},
		{"unlisted package", goPackage{module + "/d", "doc", nil}, 1},
		{"no doc", goPackage{module + "/a", "", nil}, 1},
		{"below a pattern", goPackage{module + "/c/x/y", "doc", []string{module + "/a"}}, 0},
		{"the pattern's own folder", goPackage{module + "/c", "doc", []string{module + "/a"}}, 0},
		{"a name that only begins alike", goPackage{module + "/cc", "doc", nil}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := faultsOf(tt.give, layers); len(got) != tt.want {
				t.Errorf("faultsOf(%+v) = %q, want %d faults", tt.give, got, tt.want)
			}
		})
	}
}
