package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// program is ugdsctl as another process: the test binary itself (see TestMain).
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

func exitCode(err error) int {
	var e *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.ExitCode()
	}
	return -1
}

func newStore(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "s")
	if _, errs, code := call(t, "", "format", "--store", dir, "--size", "64MiB", "--yes"); code != 0 {
		t.Fatal(errs)
	}
	return dir
}

// startPut begins a put from a pipe and returns when the store is open.
func startPut(t *testing.T, dir string) (cmd *exec.Cmd, stdin io.WriteCloser, stderr *bytes.Buffer) {
	t.Helper()
	cmd = program(t, "put", "--store", dir, "half", "-")
	stderr = new(bytes.Buffer)
	cmd.Stderr = stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	// Looking with another ugdsctl would lock the put out.
	if !begin(t, dir, cmd) {
		t.Fatal("put ended by itself")
	}
	return cmd, stdin, stderr
}

// TestInterrupt: an interrupt in the middle of a value ends with 130, says so in
// one line, and leaves a closed store without a trace of the value.
func TestInterrupt(t *testing.T) {
	dir := newStore(t)
	cmd, stdin, stderr := startPut(t, dir)
	if _, err := stdin.Write(make([]byte, 3<<20)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(cmd.Wait()); code != 130 || stderr.String() != "ugdsctl: interrupted\n" {
		t.Errorf("exit %d, %q", code, stderr)
	}
	clean(t, dir)
}

// TestKilled: SIGKILL in the middle of a value, and the next open at once.
func TestKilled(t *testing.T) {
	dir := newStore(t)
	cmd, stdin, _ := startPut(t, dir)
	if _, err := stdin.Write(make([]byte, 3<<20)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	clean(t, dir)
}

func clean(t *testing.T, dir string) {
	t.Helper()
	if out, errs, code := call(t, "", "ls", "--store", dir); code != 0 || out != "" {
		t.Errorf("ls: exit %d, %q %s", code, out, errs)
	}
	if out, errs, code := call(t, "", "fsck", "--store", dir); code != 0 {
		t.Errorf("fsck: exit %d, %q %s", code, out, errs)
	}
}

// TestSecondOpener: a store that a living process has open is refused at once,
// with the name of that process, by readers and writers.
func TestSecondOpener(t *testing.T) {
	dir := newStore(t)
	cmd, stdin, _ := startPut(t, dir)
	for _, args := range [][]string{{"ls"}, {"rm", "x"}, {"get", "x", "-"}, {"format", "--yes"}, {"stat"}} {
		begin := time.Now()
		_, errs, code := call(t, "", append(args, "--store", dir)...)
		if code != 5 || !strings.Contains(errs, "locked") || !strings.Contains(errs, "pid") {
			t.Errorf("%v: exit %d, %s", args, code, errs)
		}
		if took := time.Since(begin); took > 25*time.Second {
			t.Errorf("%v took %v", args, took)
		}
	}
	if _, errs, code := call(t, "", "fsck", "--store", dir); code != 8 || !strings.Contains(errs, "locked") || !strings.Contains(errs, "pid "+strconv.Itoa(cmd.Process.Pid)) {
		t.Errorf("fsck: exit %d, %s", code, errs)
	}
	_, errs, code := call(t, "", "format", "--store", dir, "--size", "80MiB", "--yes")
	if code != 5 || !strings.Contains(errs, "locked") {
		t.Errorf("format with another size: exit %d, %s", code, errs)
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if out, _, _ := call(t, "", "ls", "--store", dir); out != "half\n" {
		t.Errorf("ls: %q", out)
	}
}

// TestPipe: a reader that goes away in the middle of a value, or before anything is
// said, ends a verb without a word.
func TestPipe(t *testing.T) {
	dir := newStore(t)
	if _, errs, code := call(t, strings.Repeat("x", 8<<20), "put", "--store", dir, "k", "-"); code != 0 {
		t.Fatal(errs)
	}
	cmd := program(t, "get", "--store", dir, "k", "-")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(cmd.Wait()); code != 141 || stderr.Len() > 0 {
		t.Errorf("exit %d, %q", code, &stderr)
	}
	if out, _, _ := call(t, "", "ls", "--store", dir); out != "k\n" {
		t.Errorf("ls: %q", out)
	}
	for _, args := range []string{"ls STORE", "ls STORE --json", "stat STORE", "usage STORE", "exists STORE none", "verify STORE", "fsck STORE", "version",
		"help", "ls --help", "completion bash", "device list sim:size=64MiB", "explain --gpu host sim:size=64MiB", "demo --size 16MiB"} {
		cmd := program(t, strings.Fields(strings.ReplaceAll(args, "STORE", "--store "+dir))...)
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		stderr.Reset()
		cmd.Stdout, cmd.Stderr = w, &stderr
		cmd.Env = append(cmd.Env, "TMPDIR="+t.TempDir()) // nobody has left anything there
		r.Close()
		err = cmd.Run()
		w.Close()
		if exitCode(err) != 141 || stderr.Len() > 0 {
			t.Errorf("%s: %v, %q", args, err, &stderr)
		}
	}
}

// TestDemoInterrupted: the demo removes what it made.
func TestDemoInterrupted(t *testing.T) {
	tmp := t.TempDir()
	cmd := program(t, "demo", "--size", "512MiB")
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); len(ls(t, tmp)) == 0 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(cmd.Wait()); code != 130 {
		t.Errorf("exit %d, %s", code, &stderr)
	}
	if left := ls(t, tmp); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func ls(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestDemoTooLarge: too little space is said before anything is written, with
// what helps.
func TestDemoTooLarge(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	_, errs, code := call(t, "", "demo", "--size", "1TiB")
	if code != 1 || !strings.Contains(errs, "--size") || !strings.Contains(errs, "free") {
		t.Errorf("exit %d, %s", code, errs)
	}
	if left := ls(t, tmp); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestManyReaders: verbs that only read can run at the same time.
func TestManyReaders(t *testing.T) {
	dir := newStore(t)
	if _, errs, code := call(t, "value", "put", "--store", dir, "k", "-"); code != 0 {
		t.Fatal(errs)
	}
	var all []*exec.Cmd
	for range 4 {
		for _, args := range [][]string{{"ls"}, {"get", "k", os.DevNull}, {"stat"}, {"fsck"}} {
			cmd := program(t, append(args, "--store", dir)...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			all = append(all, cmd)
		}
	}
	for _, cmd := range all {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v", cmd.Args[1:], err)
		}
	}
}

// TestFormatKilled: a format that was killed anywhere, a first one or one over a
// store, can be repeated, and what it left is not shown as a loss of anything
// that was never there.
func TestFormatKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	format := []string{"format", "--store", dir, "--size", "64MiB", "--yes"}
	for i := range 24 {
		if i%12 == 0 {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
		cmd := program(t, format...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(4+4*(i%12)) * time.Millisecond)
		_ = cmd.Process.Kill() // may have ended
		_ = cmd.Wait()
		if i < 12 || i%3 == 0 {
			if _, errs, code := call(t, "", format...); code != 0 {
				t.Fatalf("killed after step %d: exit %d, %s, %v", i, code, errs, ls(t, dir))
			}
		}
		if i < 12 {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "meta"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"CREATING", "LOCK"} {
		if err := os.WriteFile(filepath.Join(dir, "meta", name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, _, _ := call(t, "", format[:5]...); strings.Contains(out, "holds") {
			t.Errorf("%s is a loss: %s", name, out)
		}
	}
	if _, errs, code := call(t, "", format...); code != 0 {
		t.Errorf("exit %d, %s", code, errs)
	}
	clean(t, dir)
}

// TestFsckCannotAnswer: an answer that cannot be written is not "repaired".
func TestFsckCannotAnswer(t *testing.T) {
	dir := newStore(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	cmd := program(t, "fsck", "--store", dir)
	cmd.Stdout = full
	if code := exitCode(cmd.Run()); code != 8 {
		t.Errorf("status %d, want 8", code)
	}
}

// startShown is startPut that returns when stats shows the process.
func startShown(t *testing.T) (cmd *exec.Cmd, stdin io.WriteCloser, stderr *bytes.Buffer) {
	t.Helper()
	cmd, stdin, stderr = startPut(t, newStore(t))
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, errs, code := call(t, "", "stats", "--pid", strconv.Itoa(cmd.Process.Pid)); code == 0 {
			return cmd, stdin, stderr
		} else if time.Now().After(end) {
			t.Fatal(errs)
		}
	}
}

// TestT33StatsOfPut: another process shows what a put has moved so far, stopped
// or not, and says when the store is closed.
func TestT33StatsOfPut(t *testing.T) {
	cmd, stdin, stderr := startShown(t)
	if _, err := stdin.Write(make([]byte, 3<<20)); err != nil {
		t.Fatal(err)
	}
	pid := strconv.Itoa(cmd.Process.Pid)
	var out, errs string
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if out, errs, _ = call(t, "", "stats", "--pid", pid); strings.Contains(out, "plain memory") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("never shown: %q, %q", out, errs)
		}
	}
	for _, want := range []string{"staged  written", "1.0 MiB: ", "data.ugds", "objects"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if out, errs, code := call(t, "", "stats", "--pid", pid, "--json"); code != 0 || !strings.Contains(out, `"path": "staged"`) {
		t.Errorf("stopped: exit %d, %q\n%s", code, errs, out)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	watch := program(t, "stats", "--watch", "--interval", "100ms", "--pid", pid)
	shown, err := os.Create(filepath.Join(t.TempDir(), "shown"))
	if err != nil {
		t.Fatal(err)
	}
	defer shown.Close()
	watch.Stdout = shown
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if st, err := shown.Stat(); err != nil || time.Now().After(end) {
			t.Fatal("nothing is shown", err)
		} else if st.Size() > 0 {
			break
		}
	}
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err, stderr)
	}
	err = watch.Wait()
	if seen, _ := os.ReadFile(shown.Name()); err != nil || !bytes.Contains(seen, []byte("has closed its stores")) {
		t.Errorf("watch: %v\n%s", err, seen)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--pid", pid}, 3, "no such process"},
		{[]string{"--pid", strconv.Itoa(os.Getpid())}, 3, "does not publish"},
		{nil, 2, "which process?"},
		{[]string{"--pid", "1", "--interval", "1ms"}, 2, "--interval is from"},
	} {
		if _, errs, code := call(t, "", append([]string{"stats"}, c.args...)...); code != c.code || !strings.Contains(errs, c.want) {
			t.Errorf("%v: exit %d, %q; want %d, %q", c.args, code, errs, c.code, c.want)
		}
	}
}

// TestStrictDemo: settings reach the store, whose transfers then are refused.
func TestStrictDemo(t *testing.T) {
	strict := []string{"demo", "--gpu=host", "--gpu-set", "strict=on", "--size", "16MiB"}
	_, errs, code := call(t, "", strict...)
	if code != 1 || !strings.Contains(errs, "strict, and") || !strings.Contains(errs, "sim:path=FILE") {
		t.Errorf("exit %d, %q", code, errs)
	}
	// Nothing passes host memory, in both processes.
	model := "sim:size=128MiB,path=" + filepath.Join(t.TempDir(), "model")
	out, errs, code := call(t, "", append(strict, "--device", model)...)
	if code != 0 || !strings.Contains(out, "from the device to the GPU without a stop") {
		t.Errorf("on a model: exit %d, %q\n%s", code, errs, out)
	}
}

// TestClosedInput: standard input that is closed is not an empty value.
func TestClosedInput(t *testing.T) {
	dir, bin := newStore(t), binDir(t)
	for _, c := range []struct {
		line string
		code int
	}{{"put --store DIR k - <&-", 1}, {"exists --store DIR - <&-", 1}, {"replay --store DIR --trace - --block-bytes 4KiB <&-", 1},
		{"exists --store DIR k", 3}, {"put --store DIR k - </dev/null", 0}} {
		cmd := exec.Command("bash", "-c", "ugdsctl "+strings.ReplaceAll(c.line, "DIR", dir))
		cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), asProgram + "=1"}
		out, err := cmd.CombinedOutput()
		if exitCode(err) != c.code || (c.code == 1) != bytes.Contains(out, []byte("standard input: closed")) {
			t.Errorf("%s: %v, %s", c.line, err, out)
		}
	}
}

// TestBenchKilled: with a bench that is killed its processes end, and the next one in
// its place removes what it left and says so.
func TestBenchKilled(t *testing.T) {
	for _, args := range []string{"--op put --size 4KiB --bytes 1MiB --rounds 900", "--scale 200000,300000"} {
		dir := filepath.Join(t.TempDir(), "b")
		cmd := program(t, append([]string{"bench", "--dir", dir}, strings.Fields(args)...)...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		child := stopChild(t, cmd.Process.Pid)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			state := processState(child)
			if state == "" || state == "Z" {
				break
			}
			if time.Now().After(end) {
				_ = syscall.Kill(child, syscall.SIGKILL)
				t.Fatalf("process %d lives on", child)
			}
		}
		_, errs, code := call(t, "", "bench", "--dir", dir, "--op", "put", "--size", "4KiB", "--bytes", "1MiB", "--rounds", "1", "--against", "raw")
		if code != 0 || errs != "ugdsctl: removed from "+dir+" what a process that was killed left\n" {
			t.Errorf("exit %d, %q", code, errs)
		}
		if left := ls(t, dir); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	}
}

// TestBenchTellsOnce: what fails in the process of a case is told once, on one line, with
// its cause.
func TestBenchTellsOnce(t *testing.T) {
	cmd := program(t, "bench", "--store", newStore(t), "--op", "put", "--size", "1MiB", "--bytes", "64MiB", "--rounds", "1", "--against", "raw")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	code, errs := exitCode(cmd.Run()), stderr.String()
	if code != 1 || strings.Count(errs, "\n") != 1 || strings.Count(errs, "no space:") != 1 || !strings.HasPrefix(errs, "ugdsctl: bench store, put") {
		t.Errorf("exit %d, %q", code, errs)
	}
	if err := childError("panic: ugdsctl: x\n"); err != nil {
		t.Errorf("a panic is an error of ours: %v", err)
	}
	if err := childError("ugdsctl: a\nb\nc\n"); err == nil || err.Error() != "a; and 2 more" {
		t.Error(err)
	}
}

// TestBenchHeldStore: that another process has the store is told once, with the status that
// it has elsewhere, although the process of a case has found it.
func TestBenchHeldStore(t *testing.T) {
	dir := newStore(t)
	owner, stdin, _ := startPut(t, dir)
	_, errs, code := call(t, "", "bench", "--store", dir, "--op", "put", "--size", "4KiB", "--bytes", "1MiB", "--rounds", "1")
	if code != 5 || strings.Count(errs, "\n") != 1 || strings.Count(errs, "pid "+strconv.Itoa(owner.Process.Pid)+" ") != 1 {
		t.Errorf("exit %d, %q", code, errs)
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := owner.Wait(); err != nil {
		t.Error(err)
	}
}

// stopChild stops a process that pid has started, so that it cannot end by itself. It
// lets go of one that has not yet become its program: that one still has to see
// whether its parent lives.
func stopChild(t *testing.T, pid int) (child int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, task := range tasks {
			list, _ := os.ReadFile(task) // the task may have ended
			if n, _ := fmt.Sscan(string(list), &child); n == 0 || syscall.Kill(child, syscall.SIGSTOP) != nil {
				continue
			}
			for state := "R"; state != "" && state != "Z"; state = processState(child) {
				if state != "T" {
					continue
				}
				line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child))
				if bytes.Contains(line, []byte("\x00bench-")) {
					return child
				}
				_ = syscall.Kill(child, syscall.SIGCONT)
				break
			}
		}
	}
	t.Fatal("no process of a case was seen")
	return 0
}

// processState is the letter that the kernel shows of a process, "" if it is gone.
func processState(pid int) string {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	return rest[:min(len(rest), 1)]
}
