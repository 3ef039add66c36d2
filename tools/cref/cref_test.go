package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/testenv"
)

var (
	runCounts = flag.Bool("counts", false, "count instructions, which needs valgrind and a C compiler")
	rewrite   = flag.Bool("rewrite", false, "with -counts: write the counts down as the new baseline")
)

func TestMain(m *testing.M) { testenv.Main(m) }

// need skips the test without a program.
func need(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		testenv.Skip(t, "needs "+name)
	}
}

// list is the list of steps in a source, without the signs of the comment.
func list(t *testing.T, path string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	line := regexp.MustCompile(`^ ?(?://|\*) ((?:Steps | ?\d+\. |    ).*)$`)
	for l := range strings.Lines(string(b)) {
		if m := line.FindStringSubmatch(strings.TrimRight(l, "\n")); m != nil {
			out = append(out, m[1])
		}
	}
	return out
}

// TestSteps: the reference and our driver name the same steps, numbered from 1.
func TestSteps(t *testing.T) {
	ours, full := list(t, "../../driver/ctrl/steps.go"), list(t, "c/full.c")
	if strings.Join(ours, "\n") != strings.Join(full, "\n") {
		t.Errorf("ours:\n%s\nthe reference:\n%s", strings.Join(ours, "\n"), strings.Join(full, "\n"))
	}
	n := 0
	for _, l := range ours {
		if l[0] == ' ' && l[1] == ' ' || l[0] == 'S' {
			continue
		}
		n++
		if !strings.HasPrefix(strings.TrimLeft(l, " "), fmt.Sprint(n, ". ")) {
			t.Errorf("step %d is %q", n, l)
		}
	}
	if n < 30 {
		t.Errorf("%d steps were found", n)
	}
}

// TestSameCommands: the reference and our driver send the same commands with the
// same identifiers, which name the same memory.
func TestSameCommands(t *testing.T) {
	need(t, "cc")
	dir := t.TempDir()
	out := filepath.Join(dir, "full")
	if text, err := exec.Command("cc", append(cflags, "-o", out, "c/main.c", "c/full.c")...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	seen := map[string]bool{}
	for _, s := range []shape{
		{"digest", 4 << 10, 1, 1, 700}, {"digest", 4 << 10, 32, 32, 300}, {"digest", 8 << 10, 32, 128, 30},
		{"digest", 64 << 10, 100, 200, 10}, {"digest", 2 << 20, 32, 32, 30},
	} {
		ours, err := run(s.mode, s.size, s.per, s.depth, s.turns)
		if err != nil {
			t.Fatal(err)
		}
		full, _, err := call(s.command(dir, "full"))
		if err != nil {
			t.Fatal(err)
		}
		if ours.Digest != full.Digest || ours.Digest == "" || seen[ours.Digest] {
			t.Errorf("%+v: ours %q, the reference %q", s, ours.Digest, full.Digest)
		}
		seen[ours.Digest] = true
	}
}

// limits are how many instructions a command may cost.
var limits = map[int64]float64{4 << 10: 400, 64 << 10: 900, 2 << 20: 6000}

// slack is how far a count may be above the baseline. Counts are exact for one
// version of Go; other versions may differ by more, and are held to the limits only.
const slack = 1.05

const baselineFile = "testdata/counts.json"

// baseline is what was counted when it was last written down.
type baseline struct {
	Go           string            `json:"go"`
	Instructions map[int64]float64 `json:"instructions"` // a command, by bytes
}

// TestCounts counts what a command costs: instructions below the limits and near
// the baseline, no allocation, one doorbell of each kind for a batch of 32. Ours
// alone is held to anything; the others are for the table.
func TestCounts(t *testing.T) {
	if !*runCounts {
		return // make counts
	}
	need(t, "cc")
	need(t, "valgrind")
	dir := t.TempDir()
	if err := build(".", dir); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(baselineFile)
	var old baseline
	if err == nil {
		err = json.Unmarshal(b, &old)
	}
	if err != nil && !*rewrite {
		t.Fatal(err)
	}
	now := baseline{runtime.Version(), map[int64]float64{}}
	for size, limit := range limits {
		s := shape{"count", size, 32, 32, 100}
		counts := map[string]float64{}
		for _, name := range programs {
			r, n, err := instructions(dir, name, s)
			if err != nil {
				t.Fatal(err)
			}
			counts[name] = n
			if name != "go" {
				continue
			}
			if batches := r.IOs / int64(s.per); r.IOs != int64(s.turns*s.depth) || r.Allocations != 0 || r.Doorbells != 2*batches {
				t.Errorf("%d bytes: %d commands, %d allocations, %d doorbells for %d batches", size, r.IOs, r.Allocations, r.Doorbells, batches)
			}
		}
		t.Logf("%d bytes: %.0f instructions a command, the reference %.0f, the skeleton %.0f",
			size, counts["go"], counts["full"], counts["skeleton"])
		now.Instructions[size] = counts["go"]
		if counts["go"] > limit {
			t.Errorf("%d bytes: %.0f instructions a command, the limit is %.0f", size, counts["go"], limit)
		}
		if was := old.Instructions[size]; old.Go == now.Go && counts["go"] > was*slack && !*rewrite {
			t.Errorf("%d bytes: %.0f instructions a command, it was %.0f: find out why, or write the new counts down with -rewrite",
				size, counts["go"], was)
		}
	}
	if old.Go != now.Go {
		t.Logf("the baseline is of %s, this is %s: only the limits were checked", old.Go, now.Go)
	}
	if *rewrite {
		b, err := json.MarshalIndent(now, "", "  ")
		if err == nil {
			err = os.WriteFile(baselineFile, append(b, '\n'), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
