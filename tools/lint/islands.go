package lint

import (
	"bytes"
	"go/ast"
	"path"
	"regexp"
)

// islands are the folders where unsafe and assembly may stand.
var islands = []string{"internal/mmio", "internal/dma", "internal/uring", "internal/unix", "internal/dl", "cmd/libugds"}

func checkUnsafe(t *Tree, r *report) {
	for _, f := range t.Files {
		if path.Ext(f.Path) == ".s" && !under(f.Dir(), islands...) {
			r.add(f.Path, 0, "assembly outside the islands")
		}
	}
	t.goFiles(func(f *File) {
		f.imports(func(p string, s *ast.ImportSpec) {
			if p == "unsafe" && !under(f.Dir(), islands...) {
				r.add(f.Path, t.line(s.Pos()), "unsafe outside the islands")
			}
			if p == "C" && !under(f.Dir(), "cmd/libugds") {
				r.add(f.Path, t.line(s.Pos()), "cgo outside cmd/libugds")
			}
		})
		if i := bytes.Index(f.Data, []byte("\n//go:"+"linkname ")); i >= 0 {
			r.add(f.Path, 1+bytes.Count(f.Data[:i+1], []byte("\n")), "go:"+"linkname")
		}
	})
}

// errnoNames are what every package may take from syscall: numbers to compare
// with, no calls.
var errnoNames = regexp.MustCompile(`^(E[A-Z0-9]+|Errno|SIG[A-Z0-9]+|Signal)$`)

// checkKernel: tests may prepare the world that they need, mounts for example.
func checkKernel(t *Tree, r *report) {
	t.goFiles(func(f *File) {
		if f.Test() || under(f.Dir(), "internal/unix", "internal/uring", testenv) {
			return
		}
		f.uses("syscall", func(sel *ast.SelectorExpr) {
			if !errnoNames.MatchString(sel.Sel.Name) {
				r.add(f.Path, t.line(sel.Pos()), "syscall.%s: system calls go through internal/unix", sel.Sel.Name)
			}
		})
	})
}

// testenv is the library through which tests print skips and read flags.
const testenv = "internal/testenv"

// testLibraries are linked by tests only; CheckRelease watches that.
var testLibraries = []string{testenv, "driver/drivertest", "driver/hw/hwtest", "meta/metatest", "store/crashtest", "tools/lint"}

var envCalls = map[string]bool{"Getenv": true, "LookupEnv": true, "Environ": true, "ExpandEnv": true, "Setenv": true, "Args": true}

// checkEnv: tests and programs under tools may read flags.
func checkEnv(t *Tree, r *report) {
	t.goFiles(func(f *File) {
		if under(f.Dir(), "cmd") || f.Test() || f.Main() && under(f.Dir(), "tools") || f.Dir() == testenv {
			return
		}
		f.imports(func(p string, s *ast.ImportSpec) {
			if p == "flag" {
				r.add(f.Path, t.line(s.Pos()), "imports flag: flags are read in cmd")
			}
		})
		f.uses("os", func(sel *ast.SelectorExpr) {
			if envCalls[sel.Sel.Name] {
				r.add(f.Path, t.line(sel.Pos()), "os.%s: flags and environment are read in cmd", sel.Sel.Name)
			}
		})
	})
}

var quietCalls = map[string]map[string]bool{
	"fmt": {"Print": true, "Printf": true, "Println": true},
	"os":  {"Exit": true, "Stdout": true, "Stderr": true, "Stdin": true},
}

// checkQuiet: what a library has to say it returns; programs and tests print.
func checkQuiet(t *Tree, r *report) {
	t.goFiles(func(f *File) {
		if under(f.Dir(), "cmd") || f.Test() || f.Main() || f.Dir() == testenv {
			return
		}
		f.imports(func(p string, s *ast.ImportSpec) {
			if p == "log" || under(p, "log/slog") {
				r.add(f.Path, t.line(s.Pos()), "imports %s: libraries do not log", p)
			}
		})
		for pkg, names := range quietCalls {
			f.uses(pkg, func(sel *ast.SelectorExpr) {
				if names[sel.Sel.Name] {
					r.add(f.Path, t.line(sel.Pos()), "%s.%s in a library", pkg, sel.Sel.Name)
				}
			})
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			if c, ok := n.(*ast.CallExpr); ok {
				if id, ok := c.Fun.(*ast.Ident); ok && id.Obj == nil && (id.Name == "print" || id.Name == "println") {
					r.add(f.Path, t.line(c.Pos()), "%s in a library", id.Name)
				}
			}
			return true
		})
	})
}

var rawAtomic = regexp.MustCompile(`^(Store|Load|Add|Swap|CompareAndSwap|And|Or)(Int|Uint|Pointer)`)

func checkAtomics(t *Tree, r *report) {
	t.goFiles(func(f *File) {
		if under(f.Dir(), islands...) {
			return
		}
		f.uses("sync/atomic", func(sel *ast.SelectorExpr) {
			if rawAtomic.MatchString(sel.Sel.Name) {
				r.add(f.Path, t.line(sel.Pos()), "atomic.%s: use a typed atomic", sel.Sel.Name)
			}
		})
	})
}
