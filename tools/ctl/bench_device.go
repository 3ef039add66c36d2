package ctl

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/tools/bench"
)

type benchDeviceDoc struct {
	header
	Device *bench.DeviceReport `json:"device"`
}

type benchGatherDoc struct {
	header
	Gather *bench.GatherReport `json:"gather"`
}

// BenchesDevice tells whether the target means devices themselves and no store.
func BenchesDevice(t *Target) bool { return len(t.Devices) > 0 && t.Dir == "" && t.Meta == "" }

// maxDeviceCases bounds the product of what the options list.
const maxDeviceCases = 1000

// benchDevice measures a device without a store, or several one after the other.
func benchDevice(ctx context.Context, e *Env, t *Target, o *BenchOptions) error {
	if len(t.Devices) > 1 {
		return usage("bench", "%d devices: one at a time is measured", len(t.Devices))
	}
	parsed, err := probe.Parse(t.Devices[0])
	if err != nil {
		return err
	}
	if path, ok := filePath(t.Devices[0]); ok && (o.Yes || slices.Contains(o.Ops, bench.OpWrite)) {
		if err := spareParts("bench", path); err != nil {
			return err
		}
	}
	plan := bench.DevicePlan{Target: t.Devices[0], Overwrite: o.Yes}
	if plan.Cases, err = deviceCases(o, parsed.Scheme != "file"); err != nil {
		return err
	}
	bar := e.steps("bench", len(plan.Cases))
	plan.Progress = func(done int) { bar.Add(int64(min(done, 1))) }
	r, err := bench.RunDevice(ctx, plan)
	bar.Done()
	if err != nil {
		return stopped(ctx, forbidden(err, plan.Target))
	}
	if e.JSON {
		return e.emit(benchDeviceDoc{head("bench", nil), r})
	}
	return r.WriteTable(e.Stdout, o.Explain)
}

// deviceCases are all combinations of what the options list. A batch larger than
// the depth is left out.
func deviceCases(o *BenchOptions, controller bool) ([]bench.DeviceCase, error) {
	hows := o.Completion
	switch {
	case !controller && len(hows) > 0:
		return nil, usage("bench", "--completion: the kernel drives this device, which leaves no choice")
	case !controller:
		hows = []string{""}
	case len(hows) == 0:
		hows = []string{bench.Polling}
	}
	for _, how := range hows {
		if controller && !slices.Contains(bench.Completions, how) {
			return nil, usage("bench", "--completion %q: there are %s", how, strings.Join(bench.Completions, ", "))
		}
	}
	for _, op := range o.Ops {
		if op != bench.OpRead && op != bench.OpWrite {
			return nil, usage("bench", "--op %q: a device has %s and %s", op, bench.OpRead, bench.OpWrite)
		}
	}
	var out []bench.DeviceCase
	for _, how := range hows {
		for _, op := range o.Ops {
			for _, text := range o.Sizes {
				size, err := base.ParseBytes(text)
				if err != nil {
					return nil, usage("bench", "--size %q: write a number and a binary unit, for example 64KiB", text)
				}
				out = append(out, windows(o, bench.DeviceCase{Op: op, Size: size, Completion: how, Bytes: o.Bytes, Seed: o.Seed})...)
			}
		}
	}
	if len(out) == 0 || len(out) > maxDeviceCases {
		return nil, usage("bench", "%d cases: 1 to %d are possible, and a batch is not larger than the depth", len(out), maxDeviceCases)
	}
	return out, nil
}

// windows are the combinations of callers, depths and batches of one case. A depth
// of 0 is that of the batch.
func windows(o *BenchOptions, c bench.DeviceCase) (out []bench.DeviceCase) {
	for _, c.Threads = range o.Callers {
		for _, depth := range o.Depths {
			for _, c.Batch = range o.Batches {
				c.Depth = depth
				if depth == 0 {
					c.Depth = c.Batch
				}
				if c.Batch <= c.Depth {
					out = append(out, c)
				}
			}
		}
	}
	return out
}

// benchGather reads many small ranges in one call and in many: of a store that is
// named, of one on a model in memory, or of one that it makes.
func benchGather(ctx context.Context, e *Env, t *Target, o *BenchOptions) (err error) {
	if len(o.Sizes) != 1 {
		return usage("bench", "--size: values of one size")
	}
	plan := bench.GatherPlan{Bytes: o.Bytes, Ranges: o.Ranges, Rounds: o.Rounds, Seed: o.Seed}
	if plan.Size, err = base.ParseBytes(o.Sizes[0]); err != nil {
		return usage("bench", "--size %q: write a number and a binary unit, for example 64KiB", o.Sizes[0])
	}
	if plan.Model, err = gatherModel(t); err != nil {
		return err
	}
	if plan.Model == "" {
		if plan.Place, err = benchPlace(ctx, t, o, o.Bytes); err != nil {
			return err
		}
	}
	dir, err := e.benchDir(o, o.Bytes)
	if err != nil {
		return err
	}
	plan.Place.Dir = dir.path
	defer func() { err = errors.Join(err, dir.close(o.Keep)) }()
	if plan.Model == "" && len(plan.Place.Devices) == 0 {
		bar := e.progress("prepare", bench.PrepareBytes(bench.Place{Raw: "none"}, o.Bytes))
		err := bench.PrepareStore(ctx, plan.Place, o.Bytes, bar.Add)
		bar.Done()
		if err != nil {
			return stopped(ctx, err)
		}
	}
	bar := e.steps("gather", 4*o.Rounds)
	plan.Progress = func(done, _ int) { bar.Add(int64(min(done, 1))) }
	r, err := bench.Gather(ctx, plan)
	bar.Done()
	if err != nil {
		return stopped(ctx, err)
	}
	if e.JSON {
		return e.emit(benchGatherDoc{head("bench", nil), r})
	}
	return r.WriteTable(e.Stdout, o.Explain)
}

// gatherModel is the model in memory that the target names alone, or "". Anything
// else that has no store yet would have to be overwritten.
func gatherModel(t *Target) (string, error) {
	if !BenchesDevice(t) {
		return "", nil
	}
	parsed, err := probe.Parse(t.Devices[0])
	if err != nil {
		return "", err
	}
	if _, _, onFile := parsed.File(); onFile || parsed.Scheme != "sim" || len(t.Devices) > 1 {
		return "", usage("bench", "--workload %s makes a store on one model in memory only; make one with format and name it with --store", BenchGather)
	}
	return t.Devices[0], bench.WallClock(t.Devices...)
}
