package lint

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const repo = "../.."

// TestRepository runs every rule over the repository.
func TestRepository(t *testing.T) {
	tree, err := Load(repo)
	if err != nil {
		t.Fatal(err)
	}
	if len(tree.Files) < 20 {
		t.Fatalf("only %d files found under %s", len(tree.Files), repo)
	}
	for _, f := range Check(tree, Rules()...) {
		t.Error(f)
	}
}

// TestRelease looks at what the programs under cmd link.
func TestRelease(t *testing.T) {
	pkgs, err := GoList(repo)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range CheckRelease(pkgs) {
		t.Error(f)
	}
}

func TestReleaseCanFail(t *testing.T) {
	if len(CheckRelease(nil)) != 1 {
		t.Error("no program at all passed")
	}
	for _, dep := range testLibraries {
		found := CheckRelease([]Package{{ImportPath: Module + "/cmd/x", Deps: []string{"fmt", Module + "/" + dep}}})
		if len(found) != 1 || found[0].Path != "cmd/x" {
			t.Errorf("%s: found %v", dep, found)
		}
	}
	if found := CheckRelease([]Package{{ImportPath: "x", Deps: []string{"fmt", Module + "/store"}}}); len(found) != 0 {
		t.Errorf("clean program: found %v", found)
	}
}

// sample is a tree that keeps every rule.
func sample() map[string]string {
	return map[string]string{
		"Makefile":                   "build:\n\ttrue\ntest-all: build\n\ttrue\n",
		"README.md":                  "See [the rules](docs/rules.md#top), [a site](https://example.org) and `alloc/alloc.go`.\n\nRun `make build` or `make test-all`.\n",
		"docs/rules.md":              "Back to [the start](../README.md), or to `internal/unix`.\n",
		"alloc/alloc.go":             "// Package alloc does arithmetic.\npackage alloc\n\nimport \"fmt\"\n\n// Name is for people; docs/rules.md says more.\nfunc Name() string { return fmt.Sprint(1) }\n",
		"alloc/alloc_test.go":        "package alloc\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nfunc TestName(t *testing.T) { t.Log(Name(), os.Getenv(\"X\")) }\n",
		"internal/unix/unix.go":      "// Package unix is the door.\npackage unix\n\nimport (\n\t\"syscall\"\n\t\"unsafe\"\n\n\t\"golang.org/x/sys/unix\"\n)\n\nvar size = unsafe.Sizeof(unix.Stat_t{})\n\nfunc pid() int { return syscall.Getpid() + int(size) }\n",
		"meta/meta.go":               "// Package meta keeps what is durable.\npackage meta\n\nimport (\n\t_ \"github.com/cockroachdb/pebble/v2\"\n\t_ \"" + Module + "/internal/unix\"\n)\n",
		"store/store.go":             "// Package store keeps objects.\npackage store\n\nimport (\n\t\"errors\"\n\t\"syscall\"\n\n\t_ \"" + Module + "/alloc\"\n\t_ \"" + Module + "/meta\"\n)\n\n// ErrFull is full.\nvar ErrFull = errors.New(syscall.ENOSPC.Error())\n",
		"store/store_test.go":        "package store\n\nimport _ \"" + Module + "/meta/metatest\"\n",
		"meta/metatest/crash.go":     "// Package metatest helps tests.\npackage metatest\n\nimport _ \"" + Module + "/meta\"\n",
		"tools/ctl/ctl.go":           "// Package ctl has the verbs.\npackage ctl\n\nimport _ \"github.com/pelletier/go-toml/v2\"\n",
		"tools/bench/main.go":        "// Command bench measures.\npackage main\n\nimport (\n\t\"flag\"\n\t\"fmt\"\n\n\t_ \"github.com/cockroachdb/pebble/v2\"\n)\n\nfunc main() { flag.Parse(); fmt.Println(1) }\n",
		"cmd/ugdsctl/main.go":        "// Command ugdsctl is the tool.\npackage main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n\n\t_ \"" + Module + "/tools/ctl\"\n)\n\nfunc main() { fmt.Println(os.Getenv(\"X\")) }\n",
		"internal/unix/barrier.s":    "// nothing\n",
		"driver/driver.go":           "// Package driver is the contract.\npackage driver\n\nimport \"sync/atomic\"\n\n// N counts.\ntype N struct{ n atomic.Int64 }\n\nvar table = map[int]string{1: \"a\"}\n\n// Name looks up.\nfunc (n *N) Name() string { n.n.Store(2); return table[1] }\n",
		"driver/drivertest/suite.go": "// Package drivertest is the suite.\npackage drivertest\n\nimport _ \"" + Module + "/driver\"\n",
	}
}

