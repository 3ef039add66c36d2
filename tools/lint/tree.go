package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// File is one file of the tree. AST is nil unless it is Go.
type File struct {
	Path string // relative to the root, with slashes
	Data []byte
	AST  *ast.File
}

// Dir is the folder, "." for the root.
func (f *File) Dir() string { return path.Dir(f.Path) }

// Test tells whether the file belongs to a test.
func (f *File) Test() bool { return strings.HasSuffix(f.Path, "_test.go") }

// Main tells whether the file belongs to a program.
func (f *File) Main() bool { return f.AST != nil && f.AST.Name.Name == "main" }

// Tree is the repository, or a made-up one.
type Tree struct {
	Root  string
	Files []*File
	fset  *token.FileSet
}

// Load reads the files of the tree under root: those that git tracks or would
// track, or, where git cannot tell, all of them.
func Load(root string) (*Tree, error) {
	names, err := list(root)
	if err != nil {
		return nil, err
	}
	t := &Tree{Root: root, fset: token.NewFileSet()}
	for _, name := range names {
		full := filepath.Join(root, filepath.FromSlash(name))
		info, err := os.Lstat(full)
		if err != nil || !info.Mode().IsRegular() {
			continue // deleted in the working copy, or a link
		}
		data, err := os.ReadFile(full)
		if err != nil {
			return nil, err
		}
		f := &File{Path: name, Data: data}
		if strings.HasSuffix(name, ".go") && !strings.Contains(name, "testdata/") {
			f.AST, err = parser.ParseFile(t.fset, name, data, parser.ParseComments)
			if err != nil {
				return nil, fmt.Errorf("parse %s: %w", name, err)
			}
		}
		t.Files = append(t.Files, f)
	}
	return t, nil
}

func list(root string) ([]string, error) {
	if _, err := os.Stat(filepath.Join(root, ".git")); err == nil {
		cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
		cmd.Dir = root
		if out, err := cmd.Output(); err == nil {
			names := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
			slices.Sort(names)
			return slices.Compact(names), nil
		}
	}
	var names []string
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != root && (d.Name() == "bin" || strings.HasPrefix(d.Name(), ".") && d.Name() != ".ci") {
			return filepath.SkipDir
		}
		if d.Type().IsRegular() {
			rel, _ := filepath.Rel(root, p) // both are under root
			names = append(names, filepath.ToSlash(rel))
		}
		return nil
	})
	return names, err
}

// goFiles calls fn for each Go file.
func (t *Tree) goFiles(fn func(f *File)) {
	for _, f := range t.Files {
		if f.AST != nil {
			fn(f)
		}
	}
}

// text calls fn for each file that is text.
func (t *Tree) text(fn func(f *File)) {
	for _, f := range t.Files {
		if !bytes.ContainsRune(f.Data[:min(len(f.Data), 8192)], 0) {
			fn(f)
		}
	}
}

// exists tells whether a file or folder of that name is part of the tree.
func (t *Tree) exists(name string) bool {
	name = strings.TrimSuffix(name, "/")
	for _, f := range t.Files {
		if f.Path == name || strings.HasPrefix(f.Path, name+"/") {
			return true
		}
	}
	return name == "" || name == "."
}

func (t *Tree) line(p token.Pos) int { return t.fset.Position(p).Line }

// imports calls fn for each import of f.
func (f *File) imports(fn func(p string, spec *ast.ImportSpec)) {
	for _, s := range f.AST.Imports {
		p, _ := strconv.Unquote(s.Path.Value) // the parser has checked it
		fn(p, s)
	}
}

// uses calls fn for each selector x.Sel of f where x is the imported package pkg.
func (f *File) uses(pkg string, fn func(sel *ast.SelectorExpr)) {
	name := ""
	f.imports(func(p string, s *ast.ImportSpec) {
		if p == pkg {
			if name = path.Base(p); s.Name != nil {
				name = s.Name.Name
			}
		}
	})
	if name == "" {
		return
	}
	ast.Inspect(f.AST, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if id, ok := sel.X.(*ast.Ident); ok && id.Name == name && id.Obj == nil {
			fn(sel)
		}
		return true
	})
}

// under tells whether dir is one of the folders or lies below one.
func under(dir string, folders ...string) bool {
	for _, f := range folders {
		if dir == f || strings.HasPrefix(dir, f+"/") {
			return true
		}
	}
	return false
}
