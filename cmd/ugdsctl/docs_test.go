package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/tools/doctest"
)

// TestDocumentedCommands runs the commands of docs/cli.md, in order and in one
// directory, with a tree of odd names: it comes back as it was, twice.
func TestDocumentedCommands(t *testing.T) {
	data, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := doctest.Fenced(string(data), "sh")
	if len(blocks) < 3 {
		t.Fatalf("only %d blocks", len(blocks))
	}
	dir, bin := sandbox(t), binDir(t)
	for name, text := range map[string]string{"a": "one", "-dash/b c": "two", "deep/er/é": "", "deep/-": "four",
		"line\nfeed": "five", "tab\there": "six", "\xff\xfe/hex:00": "seven", "end\n/x": "eight"} {
		path := filepath.Join(dir, "tree", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	for _, block := range blocks {
		runShell(t, dir, bin, block)
	}
	for _, twin := range []string{"restored/tree", "unpacked/tree"} {
		runShell(t, dir, bin, "diff -r tree "+twin)
	}
}

// binDir is a directory with ugdsctl in it.
func binDir(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.Symlink(self, filepath.Join(bin, "ugdsctl")); err != nil {
		t.Fatal(err)
	}
	return bin
}

func runShell(t *testing.T, dir, bin, text string) {
	t.Helper()
	cmd := exec.Command("bash", "-o", "pipefail", "-euc", text)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "LANG=C", asProgram + "=1"}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", text, err, out)
	}
}

// TestNamespaceBytes: a namespace whose name is not Unicode is told exactly in
// each document.
func TestNamespaceBytes(t *testing.T) {
	dir := newStore(t)
	const name, hexName = "bad\nns\xff", "6261640a6e73ff"
	for _, args := range [][]string{
		{"put", "--namespace", name, "k", "-"}, {"stat"}, {"usage"}, {"fsck"}, {"ls", "--namespace", name},
		{"stat", "--namespace", name, "k"}, {"verify", "--all-namespaces"}, {"exists", "--namespace", name, "k"},
		{"get", "--namespace", name, "k", filepath.Join(t.TempDir(), "out")}, {"rm", "--namespace", name, "k"},
	} {
		out, errs, code := call(t, "value", append(args, "--store", dir, "--json")...)
		if code != 0 || !strings.Contains(out, `"`+hexName+`"`) || !json.Valid([]byte(out)) {
			t.Errorf("%v: exit %d %s\n%s", args, code, errs, out)
		}
	}
}

// TestDamagedDatabase: a damaged table of the database is told in one line that
// says what helps.
func TestDamagedDatabase(t *testing.T) {
	dir := newStore(t)
	for range 2 { // the second open writes the first one's log into a table
		if _, errs, code := call(t, "value", "put", "--store", dir, "--replace", "k", "-"); code != 0 {
			t.Fatal(errs)
		}
	}
	tables, err := filepath.Glob(filepath.Join(dir, "meta", "db", "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("no tables: %v", err)
	}
	for _, path := range tables {
		damageAt(t, path, "20")
	}
	_, errs, code := call(t, "", "ls", "--store", dir)
	if code != 1 || strings.Count(errs, "\n") != 1 || strings.Contains(errs, "carrier") ||
		strings.Count(errs, "open metadata") != 1 || !strings.Contains(errs, "bring the whole directory back") {
		t.Errorf("exit %d: %s", code, errs)
	}
	out, _, code := call(t, "", "fsck", "--store", dir)
	if code != 4 || strings.Count(out, "\n") != 3 || strings.Contains(out, "carrier") {
		t.Errorf("fsck: exit %d: %s", code, out)
	}
}
