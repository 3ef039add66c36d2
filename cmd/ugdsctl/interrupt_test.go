package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ugds-store/ugds/tools/ctl"
)

// begin starts ugdsctl and returns when it has the metadata of dir open; false
// if it has ended before that was seen.
func begin(t *testing.T, dir string, cmd *exec.Cmd) bool {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // does nothing if it has ended
	proc := filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid))
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		entries, _ := os.ReadDir(filepath.Join(proc, "fd")) // fails when the process has ended
		for _, e := range entries {
			if to, _ := os.Readlink(filepath.Join(proc, "fd", e.Name())); to == filepath.Join(dir, "meta", "LOCK") {
				return true
			}
		}
		if status, _ := os.ReadFile(filepath.Join(proc, "status")); bytes.Contains(status, []byte("State:\tZ")) {
			return false
		}
	}
	t.Fatalf("%v never opened the store", cmd.Args[1:])
	return false
}

// stop interrupts a process and checks how it ends; false if it was faster.
func stop(t *testing.T, cmd *exec.Cmd, stderr *bytes.Buffer) bool {
	t.Helper()
	_ = cmd.Process.Signal(os.Interrupt) // fails if it has ended
	at := time.Now()
	code := exitCode(cmd.Wait())
	if took := time.Since(at); took > 25*time.Second {
		t.Errorf("%v took %v to stop", cmd.Args[1:], took)
	}
	if code == 0 {
		return false
	}
	if code != 130 || stderr.String() != "ugdsctl: interrupted\n" {
		t.Errorf("%v: exit %d, %q", cmd.Args[1:], code, stderr)
	}
	return true
}

