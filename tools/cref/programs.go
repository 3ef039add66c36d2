package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

// programs are the drivers that are compared, in the order of tables: the smallest
// loop in C, the reference in C, and ours.
var programs = []string{"skeleton", "full", "go"}

// cflags are how the C programs are built. Warnings are errors: they are small.
var cflags = []string{"-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread"}

// build makes the three programs in dir; src is the folder of this package. It
// needs a C compiler, cc, and the go command.
func build(src, dir string) error {
	for _, name := range programs {
		out := filepath.Join(dir, name)
		cmd := exec.Command("cc", append(cflags, "-o", out, filepath.Join(src, "c", "main.c"), filepath.Join(src, "c", name+".c"))...)
		if name == "go" {
			cmd = exec.Command("go", "build", "-o", out, ".")
			cmd.Dir = src
			cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
		}
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", name, err, text)
		}
	}
	return nil
}

// shape is one load.
type shape struct {
	mode  string
	size  int64 // bytes a request
	per   int   // requests a batch
	depth int   // requests in flight
	turns int   // for count and digest
}

// command is the call of a program with a load.
func (s shape) command(dir, name string) []string {
	path, n := filepath.Join(dir, name), strconv.Itoa
	if name == "go" {
		return []string{path, "-mode", s.mode, "-size", strconv.FormatInt(s.size, 10), "-batch", n(s.per),
			"-depth", n(s.depth), "-turns", n(s.turns)}
	}
	return []string{path, s.mode, strconv.FormatInt(s.size, 10), n(s.per), n(s.depth), n(s.turns)}
}

// call runs a program and reads its result; prefix goes before the command line.
func call(args []string, env ...string) (r result, stderr []byte, err error) {
	var out, errs bytes.Buffer
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &errs, append(os.Environ(), env...)
	if err := cmd.Run(); err != nil {
		return r, nil, fmt.Errorf("%q: %w: %s", args, err, errs.Bytes())
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return r, nil, fmt.Errorf("%q: %w: %q", args, err, out.Bytes())
	}
	return r, errs.Bytes(), nil
}

// counted are the functions in which callgrind collects.
var counted = map[string][]string{
	"go":       {"main.countedSubmit", "main.countedWait"},
	"full":     {"counted_submit", "counted_wait"},
	"skeleton": {"counted_submit", "counted_wait"},
}

var collected = regexp.MustCompile(`Collected : (\d+)`)

// instructions counts those of the driver's part of a command, exactly. One
// goroutine runs at a time, nothing preempts it, and nothing is collected, so that
// the count is the same every time.
func instructions(dir, name string, s shape) (a result, perIO float64, err error) {
	args := []string{"valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"}
	for _, fn := range counted[name] {
		args = append(args, "--toggle-collect="+fn)
	}
	s.mode = "count"
	a, stderr, err := call(append(args, s.command(dir, name)...), "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=1", "GOGC=off")
	if err != nil {
		return a, 0, err
	}
	m := collected.FindSubmatch(stderr)
	if m == nil || a.IOs == 0 {
		return a, 0, fmt.Errorf("%s counted %d commands, and callgrind said %q", name, a.IOs, stderr)
	}
	n, err := strconv.ParseFloat(string(m[1]), 64)
	return a, n / float64(a.IOs), err
}
