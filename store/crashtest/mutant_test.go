//go:build ugds_mutants

package crashtest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/ugds-store/ugds/internal/mutant"
)

// mutantCuts is within how many cuts the main campaign must find each safeguard
// that is switched off.
const mutantCuts = 2000

// mutantShots is how often a life is cut at most, so that the cuts are of many
// lives: what finds a safeguard missing is often a thing that a life has or has not.
const mutantShots = 10

var (
	flagMutant      = flag.Int("mutant", 0, "switch this safeguard off in TestMutant")
	flagControllers = flag.Bool("controllers", false, "and let TestMutant run on controller models")
)

// TestMutants switches the safeguards off one by one. Each must be found by the
// generator and the seeds of the main campaign. Each runs in a process of its
// own, since a store without its safeguards may also panic: its allocator
// refuses to free a slot twice. That counts as found.
func TestMutants(t *testing.T) { testMutants(t, false) }

// TestMutantsOnControllers does the same on controller models.
func TestMutantsOnControllers(t *testing.T) { testMutants(t, true) }

func testMutants(t *testing.T, controllers bool) {
	for m := mutant.None + 1; m < mutant.End; m++ {
		t.Run(m.String(), func(t *testing.T) {
			start := time.Now()
			cmd := exec.Command(os.Args[0], "-test.run=^TestMutant$", "-test.v", fmt.Sprintf("-controllers=%v", controllers),
				fmt.Sprintf("-mutant=%d", m), fmt.Sprintf("-seed=%d", firstSeed()))
			out, err := cmd.CombinedOutput()
			at, how := verdict(string(out))
			switch {
			case at < 0:
				t.Fatalf("no verdict: %v\n%s", err, tail(string(out)))
			case how == "":
				t.Fatalf("not found in %d cuts", at)
			}
			t.Logf("found by cut %d after %v: %.240s", at, time.Since(start).Round(10*time.Millisecond), how)
		})
	}
}

var (
	foundLine  = regexp.MustCompile(`MUTANT found at (\d+): (.*)`)
	missedLine = regexp.MustCompile(`MUTANT missed in (\d+)`)
	cutsLine   = regexp.MustCompile(`MUTANT cuts (\d+)`)
	panicLine  = regexp.MustCompile(`(?m)^(panic: .*|fatal error: .*)$`)
)

// verdict reads the output of TestMutant: the number of the cut, and what found
// the mutant, "" for nothing.
func verdict(out string) (int, string) {
	number := func(s string) int { n, _ := strconv.Atoi(s); return n }
	if m := foundLine.FindStringSubmatch(out); m != nil {
		return number(m[1]), m[2]
	}
	if m := missedLine.FindStringSubmatch(out); m != nil {
		return number(m[1]), ""
	}
	if m := panicLine.FindString(out); m != "" {
		all := cutsLine.FindAllStringSubmatch(out, -1)
		if len(all) == 0 {
			return 0, m
		}
		return number(all[len(all)-1][1]), m
	}
	return -1, ""
}

func tail(s string) string { return s[max(0, len(s)-2000):] }

// TestMutant is one safeguard switched off, in the process that TestMutants
// starts for it.
func TestMutant(t *testing.T) {
	if *flagMutant == 0 {
		return
	}
	mutant.Set(mutant.ID(*flagMutant))
	tune := func(s *Setup) {
		s.MaxShots = mutantShots
		if *flagControllers {
			UseControllers(s)
		}
	}
	r := Run(context.Background(), Config{Seed: firstSeed(), Cuts: mutantCuts, Tune: tune,
		OnLife: func(cuts int) { fmt.Printf("MUTANT cuts %d\n", cuts) }})
	if len(r.Violations) == 0 {
		fmt.Printf("MUTANT missed in %d\n", r.Cuts)
		return
	}
	fmt.Printf("MUTANT found at %d: %s\n", r.FirstAt, r.Violations[0])
}
