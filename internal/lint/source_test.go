package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// banned are the synonyms that the word list rules out, and the word that stands for them. They are looked for in the
// names that this module declares, word by word; names of others that it only uses are theirs.
var banned = map[string]string{
	"worker": "engine", "workers": "engines",
	"backend": "engine", "backends": "engines",
	"upstream": "engine", "upstreams": "engines",
	"pod": "engine", "pods": "engines",
}

// check is one rule about one source file; it returns its faults, each with a position.
type check func(file string, f *ast.File) []fault

type fault struct {
	pos  token.Pos
	text string
}

func TestSourceFollowsTheHouseRules(t *testing.T) {
	checks := []check{bannedNames, todosWithoutOwner, initFunctions, skippedTests, metricNames, fuzzWithoutCorpus}
	err := filepath.WalkDir(root(t), func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && skipped(path, d.Name(), root(t)):
			return filepath.SkipDir
		case !d.IsDir() && filepath.Ext(path) == ".go":
			report(t, path, checks)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// skipped reports whether a folder holds no source of this module: hidden, test data, or a module of its own.
func skipped(path, name, root string) bool {
	if path == root {
		return false
	}
	_, err := os.Stat(filepath.Join(path, "go.mod"))
	return err == nil || name == "testdata" || name == "node_modules" || strings.HasPrefix(name, ".")
}

func report(t *testing.T, path string, checks []check) {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
	if err != nil {
		t.Errorf("parse: %v", err)
		return
	}
	for _, check := range checks {
		for _, fault := range check(path, f) {
			t.Errorf("%s: %s", fset.Position(fault.pos), fault.text)
		}
	}
}

func bannedNames(_ string, f *ast.File) []fault {
	var faults []fault
	for _, id := range declared(f) {
		for _, word := range words(id.Name) {
			if instead, ok := banned[word]; ok {
				faults = append(faults, fault{id.Pos(), fmt.Sprintf("name %s: say %s, not %s", id.Name, instead, word)})
			}
		}
	}
	return faults
}

// declared returns the names that f gives to something: types, functions, variables, parameters and fields.
func declared(f *ast.File) []*ast.Ident {
	ids := []*ast.Ident{f.Name}
	add := func(exprs ...ast.Expr) {
		for _, e := range exprs {
			if id, ok := e.(*ast.Ident); ok {
				ids = append(ids, id)
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.TypeSpec:
			ids = append(ids, n.Name)
		case *ast.FuncDecl:
			ids = append(ids, n.Name)
		case *ast.ValueSpec:
			ids = append(ids, n.Names...)
		case *ast.Field:
			ids = append(ids, n.Names...)
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				add(n.Key, n.Value)
			}
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				add(n.Lhs...)
			}
		}
		return true
	})
	return ids
}

// words cuts a Go name at its capitals and underscores: "HTTPPodName" is http, pod, name.
func words(name string) []string {
	r := []rune(name)
	var out []string
	begin := 0
	for i := 1; i <= len(r); i++ {
		atEnd := i == len(r)
		if atEnd || r[i] == '_' || startsWord(r, i) {
			if w := strings.Trim(string(r[begin:i]), "_"); w != "" {
				out = append(out, strings.ToLower(w))
			}
			begin = i
		}
	}
	return out
}

func startsWord(r []rune, i int) bool {
	if !unicode.IsUpper(r[i]) {
		return false
	}
	return !unicode.IsUpper(r[i-1]) || i+1 < len(r) && unicode.IsLower(r[i+1])
}

var (
	todo      = regexp.MustCompile(`\b(TODO|FIXME|XXX)\b`)
	todoOwned = regexp.MustCompile(`\bTODO\([a-z0-9#-]+\): \S`)
)

func todosWithoutOwner(_ string, f *ast.File) []fault {
	var faults []fault
	for _, group := range f.Comments {
		for _, c := range group.List {
			if todo.MatchString(c.Text) && !todoOwned.MatchString(c.Text) {
				faults = append(faults, fault{c.Pos(), "a TODO names its owner or issue: TODO(name): what"})
			}
		}
	}
	return faults
}

func initFunctions(_ string, f *ast.File) []fault {
	var faults []fault
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			faults = append(faults, fault{fn.Pos(), "no init functions: what a package needs comes in through its Config"})
		}
	}
	return faults
}

