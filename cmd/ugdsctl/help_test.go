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
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/ugds-store/ugds/tools/ctl"
)

// verbs are those that a user sees.
func verbs(t *testing.T) []*cobra.Command {
	t.Helper()
	var out []*cobra.Command
	for _, c := range withPages(newRoot(&ctl.Env{Stdout: io.Discard, Stderr: io.Discard}))[1:] {
		if c.Name() != "help" {
			out = append(out, c)
		}
	}
	if len(out) < 22 {
		t.Fatalf("only %d verbs", len(out))
	}
	return out
}

// smaller makes the examples that measure short enough for a test.
var smaller = strings.NewReplacer("--depth 1,32,512", "--depth 1,32,512 --bytes 1MiB", "clock=virtual --size 4KiB", "clock=virtual --size 4KiB --bytes 1MiB",
	"--completion", "--bytes 1MiB --completion", "--batch 1,8", "--batch 1,8 --bytes 1MiB", "--bytes 16MiB", "--bytes 1MiB", "--bytes 8MiB", "--bytes 1MiB",
	"--callers 1,8", "--callers 8", "--rounds 2", "--rounds 1 --bytes 1MiB", "demo --size 64MiB", "demo --size 16MiB",
	"0000:01:00.0", "ffff:ff:1f.7") // no disk of this machine

// endless are examples that take minutes: they are interrupted.
func endless(line string) bool {
	return strings.Contains(line, "--scale") || strings.Contains(line, "--suite gates") || strings.Contains(line, "--watch")
}

// TestExamples runs the examples that --help shows, each verb's in a sandbox of
// its own: a shell with little in its environment, ugdsctl in its path, a store
// named DIR and the files that the examples name.
func TestExamples(t *testing.T) {
	bin := binDir(t)
	for _, verb := range verbs(t) {
		t.Run(verbName(verb), func(t *testing.T) {
			t.Parallel()
			if !strings.Contains(verb.Example+" ", verb.CommandPath()+" ") && !verb.HasSubCommands() {
				t.Fatal("no example")
			}
			dir := sandbox(t)
			process := "4711"
			if verb.Name() == "stats" {
				put, stdin, _ := startShown(t)
				defer put.Wait()
				defer stdin.Close()
				process = strconv.Itoa(put.Process.Pid)
			}
			for line := range strings.Lines(verb.Example) {
				line = strings.TrimSpace(line)
				want, text := 0, strings.Replace(smaller.Replace(line), "4711", process, 1)
				switch {
				case endless(line):
					want, text = 130, "exec "+text
				case verb.Name() == "bind" || verb.Name() == "unbind":
					want = 3 // there is no such controller
				case (verb.Name() == "format" || verb.Name() == "reset") && !strings.Contains(line, "--yes"):
					want = 2
				}
				cmd := exec.Command("bash", "-o", "pipefail", "-uc", "umask 077; "+text)
				cmd.Dir = dir
				cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "LANG=C", "COLUMNS=80", "TMPDIR=" + dir, asProgram + "=1"}
				if out, err := runExample(t, cmd, want == 130); exitCode(err) != want {
					t.Errorf("%s: %v\n%s", line, err, out)
				}
			}
		})
	}
}

// runExample runs a line to its end, or until it has said something or worked for
// a while.
func runExample(t *testing.T, cmd *exec.Cmd, cut bool) ([]byte, error) {
	if !cut {
		return cmd.CombinedOutput()
	}
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	awaitOutput(t, cmd, out)
	_ = cmd.Process.Signal(os.Interrupt) // fails if it has ended
	err = cmd.Wait()
	text, readErr := os.ReadFile(out.Name())
	return text, errors.Join(err, readErr)
}

