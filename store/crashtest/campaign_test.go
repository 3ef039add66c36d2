package crashtest

import (
	"context"
	"flag"
	"testing"
	"time"
)

var (
	flagSeed = flag.Uint64("seed", 1, "seed of the first workload")
	flagCuts = flag.Int("cuts", 600, "cuts to check")
)

func TestCampaign(t *testing.T) {
	start := time.Now()
	r := Run(context.Background(), Config{Seed: *flagSeed, Cuts: *flagCuts, StopAfter: 20, Log: t.Logf})
	t.Logf("%+v", r.ByState)
	t.Logf("workloads %d cuts %d points %d ops %d differ %d median %d in %v; bycut %v power %d outcome %v", r.Workloads, r.Cuts, r.Points, r.Ops, r.Differ, r.MedianUnresolved(), time.Since(start), r.ByCut, r.PowerCuts, r.Outcome)
	for _, v := range r.Violations {
		t.Error(v)
	}
}
