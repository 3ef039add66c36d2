// Package lint checks the rules of this repository: which layer imports which,
// where unsafe may stand, who reads flags and the environment, how long a
// function may be, whether the documents still tell the truth. Each rule is a
// function over a Tree; the package's test runs them all over the repository
// and shows, on a small made-up tree, that each of them can fail.
package lint

import (
	"cmp"
	"fmt"
	"slices"
)

// Module is the import path of this repository.
const Module = "github.com/ugds-store/ugds"

// Finding is one place where a rule is broken.
type Finding struct {
	Rule string
	Path string // relative to the root, with slashes
	Line int    // 0 when the whole file or package is meant
	Text string
}

// String prints path:line: text (rule).
func (f Finding) String() string {
	if f.Line == 0 {
		return fmt.Sprintf("%s: %s (%s)", f.Path, f.Text, f.Rule)
	}
	return fmt.Sprintf("%s:%d: %s (%s)", f.Path, f.Line, f.Text, f.Rule)
}

// Rule is one check.
type Rule struct {
	Name  string
	Why   string
	check func(t *Tree, r *report)
}

// Rules lists every check that needs only the text of the tree.
func Rules() []Rule {
	return []Rule{
		{"layers", "imports point down only", checkLayers},
		{"modules", "each third-party module has one place", checkModules},
		{"gomod", "go.mod tells direct dependencies from the others", checkGoMod},
		{"pure", "alloc and driver/nvme do no I/O and know no clock", checkPure},
		{"unsafe", "unsafe, assembly and cgo stay in their islands", checkUnsafe},
		{"kernel", "internal/unix is the one door to the kernel", checkKernel},
		{"env", "only cmd reads flags and the environment", checkEnv},
		{"quiet", "libraries neither print nor log nor exit", checkQuiet},
		{"globals", "two stores in one process never meet", checkGlobals},
		{"atomics", "typed atomics only: a raw atomic store must never reach a register", checkAtomics},
		{"gofmt", "one format", checkFormat},
		{"size", "functions fit a screen", checkSize},
		{"doc", "exported names are documented, every package says what it is for", checkDoc},
		{"names", "a package is named after what it does", checkNames},
		{"todo", "open work lives in the issue list, not in comments", checkTodo},
		{"workplace", "no file names a path of one workplace", checkWorkplace},
		{"links", "files and make targets named in documents exist", checkLinks},
		{"narrow", "lengths keep their 64 bits", checkNarrow},
		{"values", "each value of a public enumeration is tried by a test", checkValues},
		{"tests", "tests named in documents exist", checkNamedTests},
	}
}

// Check runs the rules over the tree and returns what they found, in order.
func Check(t *Tree, rules ...Rule) []Finding {
	var r report
	for _, rule := range rules {
		r.rule = rule.Name
		rule.check(t, &r)
	}
	slices.SortStableFunc(r.found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Line, b.Line))
	})
	return r.found
}

// report collects findings.
type report struct {
	rule  string
	found []Finding
}

func (r *report) add(path string, line int, format string, args ...any) {
	r.found = append(r.found, Finding{r.rule, path, line, fmt.Sprintf(format, args...)})
}
