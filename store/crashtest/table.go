package crashtest

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// What `make crash` must reach.
const (
	WantCuts      = 20000
	WantRaceCuts  = 1000
	WantPoints    = 5000
	WantPerState  = 300
	WantOpsPerRun = 300

	// On controller models.
	WantControllerCuts = 5000
)

// Print writes the report of a campaign.
func (r *Result) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(format string, args ...any) { fmt.Fprintf(t, format+"\n", args...) }
	line("seeds\t%d to %d", r.Seed, r.LastSeed)
	line("workloads\t%d with %d lives, %d puts and deletes, fewest %d a life", r.Workloads, r.Lives, r.Ops, r.FewestOps)
	line("cuts\t%d (%d everything, %d host alone, %d metadata alone)", r.Cuts,
		r.ByCut[CutAll], r.ByCut[CutHost], r.ByCut[CutMeta])
	line("pools\t%d cuts of one disk, %d of two, %d of three", r.ByDisks[1], r.ByDisks[2], r.ByDisks[3])
	line("disks that lost power alone\t%d, the process lived on", r.PowerCuts)
	line("metadata disks that died\t%d", r.MetaDeaths)
	line("distinct (seed, write index)\t%d", r.Points)
	line("other than \"all landed\"\t%d (%d %%)", r.Differ, 100*r.Differ/max(1, r.Cuts))
	line("unflushed writes\tmedian %d an image; %v", r.MedianUnresolved(), r.Outcome)
	line("looked at twice\t%d checked by fsck, %d opened again, %d written to", r.Checked, r.Again, r.Churned)
	line("state\tcuts")
	for s := range NumStates {
		line("  %s\t%d", s, r.ByState[s])
	}
	line("violations\t%d", len(r.Violations))
	return t.Flush()
}

// Missing lists what a full campaign of so many cuts should have reached and did
// not; what WantCuts reach is asked of fewer in proportion.
func (r *Result) Missing(cuts int) (out []string) {
	need := func(what string, have, want int) {
		if have < want {
			out = append(out, fmt.Sprintf("%s: %d of %d", what, have, want))
		}
	}
	need("cuts", r.Cuts, cuts)
	need("distinct (seed, write index) pairs", r.Points, WantPoints*cuts/WantCuts)
	need("images other than all landed", r.Differ, (r.Cuts+1)/2)
	need("operations of a workload", r.FewestOps, WantOpsPerRun)
	for s := range NumStates {
		need("state "+s.String(), r.ByState[s], WantPerState*cuts/WantCuts)
	}
	for n := range r.ByDisks[1:] {
		need(fmt.Sprintf("pools of %d", n+1), r.ByDisks[n+1], cuts/10)
	}
	return out
}

// StatesNamed parses a comma-separated list of states; their names may be cut
// short.
func StatesNamed(list string) (set States, err error) {
	for name := range strings.SplitSeq(list, ",") {
		found := false
		for s := range NumStates {
			if name != "" && strings.HasPrefix(s.String(), strings.TrimSpace(name)) {
				set.add(s)
				found = true
			}
		}
		if !found && list != "" {
			return 0, fmt.Errorf("no state %q", name)
		}
	}
	return set, nil
}