func skippedTests(file string, f *ast.File) []fault {
	if !strings.HasSuffix(file, "_test.go") {
		return nil
	}
	var faults []fault
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && isTestingVar(sel.X) && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name) {
			faults = append(faults, fault{sel.Pos(), "a test that is skipped proves nothing: mend or remove it"})
		}
		return true
	})
	return faults
}

func isTestingVar(x ast.Expr) bool {
	id, ok := x.(*ast.Ident)
	return ok && (id.Name == "t" || id.Name == "b" || id.Name == "f" || id.Name == "tb")
}

var (
	metricLike = regexp.MustCompile(`^kvmesh_[A-Za-z0-9_]*$`)
	metricName = regexp.MustCompile(`^kvmesh_(build|cachestate|engineagent|forward|mesh|node|spread|workload)_[a-z0-9]+(_[a-z0-9]+)*$`)
)

// metricNames looks at whole names only; a name put together from parts is seen by the test that gathers a registry.
func metricNames(file string, f *ast.File) []fault {
	if strings.HasSuffix(file, "_test.go") {
		return nil
	}
	var faults []fault
	ast.Inspect(f, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		name, err := strconv.Unquote(lit.Value)
		if err == nil && metricLike.MatchString(name) && !metricName.MatchString(name) {
			faults = append(faults, fault{lit.Pos(), "metric " + name + ": the form is kvmesh_<package>_<what>_<unit>[_total]"})
		}
		return true
	})
	return faults
}

func fuzzWithoutCorpus(file string, f *ast.File) []fault {
	if !strings.HasSuffix(file, "_test.go") {
		return nil
	}
	var faults []fault
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || !strings.HasPrefix(fn.Name.Name, "Fuzz") {
			continue
		}
		corpus := filepath.Join(filepath.Dir(file), "testdata", "fuzz", fn.Name.Name)
		if entries, err := os.ReadDir(corpus); err != nil || len(entries) == 0 {
			faults = append(faults, fault{fn.Pos(), fn.Name.Name + ": no corpus in testdata/fuzz/" + fn.Name.Name})
		}
	}
	return faults
}

func TestLicenceIsThere(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "LICENSE"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "Apache License") {
		t.Error("LICENSE is not the Apache License")
	}
}

func TestWordsCutNamesAtCapitals(t *testing.T) {
	tests := map[string][]string{
		"HTTPPodName": {"http", "pod", "name"},
		"podium":      {"podium"},
		"my_worker":   {"my", "worker"},
		"maxWorkers":  {"max", "workers"},
		"ID":          {"id"},
		"_":           nil,
		"t":           {"t"},
	}
	for name, want := range tests {
		if got := strings.Join(words(name), " "); got != strings.Join(want, " ") {
			t.Errorf("words(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestEachSourceRuleFindsItsFault(t *testing.T) {
	tests := []struct {
		name  string
		check check
		src   string
		want  int
	}{
		{"field", bannedNames, "type T struct{ podName string }", 1},
		{"short declaration", bannedNames, "func f() { backend := 1; _ = backend }", 1},
		{"use of another's name", bannedNames, "var x = other.Worker{}", 0},
		{"bare", todosWithoutOwner, "// TODO: later\nvar x int", 1},
		{"owned", todosWithoutOwner, "// TODO(#12): later\nvar x int", 0},
		{"init", initFunctions, "func init() {}", 1},
		{"method named init", initFunctions, "func (t T) init() {}", 0},
		{"skip", skippedTests, "func TestX(t *testing.T) { t.Skip() }", 1},
		{"good metric", metricNames, `const x = "kvmesh_mesh_peers"`, 0},
		{"bad metric", metricNames, `const x = "kvmesh_Peers"`, 1},
		{"no corpus", fuzzWithoutCorpus, "func FuzzX(f *testing.F) {}", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := "x.go"
			if strings.Contains(tt.src, "testing.") {
				file = "x_test.go"
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, "package p\n"+tt.src, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if got := tt.check(file, f); len(got) != tt.want {
				t.Errorf("%q has faults %v, want %d", tt.src, got, tt.want)
			}
		})
	}
}
