package lint

import (
	"go/ast"
	"go/token"
	"iter"
	"maps"
)

// globals may hold state for the whole process: dir.name and the reason.
var globals = map[string]string{
	"internal/dma.usage":       "off-heap bytes are the process's, and Usage reports them",
	"internal/mutant.active":   "exists only in builds with the tag ugds_mutants",
	"driver.regionIDs":         "ids are unique in the process",
	"internal/peermem.exports": "a descriptor names the same memory everywhere in the process",
	"meta.parked":              "parked goroutines stay until the process ends",
	"meta.abandoned":           "so do the databases behind a fence",
	"meta.locks":               "stands in for flock where a file system has no descriptors",
}

// stateful are the packages whose types are state by themselves.
var stateful = map[string]bool{"sync": true, "atomic": true}

// checkGlobals looks for package-level variables that a function assigns to, or
// whose type is made to be changed. It works on syntax alone: a variable that is
// changed through a pointer or a method escapes it.
func checkGlobals(t *Tree, r *report) {
	vars := map[string]map[string]bool{} // dir → names
	t.goFiles(func(f *File) {
		if f.Test() || f.Main() || under(f.Dir(), testLibraries...) {
			return
		}
		eachVar(f, func(id *ast.Ident, spec *ast.ValueSpec, i int) {
			if globals[f.Dir()+"."+id.Name] != "" || id.Name == "_" {
				return
			}
			if vars[f.Dir()] == nil {
				vars[f.Dir()] = map[string]bool{}
			}
			vars[f.Dir()][id.Name] = true
			if why := mutableType(spec, i); why != "" {
				r.add(f.Path, t.line(id.Pos()), "package variable %s is %s", id.Name, why)
			}
		})
	})
	t.goFiles(func(f *File) {
		if f.Test() || f.Main() || under(f.Dir(), testLibraries...) {
			return
		}
		eachAssigned(f, func(id *ast.Ident) {
			if vars[f.Dir()][id.Name] {
				r.add(f.Path, t.line(id.Pos()), "package variable %s is assigned to", id.Name)
			}
		})
	})
}

func eachVar(f *File, fn func(id *ast.Ident, spec *ast.ValueSpec, i int)) {
	for _, d := range f.AST.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR {
			for _, s := range g.Specs {
				for i, id := range s.(*ast.ValueSpec).Names {
					fn(id, s.(*ast.ValueSpec), i)
				}
			}
		}
	}
}

// mutableType says why a variable's declared type is state, or "".
func mutableType(s *ast.ValueSpec, i int) string {
	why := ""
	typ := ast.Expr(s.Type)
	if typ == nil && i < len(s.Values) {
		if lit, ok := s.Values[i].(*ast.CompositeLit); ok {
			typ = lit.Type
		}
	}
	if typ == nil {
		return ""
	}
	if m, ok := typ.(*ast.MapType); ok && m != nil && len(s.Values) == 0 {
		return "an empty map"
	}
	ast.Inspect(typ, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.ChanType:
			why = "a channel"
		case *ast.SelectorExpr:
			if id, ok := x.X.(*ast.Ident); ok && stateful[id.Name] {
				why = "a " + id.Name + "." + x.Sel.Name
			}
		}
		return true
	})
	return why
}

// eachAssigned calls fn for the root name of everything that a function of f
// assigns to, unless the function declared that name itself.
func eachAssigned(f *File, fn func(id *ast.Ident)) {
	visit := func(e ast.Expr) {
		if id := root(e); id != nil && (id.Obj == nil || packageLevel(f, id)) {
			fn(id)
		}
	}
	for _, d := range f.AST.Decls {
		ast.Inspect(d, func(n ast.Node) bool {
			switch x := n.(type) {
			case *ast.AssignStmt:
				if x.Tok != token.DEFINE {
					for _, e := range x.Lhs {
						visit(e)
					}
				}
			case *ast.IncDecStmt:
				visit(x.X)
			}
			return true
		})
	}
}

func packageLevel(f *File, id *ast.Ident) bool { return f.AST.Scope.Lookup(id.Name) == id.Obj }

// root is the variable at the left end of x.f[i].g, or nil.
func root(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}

func mapKeys[K comparable, V any](m map[K]V) iter.Seq[K] { return maps.Keys(m) }
