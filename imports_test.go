package idem_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/idem-go/idem"

// listed is a package as go list prints it, without its tests.
type listed struct {
	ImportPath, Dir, Name string
	GoFiles, Deps         []string
	Standard              bool
}

// listAll returns the packages of this module and everything they link, by path.
func listAll(t *testing.T) map[string]listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Dir,Name,GoFiles,Deps,Standard", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	all := make(map[string]listed)
	for dec := json.NewDecoder(out); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all[p.ImportPath] = p
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal("go list:", err)
	}
	return all
}

// local returns the path of a package inside this module, "" for the root.
func local(importPath string) (rel string, ok bool) {
	if importPath == module {
		return "", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// standardOnly names the packages that an application gets without any dependency.
var standardOnly = []string{"", "driver", "driver/memory", "fingerprint", "idemhttp"}

// canonicalJSON may be linked by the packages that make fingerprints, too.
const canonicalJSON = "github.com/gowebpki/jcs"

func mayLinkCanonicalJSON(rel string) bool { return rel == "fingerprint" || rel == "idemhttp" }

// clients names the module that each driver may use beside the standard library.
var clients = map[string]string{
	"driver/bolt":     "go.etcd.io/bbolt",
	"driver/memory":   "",
	"driver/postgres": "github.com/jackc/pgx/v5",
	"driver/redis":    "github.com/redis/go-redis/v9",
	"driver/sqlite":   "modernc.org/sqlite",
}

// violations returns what the rules on imports forbid. imports holds what a
// package of this module imports itself, by the path in the module.
func violations(all map[string]listed, imports map[string][]string) (bad []string) {
	for importPath, p := range all {
		rel, ok := local(importPath)
		if !ok {
			continue
		}
		isDriver := strings.HasPrefix(rel, "driver/")
		client, known := clients[rel]
		if isDriver && !known {
			bad = append(bad, fmt.Sprintf("%s is no driver that the list of clients names", rel))
		}
		for _, dep := range p.Deps {
			depRel, ours := local(dep)
			switch {
			case dep == canonicalJSON && mayLinkCanonicalJSON(rel):
			case !ours && !all[dep].Standard && slices.Contains(standardOnly, rel):
				bad = append(bad, fmt.Sprintf("%s links %s: it may use only the standard library", importPath, dep))
			case isDriver && ours && depRel == "":
				bad = append(bad, fmt.Sprintf("%s links package idem: a driver knows only package driver", importPath))
			case (dep == "testing" || strings.HasPrefix(dep, "testing/")) && !mayLinkTesting(rel):
				bad = append(bad, fmt.Sprintf("%s links %s: that is for tests", importPath, dep))
			}
		}
		for _, dep := range imports[rel] {
			_, ours := local(dep)
			if isDriver && !ours && !all[dep].Standard && (client == "" || dep != client && !strings.HasPrefix(dep, client+"/")) {
				bad = append(bad, fmt.Sprintf("%s imports %s: a driver may use its store's client and the standard library", importPath, dep))
			}
		}
	}
	slices.Sort(bad)
	return bad
}

// mayLinkTesting reports whether a package serves tests: the suite, and the test
// servers under internal.
func mayLinkTesting(rel string) bool {
	return rel == "conformancetest" ||
		strings.HasPrefix(rel, "internal/") && strings.HasSuffix(path.Base(rel), "test")
}

func TestImports(t *testing.T) {
	all := listAll(t)
	imports := make(map[string][]string)
	for importPath, p := range all {
		if rel, ok := local(importPath); ok {
			for _, f := range parse(t, p) {
				for _, spec := range f.Imports {
					imports[rel] = append(imports[rel], strings.Trim(spec.Path.Value, `"`))
				}
			}
		}
	}
	if _, ok := all[module+"/driver"]; !ok {
		t.Fatal("go list did not name package driver")
	}
	for _, v := range violations(all, imports) {
		t.Error(v)
	}
}

func TestImportRules(t *testing.T) {
	standard := listed{Standard: true}
	third := listed{}
	for _, tt := range []struct {
		pkg, dep string
		want     bool
	}{
		{"", "fmt", false},
		{"", module + "/driver", false},
		{"", "example.com/third", true},
		{"driver", "example.com/third", true},
		{"idemhttp", "example.com/third", true},
		{"fingerprint", "example.com/third", true},
		{"fingerprint", canonicalJSON, false},
		{"", canonicalJSON, true},
		{"driver/redis", "github.com/redis/go-redis/v9", false},
		{"driver/redis", "github.com/redis/go-redis/v9/maintnotifications", false},
		{"driver/redis", "example.com/third", true},
		{"driver/redis", module, true},
		{"driver/redis", module + "/driver", false},
		{"driver/redis", "testing", true},
		{"driver/unheard-of", "fmt", true},
		{"", "testing", true},
		{"internal/proxy", "testing/fstest", true},
		{"internal/pgtest", "testing", false},
		{"conformancetest", "testing", false},
	} {
		dep := third
		if !strings.Contains(tt.dep, ".") {
			dep = standard
		}
		importPath := strings.TrimSuffix(module+"/"+tt.pkg, "/")
		all := map[string]listed{tt.dep: dep, importPath: {Deps: []string{tt.dep}}}
		got := violations(all, map[string][]string{tt.pkg: {tt.dep}})
		if (len(got) > 0) != tt.want {
			t.Errorf("%q imports %s: violations %q, want any: %v", tt.pkg, tt.dep, got, tt.want)
		}
	}
}

var fset = token.NewFileSet()

func parse(t *testing.T, p listed) []*ast.File {
	t.Helper()
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

func TestDocumented(t *testing.T) {
	for importPath, p := range listAll(t) {
		rel, ok := local(importPath)
		if !ok || len(p.GoFiles) == 0 || p.Name == "main" || strings.HasPrefix(rel, "internal/") || strings.HasPrefix(rel, "examples/") {
			continue
		}
		packageDoc := false
		for _, f := range parse(t, p) {
			packageDoc = packageDoc || f.Doc != nil
			for _, u := range undocumented(f) {
				t.Errorf("%v: exported %s has no doc comment", fset.Position(u.Pos()), u.Name)
			}
		}
		if !packageDoc {
			t.Errorf("package %s has no doc comment", importPath)
		}
	}
}

// undocumented returns the exported names of f without a comment: functions,
// methods of exported types, types, methods of interfaces, constants and
// variables. A comment on a group of constants or variables does for all of them.
func undocumented(f *ast.File) (names []*ast.Ident) {
	check := func(id *ast.Ident, comments ...*ast.CommentGroup) {
		if id.IsExported() && !slices.ContainsFunc(comments, func(c *ast.CommentGroup) bool { return c.Text() != "" }) {
			names = append(names, id)
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil || receiver(d.Recv.List[0].Type).IsExported() {
				check(d.Name, d.Doc)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, id := range spec.Names {
						check(id, d.Doc, spec.Doc, spec.Comment)
					}
				case *ast.TypeSpec:
					if d.Lparen.IsValid() {
						check(spec.Name, spec.Doc, spec.Comment)
					} else {
						check(spec.Name, d.Doc, spec.Comment)
					}
					if i, ok := spec.Type.(*ast.InterfaceType); ok && spec.Name.IsExported() {
						for _, m := range i.Methods.List {
							for _, id := range m.Names {
								check(id, m.Doc, m.Comment)
							}
						}
					}
				}
			}
		}
	}
	return names
}

// receiver returns the name of the type of a method.
func receiver(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return e.(*ast.Ident)
		}
	}
}

func TestUndocumented(t *testing.T) {
	const src = `package p

func F() {}

// G is documented.
func G() {}

type T[P any] struct{ Field int }

func (t *T[P]) M() {}

type hidden struct{}

func (hidden) M() {}

// I is documented.
type I interface {
	Bare()
	// Fine is documented.
	Fine()
}

// Documented as a group.
const (
	A = iota
	B
)

var (
	C int // C is documented.
	D int
)
`
	f, err := parser.ParseFile(fset, "p.go", src, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, id := range undocumented(f) {
		got = append(got, id.Name)
	}
	if want := []string{"F", "T", "M", "Bare", "D"}; !slices.Equal(got, want) {
		t.Errorf("undocumented = %v, want %v", got, want)
	}
}
