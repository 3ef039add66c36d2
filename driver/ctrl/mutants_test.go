package ctrl_test

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// runMutants builds the package once for each mutant, which takes a minute.
var runMutants = flag.Bool("mutants", false, "show that each safeguard of the driver is needed")

// mutants are the driver with one safeguard less: in a file, one text instead of
// another. Those that the rules and the tests must catch.
var mutants = map[string]struct{ file, old, new string }{
	"skip the generation check": {"queue.go", "!s.live || s.cid != cid || s.parked", "!s.live || s.parked"},
	"no new generation":         {"queue.go", "if s.cid += q.mask + 1; s.cid == 0xffff {", "if s.cid == 0xffff {"},
	"complete by slot": {"queue.go", "	i := cid & q.mask\n	if int(i)",
		"	i := uint16(q.cqHead) % uint16(len(q.slots))\n	cid = q.slots[i].cid\n	if int(i)"},
	"ignore SQHD": {"queue.go",
		"case uint32(sqhd) >= q.size || q.dist(q.head, uint32(sqhd)) > q.dist(q.head, q.rung):", "case false:"},
	"ignore SQID": {"queue.go", "case sqid != q.id:\n		return nil", "case false:\n		return nil"},
	"skip the generation check of simple commands": {"quick.go", "if s.cid != dw3.CID() || s.kind", "if s.kind"},
	"ignore SQHD of simple commands":               {"quick.go", " || to >= q.size || step > told {", " {"},
	"ignore SQID of simple commands":               {"quick.go", "if c.SQID.Get() != q.id || int(i)", "if int(i)"},
	"free at timeout": {"state.go", "	d.killQueues()\n	for {\n		removed",
		"	d.killQueues()\n	for _, q := range d.allQueues() {\n		q.abandon(base.ErrIsolated)\n	}\n	for {\n		removed"},
	"ring before store": {"submit.go", "	if err := d.fill(q, s, e, &m); err != nil {\n",
		"	q.rung = q.next(q.tail)\n	_ = q.sqBell.Ring(q.rung)\n	if err := d.fill(q, s, e, &m); err != nil {\n"},
	"forget the phase": {"queue.go", "q.cqHead, q.phase = 0, !q.phase", "q.cqHead = 0"},
	"no deadline":      {"queue.go", "	if q.dead || int64(now) < q.due.Load() {", "	if q.id != 0 || q.dead || int64(now) < q.due.Load() {"},
	"retry for ever":   {"queue.go", "s.tries < maxTries && ", ""},
	"flush again":      {"queue.go", " && s.opc != nvme.OpFlush && !s.aborted:", " && !s.aborted:"},
	"abort again":      {"abort.go", "	if !s.aborted {\n		q.dev.abort(q, s)", "	if true {\n		q.dev.abort(q, s)"},
	"two aborts":       {"abort.go", "if a.sent != nil && !a.sent.done.Load() {", "if false {"},
	"no abort":         {"abort.go", "if q.id == 0 || now >= end {", "if true {"},
	"abort for ever":   {"abort.go", "if q.id == 0 || now >= end {", "if q.id == 0 {"},
	"doorbell while stopping": {"submit.go", "	if !q.dead && d.State() == driver.StateReady {",
		"	if true {"},
	"ready before disable": {"bringup.go", "return s.Fatal() || s.Ready() && !s.ShutdownActive() || s.ShutdownDone()", "return true"},
	"no shutdown":          {"device.go", "d.cc.WithShutdown(nvme.ShutdownNormal)", "d.cc"},
	"more than MDTS":       {"submit.go", "uint64(e.Len-at)>>shift, most, boundary)", "uint64(e.Len-at)>>shift, most+1, boundary)"},
}

// hangs are the mutants with which commands never end: the tests do not either.
var hangs = map[string]bool{"no deadline": true, "abort for ever": true, "doorbell while stopping": true}

// TestMutants: each mutant fails the tests. Without the flag it only checks that
// the texts are still in the source.
func TestMutants(t *testing.T) {
	usual := time.Duration(0)
	if *runMutants {
		usual = control(t)
	}
	for name, m := range mutants {
		src, err := os.ReadFile(m.file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(string(src), m.old) != 1 {
			t.Errorf("%s: %d places in %s", name, strings.Count(string(src), m.old), m.file)
		}
		if !*runMutants {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit := time.Minute + 6*usual // a slow machine is no failure
			if hangs[name] {
				limit = 5*time.Second + 3*usual
			}
			out, err := mutate(t, m.file, strings.Replace(string(src), m.old, m.new, 1), limit)
			switch {
			case err == nil:
				t.Error("survived")
			case strings.Contains(out, "panic: test timed out") && !hangs[name]:
				t.Errorf("no test has failed within %v", limit)
			}
			t.Log(firstFailure(out))
		})
	}
}

// control shows that the tests pass without a mutant, and tells how long that takes.
func control(t *testing.T) time.Duration {
	src, err := os.ReadFile("queue.go")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if out, err := mutate(t, "queue.go", string(src)+"\n// Changed nothing.\n", 5*time.Minute); err != nil {
		t.Fatalf("the tests fail without a mutant:\n%s", out)
	}
	return time.Since(start)
}

// mutate runs the tests with another text of a file.
func mutate(t *testing.T, file, text string, limit time.Duration) (string, error) {
	dir := t.TempDir()
	abs, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	other, overlay := filepath.Join(dir, file), filepath.Join(dir, "overlay.json")
	spec, err := json.Marshal(map[string]map[string]string{"Replace": {abs: other}})
	if err == nil {
		err = os.WriteFile(other, []byte(text), 0o600)
	}
	if err == nil {
		err = os.WriteFile(overlay, spec, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "test", "-overlay", overlay, "-timeout", limit.String(), "-failfast", "-short",
		"-run", "Campaign|B02|G04|H02|H03|H12|I04|J11|Invalid|Retry|Flush|Shapes", ".").CombinedOutput()
	if strings.Contains(string(out), "[build failed]") {
		t.Fatalf("%s", out)
	}
	return string(out), err
}

func firstFailure(out string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(line, "_test.go:") || strings.HasPrefix(line, "panic:") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}
