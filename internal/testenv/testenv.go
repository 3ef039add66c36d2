// Package testenv holds what the tests of all packages share: counted skips,
// seeds, and the check that nothing leaked.
package testenv

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// noSkip makes a skip a failure: continuous integration must run everything.
const noSkip = "UGDS_NO_SKIP"

var seed = flag.Uint64("seed", 0, "seed of random tests; 0 takes one from the clock")

// Skip skips the test with a line that can be counted, or fails it when
// UGDS_NO_SKIP=1 is set.
func Skip(t testing.TB, reason string) {
	t.Helper()
	fmt.Printf("SKIP-COUNTED: %s: %s\n", t.Name(), reason)
	if os.Getenv(noSkip) == "1" {
		t.Fatalf("skipped although %s=1: %s", noSkip, reason)
	}
	t.Skip(reason)
}

// NeedRoot skips the test without root.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Skip(t, "needs root")
	}
}

// Hold starts a process, sleep, that has path open until the test ends, and gives its
// number.
func Hold(t testing.TB, path string) (pid int) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := exec.Command("sleep", "60")
	c.Stdin = f
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait() // killed
	})
	return c.Process.Pid
}

var seedOnce = sync.OnceValue(func() uint64 {
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	fmt.Printf("seed: -seed=%d\n", s)
	return s
})

// Seed gives a random source for one test. Its seed is printed once a test
// binary; the flag -seed repeats it. Each test has its own stream, whatever
// else runs.
func Seed(t testing.TB) *rand.Rand {
	var h uint64 = 14695981039346656037
	for _, c := range []byte(t.Name()) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return rand.New(rand.NewPCG(seedOnce(), h))
}
