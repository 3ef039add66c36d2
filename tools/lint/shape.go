package lint

import (
	"bytes"
	"go/ast"
	"go/format"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Limits of sizes, in lines. Tests read top to bottom and may be longer.
const (
	maxFuncLines     = 80
	maxTestFuncLines = 120
	maxFileLines     = 600
	maxTestFileLines = 900
)

// longFuncs may pass the limit: dir.name and the reason.
var longFuncs = map[string]string{}

func checkSize(t *Tree, r *report) {
	t.goFiles(func(f *File) {
		maxFunc, maxFile := maxFuncLines, maxFileLines
		if f.Test() {
			maxFunc, maxFile = maxTestFuncLines, maxTestFileLines
		}
		if n := bytes.Count(f.Data, []byte("\n")); n > maxFile {
			r.add(f.Path, 0, "%d lines; at most %d", n, maxFile)
		}
		for _, d := range f.AST.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || longFuncs[f.Dir()+"."+fn.Name.Name] != "" {
				continue
			}
			if n := t.line(fn.End()) - t.line(fn.Pos()) + 1; n > maxFunc {
				r.add(f.Path, t.line(fn.Pos()), "%s has %d lines; at most %d", fn.Name.Name, n, maxFunc)
			}
		}
	})
}

func checkFormat(t *Tree, r *report) {
	t.goFiles(func(f *File) {
		if out, err := format.Source(f.Data); err != nil || !bytes.Equal(out, f.Data) {
			r.add(f.Path, 0, "not formatted: run gofmt -w")
		}
	})
}

// checkDoc wants a package comment everywhere and a comment on each exported
// name of the packages that others can import.
func checkDoc(t *Tree, r *report) {
	commented := map[string]bool{}
	first := map[string]string{}
	t.goFiles(func(f *File) {
		if f.Test() {
			return
		}
		if first[f.Dir()] == "" {
			first[f.Dir()] = f.Path
		}
		if f.AST.Doc != nil {
			commented[f.Dir()] = true
		}
		if !under(f.Dir(), "internal") && !f.Main() {
			checkExported(t, r, f)
		}
	})
	for _, dir := range slices.Sorted(mapKeys(first)) {
		if !commented[dir] {
			r.add(first[dir], 0, "package %s has no package comment", dir)
		}
	}
}

func checkExported(t *Tree, r *report, f *File) {
	for _, d := range f.AST.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Doc == nil && d.Name.IsExported() && exportedReceiver(d) {
				r.add(f.Path, t.line(d.Pos()), "%s has no comment", d.Name.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if name, own := exportedSpec(s); name != "" && !own && d.Doc == nil {
					r.add(f.Path, t.line(s.Pos()), "%s has no comment", name)
				}
			}
		}
	}
}

// exportedReceiver tells whether a function is one, or a method of an exported type.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return true
	}
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return true
		}
	}
}

// exportedSpec gives the first exported name of a declaration, and whether it
// has a comment of its own.
func exportedSpec(s ast.Spec) (name string, commented bool) {
	switch s := s.(type) {
	case *ast.TypeSpec:
		if s.Name.IsExported() {
			return s.Name.Name, s.Doc != nil || s.Comment != nil
		}
	case *ast.ValueSpec:
		for _, id := range s.Names {
			if id.IsExported() {
				return id.Name, s.Doc != nil || s.Comment != nil
			}
		}
	}
	return "", false
}

func checkNames(t *Tree, r *report) {
	bad := []string{"util", "utils", "common", "helper", "helpers", "misc"}
	t.goFiles(func(f *File) {
		if name := strings.TrimSuffix(f.AST.Name.Name, "_test"); slices.Contains(bad, name) || slices.Contains(bad, path.Base(f.Dir())) {
			r.add(f.Path, t.line(f.AST.Name.Pos()), "package %s: name it after what it does", name)
		}
	})
}

var todo = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`)

func checkTodo(t *Tree, r *report) {
	t.goFiles(func(f *File) {
		for _, g := range f.AST.Comments {
			for _, c := range g.List {
				if m := todo.FindString(c.Text); m != "" {
					r.add(f.Path, t.line(c.Pos()), "%s in a comment: file an issue", m)
				}
			}
		}
	})
}