func write(t *testing.T, files map[string]string) *Tree {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestSampleIsClean(t *testing.T) {
	for _, f := range Check(write(t, sample()), Rules()...) {
		t.Error(f)
	}
}

// bad are changes of the sample, each of which breaks exactly one rule.
var bad = []struct {
	rule, path, data, want string
}{
	{"layers", "alloc/x.go", "package alloc\n\nimport _ \"" + Module + "/driver\"\n", "alloc imports driver"},
	{"layers", "driver/x.go", "package driver\n\nimport _ \"" + Module + "/gpu\"\n", "driver imports gpu"},
	{"layers", "driver/x_test.go", "package driver\n\nimport _ \"" + Module + "/store\"\n", "driver imports store"},
	{"layers", "store/x.go", "package store\n\nimport _ \"" + Module + "/driver/file\"\n", "store imports driver/file"},
	{"layers", "store/x.go", "package store\n\nimport _ \"" + Module + "/meta/metatest\"\n", "store imports meta/metatest"},
	{"layers", "internal/unix/x.go", "package unix\n\nimport _ \"" + Module + "/alloc\"\n", "internal/unix imports alloc"},
	{"layers", "tools/ctl/x.go", "package ctl\n\nimport _ \"" + Module + "/cmd/ugdsctl\"\n", "nothing but cmd may"},
	{"layers", "extra/x.go", "// Package extra is new.\npackage extra\n", "no line in the import table"},
	{"modules", "store/x.go", "package store\n\nimport _ \"github.com/cockroachdb/pebble/v2\"\n", "belongs to meta"},
	{"modules", "store/x_test.go", "package store\n\nimport _ \"github.com/cockroachdb/pebble/v2/vfs\"\n", "belongs to meta"},
	{"modules", "driver/x.go", "package driver\n\nimport _ \"golang.org/x/sys/unix\"\n", "belongs to internal/unix"},
	{"modules", "gpu/dl/x.go", "// Package dl calls.\npackage dl\n\nimport _ \"github.com/ebitengine/purego\"\n", "belongs to gpu/cuda"},
	{"modules", "tools/ctl/x.go", "package ctl\n\nimport _ \"github.com/spf13/cobra\"\n", "belongs to cmd"},
	{"modules", "store/x.go", "package store\n\nimport _ \"example.org/new\"\n", "a module without a place"},
	{"modules", "store/x.go", "package store\n\nimport _ \"math/rand\"\n", "math/rand/v2"},
	{"gomod", "go.mod", "module x\n\nrequire (\n\tgithub.com/cockroachdb/pebble/v2 v2.1.7 // indirect\n\texample.org/other v1.0.0 // indirect\n)\n", "meta/meta.go imports it"},
	{"gomod", "go.mod", "module x\n\nrequire golang.org/x/sys v0.1.0 // indirect\n", "internal/unix/unix.go imports it"},
	{"pure", "alloc/x.go", "package alloc\n\nimport _ \"time\"\n", "alloc imports time"},
	{"pure", "driver/nvme/x.go", "// Package nvme is types.\npackage nvme\n\nimport _ \"os\"\n", "imports os"},
	{"unsafe", "store/x.go", "package store\n\nimport _ \"unsafe\"\n", "unsafe outside"},
	{"unsafe", "store/x_test.go", "package store\n\nimport _ \"unsafe\"\n", "unsafe outside"},
	{"unsafe", "driver/x.s", "// TEXT\n", "assembly outside"},
	{"unsafe", "internal/unix/x.go", "package unix\n\nimport \"C\"\n", "cgo outside"},
	{"unsafe", "store/x.go", "package store\n\n//go:link" + "name x y\nfunc x()\n", "go:link" + "name"},
	{"kernel", "driver/x.go", "package driver\n\nimport \"syscall\"\n\nfunc pid() int { return syscall.Getpid() }\n", "syscall.Getpid"},
	{"env", "store/x.go", "package store\n\nimport \"os\"\n\nfunc x() string { return os.Getenv(\"X\") }\n", "os.Getenv"},
	{"env", "tools/ctl/x.go", "package ctl\n\nimport _ \"flag\"\n", "flags are read in cmd"},
	{"env", "store/x.go", "package store\n\nimport other \"os\"\n\nfunc x() []string { return other.Args }\n", "os.Args"},
	{"quiet", "store/x.go", "package store\n\nimport \"fmt\"\n\nfunc x() { fmt.Println(1) }\n", "fmt.Println"},
	{"quiet", "tools/ctl/x.go", "package ctl\n\nimport \"os\"\n\nfunc x() { os.Exit(1) }\n", "os.Exit"},
	{"quiet", "store/x.go", "package store\n\nimport _ \"log/slog\"\n", "do not log"},
	{"quiet", "store/x.go", "package store\n\nfunc x() { println(1) }\n", "println"},
	{"globals", "store/x.go", "package store\n\nvar count int\n\nfunc x() { count++ }\n", "count is assigned to"},
	{"globals", "store/x.go", "package store\n\nvar table = []int{1}\n\nfunc x() { table[0] = 2 }\n", "table is assigned to"},
	{"globals", "store/x.go", "package store\n\nimport \"sync\"\n\nvar mu sync.Mutex\n", "mu is a sync.Mutex"},
	{"globals", "store/x.go", "package store\n\nvar seen map[string]bool\n", "an empty map"},
	{"atomics", "driver/x.go", "package driver\n\nimport \"sync/atomic\"\n\nfunc x(p *uint32) { atomic.StoreUint32(p, 1) }\n", "atomic.StoreUint32"},
	{"gofmt", "store/x.go", "package store\nfunc  x() {}\n", "not formatted"},
	{"size", "store/x.go", "package store\n\nfunc x() {\n" + strings.Repeat("\tx()\n", maxFuncLines-1) + "}\n", "81 lines"},
	{"size", "store/x_test.go", "package store\n\nfunc x() {\n" + strings.Repeat("\tx()\n", maxTestFuncLines-1) + "}\n", "121 lines"},
	{"size", "store/x.go", "package store\n" + strings.Repeat("\n// A comment.\n", maxFileLines/2), "601 lines"},
	{"doc", "store/x.go", "package store\n\nfunc X() {}\n", "X has no comment"},
	{"doc", "store/x.go", "package store\n\ntype X int\n", "X has no comment"},
	{"doc", "store/x.go", "package store\n\nconst (\n\tx = 1\n\tY = 2\n)\n", "Y has no comment"},
	{"doc", "driver/x.go", "package driver\n\nfunc (n *N) Do() {}\n", "Do has no comment"},
	{"doc", "gpu/x.go", "package gpu\n", "no package comment"},
	{"names", "internal/util/x.go", "// Package util is a drawer.\npackage util\n", "name it after"},
	{"todo", "store/x.go", "package store\n\n// TO" + "DO: later.\n", "file an issue"},
	{"workplace", "docs/x.md", "Look into /wor" + "k/main.\n", "a path of one workplace"},
	{"workplace", "Makefile", "build:\n\tcat ../sha" + "red/x\ntest-all:\n\ttrue\n", "a path of one workplace"},
	{"links", "docs/x.md", "[gone](gone.md)\n", "docs/gone.md, which does not exist"},
	{"links", "docs/x.md", "Run `make tea`.\n", "make tea, which is no target"},
	{"links", "docs/x.md", "    make tea\n", "make tea, which is no target"},
	{"links", "docs/x.md", "See `driver/tape`.\n", "driver/tape, which does not exist"},
	{"links", "store/x.go", "package store\n\n// See docs/" + "gone.md.\n", "which does not exist"},
	{"links", "docs/x.md", "no end", "does not end in a newline"},
	{"narrow", "driver/x.go", "package driver\n\nfunc x(b []byte) uint32 { return uint32(len(b)) }\n", "uint32(len(b)) drops"},
	{"narrow", "alloc/x.go", "package alloc\n\nfunc x(b []byte) int32 { return int32(len(b) + 1) }\n", "int32(len(b) - …) drops"},
	{"values", "store/x.go", "package store\n\n// Mode is a mode.\ntype Mode uint8\n\n// The modes.\nconst (\n\tA Mode = iota\n)\n", "A stands in no test"},
	{"tests", "docs/x.md", "See `TestGone`.\n", "names TestGone"},
	{"tests", "docs/x.md", "See `FuzzGone/seed 1`.\n", "names FuzzGone"},
}

// TestRulesCanFail breaks each rule and looks for the one finding.
func TestRulesCanFail(t *testing.T) {
	broken := map[string]bool{}
	for _, b := range bad {
		broken[b.rule] = true
		files := sample()
		files[b.path] = b.data
		found := Check(write(t, files), Rules()...)
		if len(found) != 1 || found[0].Rule != b.rule || found[0].Path != b.path || !strings.Contains(found[0].Text, b.want) {
			t.Errorf("%s: %s: want one finding %q, got %v", b.rule, b.path, b.want, found)
		}
	}
	for _, r := range Rules() {
		if !broken[r.Name] {
			t.Errorf("rule %s has no example that breaks it", r.Name)
		}
	}
}

// TestLimitsAreInclusive: what is exactly as long as allowed passes.
func TestLimitsAreInclusive(t *testing.T) {
	files := sample()
	files["store/x.go"] = "package store\n\nfunc x() {\n" + strings.Repeat("\tx()\n", maxFuncLines-2) + "}\n"
	files["store/y.go"] = "package store\n\n// A comment.\n" + strings.Repeat("// A comment.\n", maxFileLines-3)
	for _, f := range Check(write(t, files), Rules()...) {
		t.Error(f)
	}
}
