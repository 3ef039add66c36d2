package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDemoOnModels runs the demo, its second process included, on a pool of two
// controller models of different shapes, and looks that nothing is left behind.
func TestDemoOnModels(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	args := []string{"demo", "--size", "16MiB", "--store", filepath.Join(dir, "s"), "--json",
		"--device", "sim:lba=512,mdts=2,path=" + a, "--device", "sim:mqes=8,sgl=1,path=" + b}
	out, errs, code := call(t, "", args...)
	if code != 0 {
		t.Fatal(errs)
	}
	var doc struct {
		Verify struct {
			Get     struct{ Objects int }
			Devices []struct{ Transport, Target string }
		}
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil || doc.Verify.Get.Objects == 0 ||
		len(doc.Verify.Devices) != 2 || doc.Verify.Devices[1].Transport != "sim" || !strings.Contains(doc.Verify.Devices[0].Target, a) {
		t.Errorf("%v in %s", err, out)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	// What is there is neither taken nor removed.
	if err := os.WriteFile(a, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := call(t, "", args...); code != 4 || !strings.Contains(errs, "name a new file") {
		t.Errorf("exit %d, %s", code, errs)
	}
	if kept, err := os.ReadFile(a); err != nil || string(kept) != "mine" {
		t.Errorf("%q, %v", kept, err)
	}
}

// TestModelsBetweenProcesses: what one process puts on a model another one reads;
// while one has it open for writing nobody else does; and a process that is killed
// lets go of it.
func TestModelsBetweenProcesses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	model := "sim:lba=512,path=" + filepath.Join(filepath.Dir(dir), "model")
	run := func(want int, stdin string, args ...string) string {
		t.Helper()
		cmd := program(t, append(args, "--store", dir)...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if code := exitCode(err); code != want {
			t.Fatalf("%v: exit %d, want %d: %s", args, code, want, out)
		}
		return string(out)
	}
	run(0, "", "format", "--device", model, "--size", "64MiB", "--yes")
	value := strings.Repeat("between processes ", 20_000)
	run(0, value, "put", "key", "-")
	if got := run(0, "", "get", "key", "-"); got != value {
		t.Errorf("%d bytes, want %d", len(got), len(value))
	}
	cmd, stdin, _ := startPut(t, dir)
	if _, err := stdin.Write(make([]byte, 3<<20)); err != nil {
		t.Fatal(err)
	}
	who := fmt.Sprintf("pid %d (", cmd.Process.Pid)
	for _, args := range [][]string{{"put", "other", "-"}, {"ls"}} {
		if says := run(5, "", args...); !strings.Contains(says, who) || !strings.Contains(says, "ugdsctl stats --pid ") {
			t.Errorf("%v: %s", args, says)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if got := run(0, "", "ls"); got != "key\n" {
		t.Errorf("after the kill: %q", got)
	}
	trace := `{"timestamp": 0, "hash_ids": [1, 2, 3]}` + "\n" + `{"timestamp": 1, "hash_ids": [1, 2, 4, 4]}` + "\n"
	for i, want := range []string{`"hits": 3`, `"hits": 7`} {
		if got := run(0, trace, "replay", "--trace", "-", "--block-bytes", "5000", "--verify", "--json"); !strings.Contains(got, want) {
			t.Errorf("replay %d: no %s in %s", i, want, got)
		}
	}
	run(0, "", "verify")
	run(0, "", "fsck", "--verify-data")
}
