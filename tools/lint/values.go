package lint

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"strings"
)

// narrowed are conversions of a length to fewer than 64 bits that are right: file
// and expression, and why.
var narrowed = map[string]string{
	"driver/file/ring.go: uint32(len(c.iov))":        "a command has at most 1,024 vectors",
	"driver/ctrl/group.go: int32(len(l.wait))":       "submitters that wait, each with a goroutine",
	"driver/ctrl/queue.go: uint16(len(q.slots) - …)": "a queue has at most 65,536 entries",
	"alloc/slab.go: uint32(len(w))":                  "words of a bitmap of one slab",
	"alloc/class.go: uint8(len(t.classes))":          "there are fewer than 256 classes",
}

// checkNarrow finds uint32(len(x)) and the like where sizes of values are at home:
// a value or a region of more than 4 GiB would lose its upper bits (C-13).
func checkNarrow(t *Tree, r *report) {
	t.goFiles(func(f *File) {
		if f.Test() || !under(f.Dir(), "driver", "alloc") {
			return
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 {
				return true
			}
			to, ok := call.Fun.(*ast.Ident)
			if !ok || !narrow[to.Name] {
				return true
			}
			if x := lengthIn(call.Args[0]); x != "" && narrowed[f.Path+": "+to.Name+"("+x+")"] == "" {
				r.add(f.Path, t.line(n.Pos()), "%s(%s) drops the upper bits of a length", to.Name, x)
			}
			return true
		})
	})
}

var narrow = map[string]bool{"int8": true, "uint8": true, "int16": true, "uint16": true, "int32": true, "uint32": true}

// lengthIn is an expression that is a length, or begins with one; else "".
func lengthIn(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.BinaryExpr:
		if l := lengthIn(x.X); l != "" {
			return strings.TrimSuffix(l, " - …") + " - …"
		}
	case *ast.CallExpr:
		if id, ok := x.Fun.(*ast.Ident); ok && id.Name == "len" && len(x.Args) == 1 {
			return "len(" + dotted(x.Args[0]) + ")"
		}
	}
	return ""
}

// dotted writes a name such as a.b.
func dotted(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return dotted(x.X) + "." + x.Sel.Name
	}
	return "…"
}

// public are the packages whose named values other programs use.
var public = map[string]bool{"store": true, "driver": true, "gpu": true}

// checkValues: each named value of a public enumeration stands in a test; one that
// nobody tries is a promise that nobody keeps (E-09).
func checkValues(t *Tree, r *report) {
	tried := map[string]bool{}
	t.goFiles(func(f *File) {
		if !f.Test() && !under(f.Dir(), testLibraries...) {
			return
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				tried[id.Name] = true
			}
			return true
		})
	})
	t.goFiles(func(f *File) {
		if f.Test() || !public[f.Dir()] {
			return
		}
		for _, d := range f.AST.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.CONST {
				for _, id := range enumeration(g) {
					if !tried[id.Name] {
						r.add(f.Path, t.line(id.Pos()), "%s stands in no test", id.Name)
					}
				}
			}
		}
	})
}

// enumeration are the exported names of a group of constants that counts with iota.
func enumeration(g *ast.GenDecl) (out []*ast.Ident) {
	counts := false
	for _, s := range g.Specs {
		v := s.(*ast.ValueSpec)
		for _, e := range v.Values {
			ast.Inspect(e, func(n ast.Node) bool {
				id, ok := n.(*ast.Ident)
				counts = counts || ok && id.Name == "iota"
				return true
			})
		}
		for _, id := range v.Names {
			if id.IsExported() {
				out = append(out, id)
			}
		}
	}
	if !counts {
		return nil
	}
	return out
}

var testSpan = regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)(?:/[^`]*)?`")

// checkNamedTests: a document names only tests that exist.
func checkNamedTests(t *Tree, r *report) {
	have := map[string]bool{}
	t.goFiles(func(f *File) {
		if !f.Test() {
			return
		}
		for _, d := range f.AST.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				have[fn.Name.Name] = true
			}
		}
	})
	t.text(func(f *File) {
		if path.Ext(f.Path) != ".md" {
			return
		}
		eachLine(f.Data, func(n int, line string) {
			for _, m := range testSpan.FindAllStringSubmatch(line, -1) {
				if !have[m[1]] {
					r.add(f.Path, n, "names %s, which no test is called", m[1])
				}
			}
		})
	})
}
