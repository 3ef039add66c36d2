package main

import (
	"strings"
	"testing"
	"time"
)

func run(t *testing.T, verbose bool, events ...string) (string, *report) {
	t.Helper()
	var out strings.Builder
	r := newReport(&out, verbose)
	if err := r.read(strings.NewReader(strings.Join(events, "\n"))); err != nil {
		t.Fatal(err)
	}
	r.summary()
	return out.String(), r
}

func want(t *testing.T, out string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(out, p) {
			t.Errorf("%q is missing in:\n%s", p, out)
		}
	}
}

func TestQuietWhenPassed(t *testing.T) {
	out, _ := run(t, false,
		`{"Action":"output","Package":"p","Test":"TestA","Output":"chatter\n"}`,
		`{"Action":"pass","Package":"p","Test":"TestA","Elapsed":7}`,
		`{"Action":"output","Package":"p","Output":"ok  \tp\t7.0s\n"}`,
		`{"Action":"pass","Package":"p","Elapsed":7}`)
	want(t, out, "ok  \tp\t7.0s\n", "slow: 7.0 s p TestA", "1 passed, 0 failed, 0 skipped")
	if strings.Contains(out, "chatter") {
		t.Error("a passed test was not quiet")
	}
}

func TestFailureTellsAll(t *testing.T) {
	out, _ := run(t, false,
		`{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:1: wrong\n"}`,
		`{"Action":"fail","Package":"p","Test":"TestA","Elapsed":0}`,
		`{"Action":"output","Package":"p","Test":"TestB","Output":"panic: gone\n"}`,
		`{"Action":"output","Package":"p","Output":"LEAK: after all tests\n"}`,
		`{"Action":"output","Package":"p","Output":"FAIL\tp\t7.0s\n"}`,
		`{"Action":"fail","Package":"p"}`,
		`{"Action":"build-output","ImportPath":"q","Output":"q.go:1: no\n"}`)
	want(t, out, "a_test.go:1: wrong", "panic: gone", "LEAK: after all tests", "FAIL\tp\t7.0s\n", "q.go:1: no", "1 failed")
}

func TestSkipsAreCounted(t *testing.T) {
	out, r := run(t, false,
		`{"Action":"output","Package":"p","Test":"TestA","Output":"SKIP-COUNTED: TestA: needs root\n"}`,
		`{"Action":"skip","Package":"p","Test":"TestA","Elapsed":0}`,
		`{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:1: no reason\n"}`,
		`{"Action":"output","Package":"p","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}`,
		`{"Action":"skip","Package":"p","Test":"TestB","Elapsed":0}`)
	want(t, out, "skipped: TestA: needs root", "skipped: p TestB: b_test.go:1: no reason", "2 skipped")
	if r.skips != 2 || strings.Count(out, "TestA") != 1 {
		t.Errorf("%d skips", r.skips)
	}
}

func TestLongFormsAreNoSkips(t *testing.T) {
	out, r := run(t, false,
		`{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:1: run with -long\n"}`,
		`{"Action":"skip","Package":"p","Test":"TestA","Elapsed":0}`)
	want(t, out, "0 skipped, 1 left to make soak")
	if r.skips != 0 {
		t.Errorf("%d skips", r.skips)
	}
}

func TestVerbosePrintsTables(t *testing.T) {
	out, _ := run(t, true,
		`{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}`,
		`{"Action":"output","Package":"p","Test":"TestA","Output":"state  cuts\n"}`,
		`{"Action":"output","Package":"p","Test":"TestA/b","Output":"    --- PASS: TestA/b (0.00s)\n"}`,
		`{"Action":"output","Package":"p","Test":"TestA/b","Output":"    found\n"}`,
		`not json`)
	want(t, out, "state  cuts", "b:     found", "not json")
	if strings.Contains(out, "RUN") || strings.Contains(out, "PASS") {
		t.Error("noise in verbose output")
	}
}

func TestFuzzTargets(t *testing.T) {
	got := fuzzFunc.FindAllStringSubmatch("func FuzzA(f *testing.F) {}\n\tfunc FuzzB(\nfunc Fuzzy() {}\nfunc FuzzC_2(f *testing.F) {}\n", -1)
	if len(got) != 2 || got[0][1] != "FuzzA" || got[1][1] != "FuzzC_2" {
		t.Errorf("found %v", got)
	}
}

func TestFuzzShare(t *testing.T) {
	for _, c := range []struct {
		left    time.Duration
		targets int
		want    time.Duration
	}{{176 * time.Second, 6, 29 * time.Second}, {20 * time.Second, 4, minFuzz}, {3 * time.Second, 4, minFuzz}, {-time.Second, 1, minFuzz}} {
		if got := share(c.left, c.targets); got != c.want {
			t.Errorf("%v for %d targets: %v each, want %v", c.left, c.targets, got, c.want)
		}
	}
}

// TestEndOfTime: what go test says of a finding is never taken for the end of its time.
func TestEndOfTime(t *testing.T) {
	const race = "fuzz: elapsed: 2s, execs: 491 (237/sec), new interesting: 2 (total: 91)\n" +
		"--- FAIL: FuzzA (2.07s)\n    context deadline exceeded\nFAIL\nexit status 1\nFAIL\tp\t2.115s\n"
	if !endOfTime(race) {
		t.Error("the end of the time is a failure")
	}
	for _, found := range []string{
		"--- FAIL: FuzzA (0.10s)\n    --- FAIL: FuzzA (0.00s)\n        a_test.go:7: context deadline exceeded\n    \n" +
			"    Failing input written to testdata/fuzz/FuzzA/0123\nFAIL\n",
		race + "    Failing input written to testdata/fuzz/FuzzA/0123\n",
		"--- FAIL: FuzzA (2.07s)\n    fuzzing process hung or terminated unexpectedly: exit status 2\nFAIL\n",
		"--- FAIL: FuzzA (0.02s)\n    --- FAIL: FuzzA/seed#0 (0.00s)\n        a_test.go:7: context deadline exceeded\nFAIL\n",
	} {
		if endOfTime(found) {
			t.Errorf("taken for the end of the time:\n%s", found)
		}
	}
}
