// Command lab runs tests on controllers and a kernel that this project did not
// write: it boots QEMU with an NVMe controller, an IOMMU and a device BAR as GPU
// memory, once for each shape of machine, and runs test binaries in the guest.
//
//	lab [-full | -kasan] [-jobs N] [-shape REGEXP] [-run REGEXP] [-count N] [-cache DIR] [-keep]
//
// It installs what it needs when it runs as root, and takes its kernel from the
// Debian archive that this machine uses. KVM is used where it works. The exit
// status is 0 when every test passed and the kernels had nothing to complain of.
// docs/testing.md, "The lab", describes it.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

var options struct {
	full, keep, update, verbose bool
	kasan                       bool
	shape, run, cache, accel    string
	cover, trace                string
	seed                        uint64
	jobs, count                 int
}

func say(format string, args ...any) { fmt.Printf("lab: "+format+"\n", args...) }

func main() {
	flag.BoolVar(&options.full, "full", false, "the long shapes too")
	flag.BoolVar(&options.kasan, "kasan", false, "the shapes of the module, and of VFIO by iommufd, under a kernel that watches it, built from source")
	flag.BoolVar(&options.keep, "keep", false, "keep images and logs, and say where")
	flag.BoolVar(&options.update, "update", false, "ask the archive for a newer kernel")
	flag.BoolVar(&options.verbose, "v", false, "print everything that the guests wrote")
	flag.StringVar(&options.shape, "shape", "", "only shapes that match")
	flag.StringVar(&options.run, "run", "", "only tests that match, as for go test")
	flag.StringVar(&options.cache, "cache", os.Getenv("UGDS_LAB_CACHE"), "folder for kernels")
	flag.IntVar(&options.count, "count", 1, "how often each test runs, one boot for all")
	flag.IntVar(&options.jobs, "jobs", 1, "how many machines run at the same time")
	flag.Uint64Var(&options.seed, "seed", 0, "of the power cuts; 0 takes one from the clock")
	flag.StringVar(&options.cover, "cover", "", "file for the cover profile of driver/... in the guests")
	flag.StringVar(&options.trace, "trace", "", "replay the first requests of this file, one a line in JSON, instead of made ones")
	flag.StringVar(&options.accel, "accel", "", "kvm or tcg; found by itself when empty")
	flag.Parse()
	code, err := lab()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		code = 2
	}
	os.Exit(code)
}

func lab() (int, error) {
	if err := need(programs); err != nil {
		return 2, err
	}
	if options.cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return 2, err
		}
		options.cache = filepath.Join(dir, "ugds-lab")
	}
	cache, err := filepath.Abs(options.cache)
	if err != nil {
		return 2, err
	}
	find := findKernel
	if options.kasan {
		find, shapes, patience = kasanKernel, kasanShapes(), kasanPatience
	}
	k, err := find(cache, options.update)
	if err != nil {
		return 2, err
	}
	pattern, err := regexp.Compile(options.shape)
	if err != nil {
		return 2, err
	}
	mods, err := indexModules(k.Modules)
	if err != nil {
		return 2, err
	}
	tmp, err := os.MkdirTemp("", "ugds-lab-")
	if err != nil {
		return 2, err
	}
	if options.keep {
		say("files are kept in %s", tmp)
	} else {
		defer os.RemoveAll(tmp)
	}
	if options.accel == "" {
		options.accel = accelerator(cache)
	}
	say("kernel %s, QEMU with %s", k.Release, options.accel)
	b := &builder{accel: options.accel, root: ".", cache: cache, tmp: tmp, kernel: k, mods: mods, built: map[string]string{}}
	return runShapes(b, pattern)
}
