// Command lab runs tests on controllers and a kernel that this project did not
// write: it boots QEMU with an NVMe controller, an IOMMU and a device BAR as GPU
// memory, once for each shape of machine, and runs test binaries in the guest.
//
//	lab [-full] [-shape REGEXP] [-run REGEXP] [-cache DIR] [-keep]
//
// It installs what it needs when it runs as root, and takes its kernel from the
// Debian archive that this machine uses. KVM is used where it works. The exit
// status is 0 when every test passed and the kernels had nothing to complain of.
// docs/testing.md, "The lab", describes it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

var options struct {
	full, keep, update, verbose bool
	shape, run, cache, accel    string
	cover, trace                string
	seed                        uint64
}

func say(format string, args ...any) { fmt.Printf("lab: "+format+"\n", args...) }

func main() {
	flag.BoolVar(&options.full, "full", false, "the long shapes too")
	flag.BoolVar(&options.keep, "keep", false, "keep images and logs, and say where")
	flag.BoolVar(&options.update, "update", false, "ask the archive for a newer kernel")
	flag.BoolVar(&options.verbose, "v", false, "print everything that the guests wrote")
	flag.StringVar(&options.shape, "shape", "", "only shapes that match")
	flag.StringVar(&options.run, "run", "", "only tests that match, as for go test")
	flag.StringVar(&options.cache, "cache", os.Getenv("UGDS_LAB_CACHE"), "folder for kernels")
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
	if err := need(); err != nil {
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
	k, err := findKernel(cache, options.update)
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
	b := &builder{root: ".", cache: cache, tmp: tmp, kernel: k, mods: mods, built: map[string]string{}}
	return runShapes(b, pattern)
}

// runShapes boots the wanted machines one after the other and prints the count.
func runShapes(b *builder, pattern *regexp.Regexp) (int, error) {
	var total result
	ran, lines := 0, covered{}
	for _, job := range []struct {
		name string
		do   func() error
	}{{"kmod-" + oldSeries, b.buildOld}, {"kmod-style", b.checkStyle}} {
		if !options.full || !pattern.MatchString(job.name) {
			continue
		}
		ran++
		begin := time.Now()
		if err := job.do(); err != nil {
			fmt.Printf("%v\nFAIL\tlab/%s\n", err, job.name)
			total.failed++
			continue
		}
		total.passed++
		fmt.Printf("ok  \tlab/%s\t%.1fs\n", job.name, time.Since(begin).Seconds())
	}
	for i := range shapes {
		s := &shapes[i]
		if !pattern.MatchString(s.name) || s.long && !options.full || len(s.suites) == 0 {
			continue
		}
		ran++
		begin := time.Now()
		run := runShape
		if s.cuts > 0 {
			run = func(b *builder, s *shape) (*result, error) { return runCuts(b, s, s.cuts) }
		}
		r, err := run(b, s)
		if err != nil {
			return 2, fmt.Errorf("shape %s: %w", s.name, err)
		}
		for _, f := range r.faults {
			fmt.Printf("%s: %s\n", s.name, f)
		}
		word := "ok  "
		if !r.ok() {
			word = "FAIL"
			r.failed = max(r.failed, 1)
		}
		fmt.Printf("%s\tlab/%s\t%.1fs\n", word, s.name, time.Since(begin).Seconds())
		total.passed, total.failed = total.passed+r.passed, total.failed+r.failed
		total.skipped = append(total.skipped, r.skipped...)
		for _, line := range r.cover {
			lines.add(line)
		}
	}
	for _, s := range total.skipped {
		fmt.Println("skipped:", s)
	}
	if options.cover != "" {
		percent, err := lines.write(options.cover)
		if err != nil {
			return 2, err
		}
		fmt.Printf("%.1f %% of the statements of driver/... were run: %s\n", percent, options.cover)
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", total.passed, total.failed, len(total.skipped))
	if ran == 0 {
		return 2, errors.New("no shape to run")
	}
	if total.failed > 0 || len(total.skipped) > 0 && os.Getenv("UGDS_NO_SKIP") == "1" {
		return 1, nil
	}
	return 0, nil
}

// runShape boots one machine, and once more if it never reached userland; under
// QEMU's translator when it was KVM's turn, which may be there without working.
func runShape(b *builder, s *shape) (*result, error) {
	dir := filepath.Join(b.tmp, s.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if options.run != "" {
		for i := range s.suites {
			s.suites[i].args = append(s.suites[i].args, "-test.run", options.run)
		}
	}
	if err := b.initrd(s, filepath.Join(dir, "initrd")); err != nil {
		return nil, err
	}
	if !options.keep {
		defer os.RemoveAll(dir)
	}
	for tried := false; ; {
		for _, i := range s.images {
			if err := makeImage(filepath.Join(dir, i.name), i.size); err != nil {
				return nil, err
			}
		}
		m := &boot{shape: s, kernel: b.kernel, dir: dir, accel: options.accel}
		if err := m.start(); err != nil {
			return nil, err
		}
		err := m.wait()
		switch {
		case errors.Is(err, errNoInit) && options.accel == "kvm":
			say("%s: %v; without KVM from here on", s.name, err)
			options.accel = "tcg"
			if err := os.WriteFile(filepath.Join(b.cache, kvmFails), nil, 0o644); err != nil {
				return nil, err
			}
			continue
		case errors.Is(err, errNoInit) && !tried:
			say("%s: %v; once more", s.name, err)
			tried = true
			continue
		}
		return m.judge(err), nil
	}
}

func makeImage(file string, size int64) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// judge reads the logs of a boot that has ended, with err if not by itself.
func (b *boot) judge(err error) *result {
	text, _ := os.ReadFile(b.path("tests.log"))
	if options.verbose {
		fmt.Printf("%s\n", text)
	}
	r := read(string(text), b.shape.suites, os.Stdout)
	if err != nil {
		r.fault("%v", err)
	}
	if len(r.faults) > 0 {
		for _, name := range []string{"console.log", "qemu.log"} {
			text, _ := os.ReadFile(b.path(name))
			if lines := lastLines(string(text), shownLines); lines != "" {
				fmt.Printf("=== %s of %s\n%s\n", name, b.shape.name, lines)
			}
		}
	}
	return r
}

// shownLines is how many lines of a log are shown when something is wrong.
const shownLines = 120

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(len(lines)-n, 0):], "\n")
}
