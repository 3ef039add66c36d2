package ctl

import (
	"context"
	"encoding/json"
	"errors"
	"os"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/tools/bench"
)

// scaleOpens bounds the opens of each kind: they are long with many objects.
const scaleOpens = 3

// scalePuts is up to how many objects a scale store is made with puts; above,
// its records are written, and its device stays sparse.
const scalePuts = 1_000_000

type scaleDoc struct {
	header
	Seed   uint64           `json:"seed"`
	Scales []bench.ScaleRow `json:"scales"`
}

// BenchScaleStep does one step of a scale run, given and answered as JSON. It
// tells whether the process must die now, as if it had crashed.
func BenchScaleStep(ctx context.Context, e *Env) (die bool, err error) {
	var st bench.ScaleStep
	if err := json.NewDecoder(e.Stdin).Decode(&st); err != nil {
		return false, usage("bench-scale", "standard input: %v", err)
	}
	s, err := bench.RunScale(ctx, st)
	if err != nil {
		return false, asChild(ctx, err)
	}
	return st.Do == bench.ScaleCrash, json.NewEncoder(e.Stdout).Encode(s)
}

func benchScale(ctx context.Context, e *Env, o *BenchOptions) (err error) {
	most := 0
	for _, n := range o.Scale {
		most = max(most, n)
	}
	dir, err := e.benchDir(o, int64(min(most, scalePuts))*base.StoreBlock/2+int64(most)*64)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.close(o.Keep)) }()
	plan := bench.ScalePlan{Counts: o.Scale, Opens: min(o.Rounds, scaleOpens), Puts: scalePuts, Seed: o.Seed, Dir: dir.path}
	plan.Exec = func(ctx context.Context, st bench.ScaleStep) (*bench.ScaleSample, error) {
		in, err := json.Marshal(st)
		if err != nil {
			return nil, err
		}
		out, err := o.ExecScale(ctx, in)
		s := new(bench.ScaleSample)
		if jerr := json.Unmarshal(out, s); jerr != nil {
			return nil, errors.Join(base.Wrap("bench", "scale "+st.Do, jerr), err)
		}
		return s, nil // a step that crashed answered first
	}
	bar := e.steps("scale", plan.Steps())
	plan.Progress = bar.Add
	rows, err := bench.RunScales(ctx, plan)
	bar.Done()
	if err != nil {
		return stopped(ctx, err)
	}
	if e.JSON {
		return e.emit(scaleDoc{head("bench", nil), o.Seed, rows})
	}
	return bench.WriteScaleTable(e.Stdout, rows)
}

// Die ends the process at once, as a crash does: nothing is closed or flushed.
func Die() error {
	p, err := os.FindProcess(os.Getpid())
	if err != nil {
		return err
	}
	if err := p.Kill(); err != nil {
		return err
	}
	select {} // until the signal arrives
}
