package main

import (
	"fmt"
	"io"
	"os"
	"text/tabwriter"
)

// timings are what compare measures. duo has the controller in a second thread.
var timings = []shape{
	{mode: "time", size: 4 << 10, per: 32, depth: 32},
	{mode: "time", size: 64 << 10, per: 32, depth: 32},
	{mode: "time", size: 2 << 20, per: 32, depth: 32},
	{mode: "duo", size: 4 << 10, per: 32, depth: 128},
	{mode: "duo", size: 4 << 10, per: 1, depth: 1},
}

// compare runs the programs in turns, in so many processes each, and prints the
// fastest of each, less the fastest of its controller, and how ours compares. A process that was disturbed is slower
// than another, never faster, so the minima of many are what the machine can do.
func compare(w io.Writer, src string, rounds int) error {
	dir, err := os.MkdirTemp("", "cref")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := build(src, dir); err != nil {
		return err
	}
	best := map[shape]map[string]result{}
	for i := range rounds {
		for _, s := range timings {
			s.turns = 1
			if best[s] == nil {
				best[s] = map[string]result{}
			}
			for k := range programs {
				name := programs[(i+k)%len(programs)]
				r, _, err := call(s.command(dir, name))
				if err != nil {
					return err
				}
				old, ok := best[s][name]
				if !ok {
					old = r
				}
				best[s][name] = result{NS: min(old.NS, r.NS), Model: min(old.Model, r.Model)}
			}
		}
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "ns a command, best of %d processes\tskeleton\tfull\tours\tover full\tover skeleton\t\n", rounds)
	for _, s := range timings {
		s.turns = 1
		var ns []float64 // of the driver's part
		for _, name := range programs {
			ns = append(ns, best[s][name].NS-best[s][name].Model)
		}
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f\t%.2f\t%.2f\t\n", s.title(), ns[0], ns[1], ns[2], ns[2]/ns[1], ns[2]/ns[0])
	}
	return t.Flush()
}

// title names a shape for people.
func (s shape) title() string {
	where := "one thread"
	if s.mode == "duo" {
		where = "two threads"
	}
	return fmt.Sprintf("%d KiB, batches of %d, depth %d, %s", s.size>>10, s.per, s.depth, where)
}