// stopInTime interrupts a verb while it works. A busy computer may need several
// attempts.
func stopInTime(t *testing.T, dir string, args ...string) {
	t.Helper()
	for range 10 {
		cmd := program(t, args...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		begin(t, dir, cmd)
		if stop(t, cmd, &stderr) {
			return
		}
	}
	t.Errorf("%v: never interrupted in time", args)
}

// TestInterruptAnywhere: an interrupt ends verbs that read, that work on the
// devices, and that wait for the other side of a pipe, with 130 and one line.
func TestInterruptAnywhere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	if _, errs, code := call(t, "", "format", "--store", dir, "--size", "8GiB", "--slab", "1MiB", "--sparse", "--yes"); code != 0 {
		t.Fatal(errs)
	}
	if _, errs, code := call(t, strings.Repeat("0123456789abcdef", 16<<20), "put", "--store", dir, "k", "-"); code != 0 {
		t.Fatal(errs)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "out")
	for _, args := range []string{"verify", "trim", "fsck --verify-data", "get --force k " + file, "get k " + fifo} {
		stopInTime(t, dir, append(strings.Fields(args), "--store", dir)...)
	}
	if left := ls(t, filepath.Dir(file)); len(left) > 1 || len(left) == 1 && left[0] != "out" { // a whole one of a late attempt
		t.Errorf("get left %v", left)
	}
	for _, args := range []string{"get k -", "exists -"} { // nobody reads, nobody writes
		cmd := program(t, append(strings.Fields(args), "--store", dir)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		cmd.Stdout = w
		if args == "exists -" {
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			// More than a pipe holds: the write ends when the verb is reading.
			if _, err := io.WriteString(in, strings.Repeat("k\n", 40<<10)); err != nil {
				t.Fatal(err)
			}
		} else {
			if !begin(t, dir, cmd) {
				t.Fatalf("%s ended", args)
			}
			if _, err := io.ReadFull(r, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		w.Close()
		if !stop(t, cmd, &stderr) {
			t.Errorf("%s ended by itself", args)
		}
	}
	if out, errs, code := call(t, "", "fsck", "--store", dir); code != 0 {
		t.Errorf("fsck: exit %d, %q %s", code, out, errs)
	}
	if out, errs, code := call(t, "", "exists", "--store", dir, "k"); code != 0 {
		t.Errorf("exists: exit %d, %q %s", code, out, errs)
	}
}

// TestHangup: a terminal that is closed is an interrupt, but none where nohup had it
// ignored.
func TestHangup(t *testing.T) {
	defer signal.Reset(syscall.SIGHUP)
	for ignored, want := range map[bool]int{false: 130, true: 0} {
		if ignored {
			signal.Ignore(syscall.SIGHUP)
		} else { // also where this test runs under nohup
			signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
		}
		dir := newStore(t)
		cmd, stdin, stderr := startPut(t, dir)
		for range 3 { // as the shell and the kernel do, one after the other
			if err := cmd.Process.Signal(syscall.SIGHUP); err != nil && !errors.Is(err, os.ErrProcessDone) {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		if ignored {
			stdin.Close()
		}
		if code := exitCode(cmd.Wait()); code != want || (stderr.String() == "ugdsctl: interrupted\n") == ignored {
			t.Errorf("ignored %v: exit %d, %q", ignored, code, stderr)
		}
		if !ignored {
			clean(t, dir)
		}
	}
}

// TestAnywhere: the verbs say the same in a directory that nobody can write to,
// with no home and no language, and where files are made for their owner alone.
func TestAnywhere(t *testing.T) {
	dir, bin := newStore(t), binDir(t)
	if _, errs, code := call(t, "value", "put", "--store", dir, "k", "-"); code != 0 {
		t.Fatal(errs)
	}
	for _, args := range []string{"put STORE --replace new -", "ls STORE --long", "get STORE k -", "usage STORE", "stat STORE k", "stat STORE", "exists STORE k",
		"verify STORE", "fsck STORE --verify-data", "rm STORE new", "put STORE new -", "trim STORE", "version", "help put", "completion bash", "format --store FRESH --size 64MiB",
		"device list sim:size=64MiB", "explain --gpu host sim:size=64MiB", "replay STORE --trace - --block-bytes 4KiB", "bench --dir BENCH --op put --size 4KiB --bytes 1MiB --rounds 1 --against raw"} {
		line := strings.NewReplacer("STORE", "--store "+dir, "FRESH", filepath.Join(t.TempDir(), "fresh"), "BENCH", t.TempDir()).Replace(args)
		all := strings.Fields(line)
		want, errs, code := call(t, "", all...)
		if back := map[string][]string{"put": {"rm", "new"}, "rm": {"put", "new", "-"}}[all[0]]; back != nil {
			if _, errs, code := call(t, "", append(back, "--store", dir)...); code != 0 {
				t.Fatal(errs)
			}
		}
		cmd := exec.Command("bash", "-c", "umask 077; exec ugdsctl "+line)
		cmd.Dir = "/proc" // for root too
		cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), asProgram + "=1", "LANG=C"}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		timed := all[0] == "replay" || all[0] == "bench"
		if exitCode(err) != code || stderr.String() != errs || !timed && string(out) != want {
			t.Errorf("%s: %v, %q, want exit %d, %q, %q", args, err, out, code, want, &stderr)
		}
	}
}

// TestProgressLines: without a terminal there is a line now and then, at --json
// none, and none of a short operation.
func TestProgressLines(t *testing.T) {
	var out bytes.Buffer
	l := &lines{w: &out, title: "verify", total: 1000, every: time.Hour}
	l.Add(250)
	l.Add(250)
	l.next = time.Time{}
	l.Add(250)
	l.Done()
	l = &lines{w: &out, title: "put", next: time.Now().Add(time.Hour), every: time.Hour}
	l.Add(1 << 20)
	l.next = time.Time{}
	l.Add(1 << 20)
	if want := "ugdsctl: verify: 25 %\nugdsctl: verify: 75 %\nugdsctl: put: 2.0 MiB\n"; out.String() != want {
		t.Errorf("%q, want %q", &out, want)
	}
	if progress(&ctl.Env{JSON: true}) != nil {
		t.Error("progress beside a document")
	}
}