// awaitOutput returns when the file that a process writes to has something in it,
// or the process has used a third of a second of processor time: then it is past
// its start, and an interrupt is its own affair.
func awaitOutput(t *testing.T, cmd *exec.Cmd, out *os.File) {
	t.Helper()
	const enough = 33 // ticks of 10 ms
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if st, err := out.Stat(); err != nil || st.Size() > 0 {
			return
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		if err != nil {
			return
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		f := strings.Fields(rest)
		user, _ := strconv.Atoi(f[11])
		if sys, _ := strconv.Atoi(f[12]); user+sys > enough || f[0] == "Z" {
			return
		}
	}
}

// sandbox is a directory with what the examples name.
func sandbox(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	store := filepath.Join(dir, "DIR")
	for _, args := range [][]string{
		{"format", "--size", "64MiB", "--yes"}, // as most examples make one
		{"put", "greeting", "-"}, {"put", "farewell", "-"}, {"put", "--hex", "00ff", "-"}, {"put", "--hex", "00fe", "-"},
	} {
		if _, errs, code := call(t, "hello, world", append(args, "--store", store)...); code != 0 {
			t.Fatal(errs)
		}
	}
	for name, text := range map[string]string{"report.pdf": "a report", "disk0": "",
		"t.jsonl": `{"timestamp": 0, "hash_ids": [1, 2, 3]}` + "\n" + `{"timestamp": 9, "hash_ids": [1, 4]}` + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(filepath.Join(dir, "disk0"), 64<<20); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestHelp: every verb explains itself within 80 columns, also when it needs
// arguments.
func TestHelp(t *testing.T) {
	names := []string{""}
	for _, v := range verbs(t) {
		names = append(names, verbName(v))
	}
	for _, name := range names {
		out, errs, code := call(t, "", append(strings.Fields(name), "--help")...)
		if code != 0 || errs != "" || !strings.Contains(out, "Usage:") {
			t.Errorf("%s: exit %d, %s", name, code, errs)
		}
		for line := range strings.Lines(out) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%s: a line of %d columns: %s", name, n, line)
			}
		}
	}
}

// TestMan: a page for the program and for each verb, with its examples, and the
// same ones each time.
func TestMan(t *testing.T) {
	dir := t.TempDir()
	var last string
	for _, to := range []string{"a", "b"} {
		if _, errs, code := call(t, "", "man", filepath.Join(dir, to)); code != 0 {
			t.Fatal(errs)
		}
		var all strings.Builder
		for _, v := range append(verbs(t), newRoot(&ctl.Env{})) {
			name := strings.ReplaceAll(v.CommandPath(), " ", "-") + ".1"
			data, err := os.ReadFile(filepath.Join(dir, to, name))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(string(data), ".nh\n.TH") || v.Example != "" && !strings.Contains(string(data), ".SH EXAMPLE") {
				t.Errorf("%s is no page: %.80s", name, data)
			}
			all.Write(data)
		}
		if last != "" && all.String() != last {
			t.Error("the pages differ from one time to the next")
		}
		last = all.String()
	}
	if strings.Contains(last, "=[]") || !strings.Contains(last, `"Nov 2026"`) {
		t.Error("a page has an odd default, or another date")
	}
	if strings.Contains(last, "bench\\-case") {
		t.Error("a page names a hidden verb")
	}
}

// TestCompletion: the scripts are what their shells can read, and the program
// answers them.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		out, errs, code := call(t, "", "completion", shell)
		if code != 0 || !strings.Contains(out, "__complete") {
			t.Errorf("%s: exit %d, %s", shell, code, errs)
		}
		if path, err := exec.LookPath(shell); err == nil {
			cmd := exec.Command(path, "-n")
			cmd.Stdin = strings.NewReader(out)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", shell, err, out)
			}
		}
	}
	for args, want := range map[string]string{"ver": "verify\t", "fsck --veri": "--verify-data\t", "completion z": "zsh",
		"device li": "list\t", "bench --comple": "--completion\t"} {
		out, errs, code := call(t, "", append([]string{"__complete"}, strings.Fields(args)...)...)
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("%s: exit %d, %q %s", args, code, out, errs)
		}
	}
}

// TestHelpCannotBeWritten: help that nobody can have read is a failure, told once.
func TestHelpCannotBeWritten(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, args := range []string{"", "help", "help put", "put --help", "device", "__complete pu"} {
		var errs bytes.Buffer
		code := execute(t.Context(), &ctl.Env{Stdout: full, Stderr: &errs}, strings.Fields(args))
		if code != 1 || strings.Count(errs.String(), "no space left") != 1 {
			t.Errorf("%s: exit %d, %q", args, code, &errs)
		}
	}
}

// TestFlagsSayWhatTheyDo: --gpu adds a GPU to what check looks at, and is a choice for
// explain; --json does not change help.
func TestFlagsSayWhatTheyDo(t *testing.T) {
	for verb, want := range map[string]string{"check": "look at this GPU as well", "explain": "look at this GPU only, not at every one",
		"ls": "help stays text"} {
		if out, _, code := call(t, "", verb, "--help", "--json"); code != 0 || !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("%s: exit %d, no %q in\n%s", verb, code, want, out)
		}
	}
}
