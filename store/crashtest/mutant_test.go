//go:build ugds_mutants

package crashtest

import (
	"context"
	"testing"
	"time"

	"github.com/ugds-store/ugds/internal/mutant"
)

// mutantCuts is within how many cuts the main campaign must find each safeguard
// that is switched off.
const mutantCuts = 2000

// TestMutants switches the safeguards off one by one. Each must be found by the
// generator and the seeds of the main campaign.
func TestMutants(t *testing.T) {
	defer mutant.Set(mutant.None)
	for m := mutant.None + 1; m < mutant.End; m++ {
		t.Run(m.String(), func(t *testing.T) {
			mutant.Set(m)
			start := time.Now()
			r := Run(context.Background(), Config{Seed: firstSeed(), Cuts: mutantCuts})
			mutant.Set(mutant.None)
			if len(r.Violations) == 0 {
				t.Fatalf("not found in %d cuts of %d workloads", r.Cuts, r.Workloads)
			}
			t.Logf("found at cut %d (workload %d, %v): %.300s", r.FirstAt, r.FirstSeed-r.Seed+1, time.Since(start).Round(time.Millisecond), r.Violations[0])
		})
	}
}
