package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// tally is what all machines have shown.
type tally struct {
	mu      sync.Mutex
	total   result
	ran     int
	lines   covered
	trouble []error // of the lab itself
}

// add counts what a machine has shown, and says it.
func (y *tally) add(name string, r *result, said string, took time.Duration, err error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	fmt.Print(said)
	if err != nil {
		y.trouble = append(y.trouble, fmt.Errorf("%s: %w", name, err))
		return
	}
	for _, f := range r.faults {
		fmt.Printf("%s: %s\n", name, f)
	}
	word := "ok  "
	if !r.ok() {
		word = "FAIL"
		r.failed = max(r.failed, 1)
	}
	fmt.Printf("%s\tlab/%s\t%.1fs\n", word, name, took.Seconds())
	y.total.passed, y.total.failed = y.total.passed+r.passed, y.total.failed+r.failed
	y.total.skipped = append(y.total.skipped, r.skipped...)
	for _, line := range r.cover {
		y.lines.add(line)
	}
}

// task is something that passes or fails by itself.
type task struct {
	name string
	run  func() (r *result, said string, err error)
}

// tasks are what is wanted: builds, and machines.
func tasks(b *builder, pattern *regexp.Regexp) (out []task) {
	add := func(name string, long bool, run func() (*result, string, error)) {
		if pattern.MatchString(name) && (options.full || !long) {
			out = append(out, task{name, run})
		}
	}
	build := func(do func() error) func() (*result, string, error) {
		return func() (*result, string, error) {
			if err := do(); err != nil {
				return &result{failed: 1, faults: []string{err.Error()}}, "", nil
			}
			return &result{passed: 1}, "", nil
		}
	}
	add("kmod-"+oldSeries, true, build(b.buildOld))
	add("kmod-style", true, build(b.checkStyle))
	for i := range shapes {
		s := &shapes[i]
		s.out = new(bytes.Buffer)
		add(s.name, s.long, func() (r *result, said string, err error) {
			if s.cuts > 0 {
				r, err = runCuts(b, s, s.cuts)
			} else {
				r, err = runShape(b, s)
			}
			return r, s.out.String(), err
		})
	}
	return out
}

// runShapes does all that is wanted, a few things at a time, and prints the count.
func runShapes(b *builder, pattern *regexp.Regexp) (int, error) {
	y := &tally{lines: covered{}}
	var wg sync.WaitGroup
	slots := make(chan struct{}, max(options.jobs, 1))
	for _, t := range tasks(b, pattern) {
		y.ran++
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			begin := time.Now()
			r, said, err := t.run()
			y.add(t.name, r, said, time.Since(begin), err)
		})
	}
	wg.Wait()
	return y.end()
}

// end prints the count, and gives the exit status.
func (y *tally) end() (int, error) {
	for _, s := range y.total.skipped {
		fmt.Println("skipped:", s)
	}
	if options.cover != "" {
		percent, err := y.lines.write(options.cover)
		if err != nil {
			return 2, err
		}
		fmt.Printf("%.1f %% of the statements of driver/... were run: %s\n", percent, options.cover)
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", y.total.passed, y.total.failed, len(y.total.skipped))
	switch {
	case len(y.trouble) > 0:
		return 2, errors.Join(y.trouble...)
	case y.ran == 0:
		return 2, errors.New("no shape to run")
	case y.total.failed > 0 || len(y.total.skipped) > 0 && os.Getenv("UGDS_NO_SKIP") == "1":
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
		s.suites = slices.Clone(s.suites)
		for i := range s.suites {
			s.suites[i].args = append(slices.Clone(s.suites[i].args), "-test.run", options.run)
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
		m := &boot{shape: s, kernel: b.kernel, dir: dir, accel: b.accelerator()}
		if err := m.start(); err != nil {
			return nil, err
		}
		err := m.wait()
		switch {
		case errors.Is(err, errNoInit) && m.accel == "kvm":
			say("%s: %v; without KVM from here on", s.name, err)
			if err := b.noKVM(); err != nil {
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
		fmt.Fprintf(b.shape.out, "%s\n", text)
	}
	r := read(string(text), b.shape.suites, b.shape.out)
	if err != nil {
		r.fault("%v", err)
	}
	if len(r.faults) > 0 {
		for _, name := range []string{"console.log", "qemu.log"} {
			text, _ := os.ReadFile(b.path(name))
			if lines := lastLines(string(text), shownLines); lines != "" {
				fmt.Fprintf(b.shape.out, "=== %s of %s\n%s\n", name, b.shape.name, lines)
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
