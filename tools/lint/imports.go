package lint

import (
	"go/ast"
	"regexp"
	"strings"
)

// layer is one line of the import table. A folder that ends in /... stands for
// everything below it. internal is open to all and never listed.
type layer struct {
	folder string
	may    []string // "*" for anything of ours
	tests  []string // what its tests may import besides
}

// layers is the import table of docs/architecture.md; the longest folder that
// matches counts. Nothing but cmd may import cmd.
var layers = []layer{
	{"cmd/...", []string{"*"}, nil},
	{"tools/...", []string{"*"}, nil},
	{"store", []string{"driver", "gpu", "gpu/xfer", "alloc", "meta"},
		[]string{"store/...", "driver/drivertest", "driver/file", "driver/ctrl", "driver/hw/sim", "driver/nvme", "gpu/host", "meta/metatest"}},
	{"store/...", []string{"store", "store/...", "driver", "driver/drivertest", "driver/file", "driver/ctrl", "driver/hw/sim", "driver/nvme",
		"gpu", "gpu/xfer", "alloc", "meta", "meta/metatest"}, nil},
	{"meta", nil, []string{"meta/metatest"}},
	{"meta/...", []string{"meta"}, nil},
	{"alloc", nil, nil},
	{"gpu", nil, nil},
	{"gpu/hip", []string{"gpu", "gpu/native"}, []string{"gpu/gputest"}}, // before gpu/..., which is as long
	{"gpu/...", []string{"gpu"}, []string{"gpu/gputest"}},
	{"gpu/cuda", []string{"gpu", "gpu/native"}, []string{"gpu/gputest"}},
	{"gpu/xfer", []string{"driver", "gpu"}, []string{"gpu/cuda", "gpu/host", "driver/drivertest", "driver/file", "driver/ctrl", "driver/hw/sim", "driver/nvme"}},
	{"driver", nil, []string{"driver/drivertest"}},
	{"driver/drivertest", []string{"driver"}, nil},
	{"driver/nvme", nil, nil},
	{"driver/hw", nil, nil},
	{"driver/hw/...", []string{"driver/hw", "driver/nvme"}, []string{"driver/hw/hwtest"}},
	{"driver/ctrl", []string{"driver", "driver/nvme", "driver/hw"}, []string{"driver/drivertest", "driver/hw/sim"}},
	{"driver/file", []string{"driver"}, []string{"driver/drivertest"}},
	{"driver/probe", []string{"driver", "driver/..."}, nil},
	{"internal/...", nil, nil},
}

func findLayer(dir string) *layer {
	var best *layer
	for i := range layers {
		l := &layers[i]
		if matches(dir, l.folder) && (best == nil || len(l.folder) > len(best.folder)) {
			best = l
		}
	}
	return best
}

// matches tells whether dir is the folder, or below it for a pattern with /....
func matches(dir, pattern string) bool {
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return strings.HasPrefix(dir, base+"/")
	}
	return dir == pattern
}

func matchesAny(dir string, patterns []string) bool {
	for _, p := range patterns {
		if p == "*" || matches(dir, p) {
			return true
		}
	}
	return false
}

func checkLayers(t *Tree, r *report) {
	t.goFiles(func(f *File) {
		dir := f.Dir()
		l := findLayer(dir)
		if l == nil {
			r.add(f.Path, 0, "package %s has no line in the import table", dir)
			return
		}
		f.imports(func(p string, s *ast.ImportSpec) {
			to, ours := strings.CutPrefix(p, Module+"/")
			switch {
			case !ours || to == dir:
			case under(to, "cmd") && !under(dir, "cmd"):
				r.add(f.Path, t.line(s.Pos()), "imports %s: nothing but cmd may", to)
			case matches(to, "internal/..."):
			case matchesAny(to, l.may):
			case f.Test() && matchesAny(to, l.tests):
			default:
				r.add(f.Path, t.line(s.Pos()), "%s imports %s, which is not below it", dir, to)
			}
		})
	})
}

// modules says where each third-party module may be imported.
var modules = []struct {
	prefix string
	in     []string // folders and what is below them
	tests  bool     // and in every test
}{
	{"github.com/cockroachdb/pebble", []string{"meta", "tools/bench"}, false},
	{"github.com/cockroachdb/datadriven", nil, true},
	{"golang.org/x/sys/unix", []string{"internal/unix"}, false},
	{"github.com/ebitengine/purego", []string{"gpu/cuda", "gpu/hip"}, false},
	{"github.com/spf13/cobra", []string{"cmd"}, false},
	{"github.com/spf13/pflag", []string{"cmd"}, false},
	{"github.com/dchest/siphash", []string{"store"}, false},
	{"github.com/pelletier/go-toml/v2", []string{"tools/ctl"}, false},
	{"github.com/vbauerster/mpb/v8", []string{"cmd"}, false},
}

func checkModules(t *Tree, r *report) {
	t.goFiles(func(f *File) {
		f.imports(func(p string, s *ast.ImportSpec) {
			first, _, _ := strings.Cut(p, "/")
			if !strings.Contains(first, ".") || under(p, Module) {
				return
			}
			for _, m := range modules {
				if under(p, m.prefix) {
					if !under(f.Dir(), m.in...) && !(m.tests && f.Test()) {
						r.add(f.Path, t.line(s.Pos()), "imports %s, which belongs to %s", p, strings.Join(m.in, ", "))
					}
					return
				}
			}
			r.add(f.Path, t.line(s.Pos()), "imports %s, a module without a place", p)
		})
		f.imports(func(p string, s *ast.ImportSpec) {
			if p == "math/rand" {
				r.add(f.Path, t.line(s.Pos()), "imports math/rand: use math/rand/v2 with a seed")
			}
		})
	})
}

var indirect = regexp.MustCompile(`(?m)^\s*(?:require )?(\S+) v\S+ // indirect$`)

// checkGoMod: go.mod lists what we import as ours.
func checkGoMod(t *Tree, r *report) {
	var mods []string
	for _, f := range t.Files {
		if f.Path == "go.mod" {
			for _, m := range indirect.FindAllSubmatch(f.Data, -1) {
				mods = append(mods, string(m[1]))
			}
		}
	}
	told := map[string]bool{}
	t.goFiles(func(f *File) {
		f.imports(func(p string, s *ast.ImportSpec) {
			for _, m := range mods {
				if under(p, m) && !told[m] {
					told[m] = true
					r.add("go.mod", 0, "%s is marked indirect, but %s imports it", m, f.Path)
				}
			}
		})
	})
}

// checkPure keeps I/O and clocks out of the arithmetic layers; tests may.
func checkPure(t *Tree, r *report) {
	banned := map[string]bool{"os": true, "io": true, "net": true, "time": true, "syscall": true, "os/exec": true, "io/fs": true}
	t.goFiles(func(f *File) {
		if f.Test() || !under(f.Dir(), "alloc", "driver/nvme") {
			return
		}
		f.imports(func(p string, s *ast.ImportSpec) {
			if banned[p] {
				r.add(f.Path, t.line(s.Pos()), "%s imports %s", f.Dir(), p)
			}
		})
	})
}
