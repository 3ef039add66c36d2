package ctl

import (
	"slices"
	"strconv"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/tools/bench"
)

// benchMode is one of the things that a bench can measure, and the flags that it heeds.
type benchMode struct {
	name  string // in messages
	flags []string
	most  benchMost
}

// benchMost are the largest numbers of a mode.
type benchMost struct{ callers, batch, depth int }

// What a bench can measure.
var (
	benchScales  = benchMode{name: "--scale", flags: []string{"scale", "rounds", "seed", "dir", "keep"}}
	benchGathers = benchMode{name: "--workload " + BenchGather, flags: []string{"workload", "store", "meta", "device",
		"dir", "keep", "size", "bytes", "ranges", "rounds", "seed", "explain"}}
	benchDevices = benchMode{"--device without a store", []string{"device", "op", "size", "callers", "depth", "batch", "bytes",
		"completion", "seed", "yes", "explain"}, benchMost{bench.MaxDeviceThreads, bench.MaxDeviceDepth, bench.MaxDeviceDepth}}
	benchSuites = benchMode{name: "a suite (--op names operations instead)", flags: []string{"suite", "store", "meta", "device",
		"dir", "keep", "raw", "yes", "bytes", "rounds", "seed", "html", "force", "gpu"}}
	benchSweeps = benchMode{"--op", append([]string{"op", "size", "callers", "depth", "batch", "durability", "plain", "against"},
		benchSuites.flags[1:]...), benchMost{bench.MaxCallers, bench.MaxCallers * 64, bench.MaxDepth}}
)

// mode is what the options ask for.
func (o *BenchOptions) mode(t *Target) *benchMode {
	switch {
	case len(o.Scale) > 0:
		return &benchScales
	case o.Workload != "":
		return &benchGathers
	case BenchesDevice(t):
		return &benchDevices
	case len(o.Ops) > 0:
		return &benchSweeps
	}
	return &benchSuites
}

// check refuses options that the mode does not heed, and numbers that are not possible.
func (o *BenchOptions) check(m *benchMode) error {
	for _, name := range o.Given {
		if !slices.Contains(m.flags, name) {
			return usage("bench", "--%s does not go with %s", name, m.name)
		}
	}
	if o.Workload != "" && o.Workload != BenchGather {
		return usage("bench", "--workload %q: there is %s", o.Workload, BenchGather)
	}
	least := int64(base.MiB)
	if m == &benchDevices {
		least = 1
	}
	if slices.Contains(m.flags, "bytes") && o.Bytes < least {
		return usage("bench", "--bytes %s: at least %s", FlagBytes(o.Bytes), FlagBytes(least))
	}
	depth := 0 // the batch
	if slices.Contains(o.Given, "depth") {
		depth = 1
	}
	for _, c := range []struct {
		name        string
		numbers     []int
		least, most int
	}{
		{"rounds", []int{o.Rounds}, 1, bench.MaxRounds},
		{"ranges", []int{o.Ranges}, 1, bench.MaxRanges},
		{"scale", o.Scale, 1, bench.MaxScale},
		{"callers", o.Callers, 1, m.most.callers},
		{"batch", o.Batches, 1, m.most.batch},
		{"depth", o.Depths, depth, m.most.depth},
	} {
		if !slices.Contains(m.flags, c.name) {
			continue
		}
		for i, n := range c.numbers {
			if n < c.least || n > c.most {
				return usage("bench", "--%s %d: %d to %d are possible", c.name, n, max(c.least, 1), c.most)
			}
			if slices.Contains(c.numbers[:i], n) {
				return twice(c.name, strconv.Itoa(n))
			}
		}
	}
	return o.checkNames()
}

// checkNames refuses what is listed twice: it would be measured twice and say the same.
func (o *BenchOptions) checkNames() error {
	for _, list := range []struct {
		flag  string
		names []string
	}{{"op", o.Ops}, {"size", o.Sizes}, {"completion", o.Completion}, {"against", o.Against}} {
		seen := map[string]bool{}
		for _, name := range list.names {
			key := name
			if n, err := base.ParseBytes(name); list.flag == "size" && err == nil {
				key = strconv.FormatInt(n, 10)
			}
			if seen[key] {
				return twice(list.flag, name)
			}
			seen[key] = true
		}
	}
	return nil
}

func twice(flag, value string) error { return usage("bench", "--%s names %s twice", flag, value) }
