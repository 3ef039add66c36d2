package ctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/tools/bench"
)

// BenchOptions of Bench.
type BenchOptions struct {
	Dir     string   // where the bench makes its files; "" is a temporary directory
	TempDir string   // where temporary directories are made
	Raw     string   // a device to overwrite, instead of a file of slots
	Yes     bool     // overwrite it
	Suite   string   // a suite by name, unless Ops says what to measure
	Ops     []string // any of the bench's operations, "multi-get" among them
	Sizes   []string // of values, with binary units
	Callers []int
	Batches []int  // objects a call
	Depths  []int  // commands in flight of the contestants that have a depth
	Sync    string // "relaxed", "sync" or "both"
	Plain   bool   // values lie in plain memory, not in regions
	GPU     string // the store's values lie on this GPU; its contestants' do not
	Against []string
	Bytes   int64 // of values in each process
	Rounds  int
	Seed    uint64
	HTML    string // write a page with plots there
	Force   bool   // replace the file that HTML names
	Keep    bool   // leave the files in Dir
	Scale   []int  // measure opening and looking up with these numbers of objects instead

	// Given are the flags that the user named: one that what is measured does not heed
	// is refused.
	Given []string

	Workload   string   // BenchGather instead of a suite, or ""
	Ranges     int      // of BenchGather in one call
	Completion []string // of controllers, when a device is measured
	Explain    bool     // say what limits a device, or which paths a gather took

	// Exec measures one case in a process of its own, ExecScale one step of a
	// scale run.
	Exec, ExecScale func(ctx context.Context, c []byte) ([]byte, error)
}

// Defaults of BenchOptions.
const (
	BenchDefaultBytes  = 128 * base.MiB
	BenchDefaultRounds = 5
	BenchDefaultSuite  = "quick"
	BenchDefaultRanges = 10000
	BenchDeviceBytes   = 32 * base.MiB // of each case
)

// BenchGather is the workload that reads many small ranges of many objects.
const BenchGather = "gather"

type benchDoc struct {
	header
	Missed []string      `json:"missed"`
	Report *bench.Report `json:"report"`
}

// Bench measures the store beside what it is built on. It ends with a failure
// when a byte was wrong or a counter disagrees, not when a gate is missed: the
// report tells that.
func Bench(ctx context.Context, e *Env, t *Target, o BenchOptions) error {
	return e.fail("bench", runBench(ctx, e, t, o))
}

// BenchCase measures one case, given and answered as JSON: what Exec runs.
func BenchCase(ctx context.Context, e *Env) error {
	var c bench.Case
	if err := json.NewDecoder(e.Stdin).Decode(&c); err != nil {
		return usage("bench-case", "standard input: %v", err)
	}
	s, err := bench.RunCase(ctx, c)
	if err != nil && ctx.Err() == nil {
		name, _ := classify(err)
		_ = json.NewEncoder(e.Stdout).Encode(caseFailure{name}) // beside the text, which counts more
	}
	if err != nil {
		return asChild(ctx, err)
	}
	return json.NewEncoder(e.Stdout).Encode(s)
}

// caseFailure is the answer of a process whose case failed: the class of what it says on
// standard error.
type caseFailure struct {
	Class string `json:"class"`
}

// childError is what another process has said, with its class.
type childError struct{ class, said error }

func (c *childError) Error() string   { return c.said.Error() }
func (c *childError) Unwrap() []error { return []error{c.class, c.said} }

// ofChild gives said the class that the answer of the process names, if it names one.
func ofChild(answer []byte, said error) error {
	var f caseFailure
	if json.Unmarshal(answer, &f) != nil {
		return said
	}
	for _, c := range classes {
		if c.name == f.Class {
			return &childError{c.err, said}
		}
	}
	return said
}

// sameClass tells whether two errors have a class, and the same one.
func sameClass(a, b error) bool {
	one, _ := classify(a)
	other, _ := classify(b)
	return one == other && one != noClass
}

// asChild leaves it to the first process to tell of an interrupt, which all have got.
func asChild(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return quietly(ExitInterrupted)
	}
	return err
}

func runBench(ctx context.Context, e *Env, t *Target, o BenchOptions) (err error) {
	mode := o.mode(t)
	if err := o.check(mode); err != nil {
		return err
	}
	switch mode {
	case &benchScales:
		return benchScale(ctx, e, &o)
	case &benchGathers:
		return benchGather(ctx, e, t, &o)
	case &benchDevices:
		return benchDevice(ctx, e, t, &o)
	}
	plan := bench.Plan{Rounds: o.Rounds, Seed: o.Seed}
	if plan.Groups, err = benchGroups(&o); err != nil {
		return err
	}
	if n := plan.Payload(); n > bench.MaxBytes {
		return usage("bench", "%s of values at a time; at most %s", base.FormatBytes(n), base.FormatBytes(bench.MaxBytes))
	}
	if plan.Place, err = benchPlace(ctx, t, &o, plan.Payload()); err != nil {
		return err
	}
	if err := mayMake(ctx, &o); err != nil {
		return err
	}
	dir, err := e.benchDir(&o, plan.Payload())
	if err != nil {
		return err
	}
	plan.Place.Dir = dir.path
	defer func() { err = errors.Join(err, dir.close(o.Keep)) }()
	bar := e.progress("prepare", bench.PrepareBytes(plan.Place, plan.Payload()))
	err = bench.Prepare(ctx, plan.Place, plan.Payload(), bar.Add)
	bar.Done()
	if err != nil {
		return stopped(ctx, err)
	}
	plan.Exec = execCase(o.Exec)
	report, err := measureBench(ctx, e, plan)
	if err != nil {
		err = stopped(ctx, err)
		if len(plan.Place.Devices) > 0 { // the store is the user's: leave nothing in it
			left := bench.Purge(context.WithoutCancel(ctx), plan.Place)
			if left != nil && !sameClass(err, left) { // else it could not be opened before either
				err = errors.Join(err, left)
			}
		}
		return err
	}
	return showBench(ctx, e, report, &o)
}

// stopped turns what an interrupt led to into an interrupt.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return interrupted{}
	}
	return err
}

func measureBench(ctx context.Context, e *Env, plan bench.Plan) (*bench.Report, error) {
	bar := e.steps("bench", plan.Steps())
	defer bar.Done()
	plan.Progress = func(int, int, bench.Case) { bar.Add(1) }
	return bench.Run(ctx, plan)
}

func execCase(run func(context.Context, []byte) ([]byte, error)) func(context.Context, bench.Case) (*bench.Sample, error) {
	return func(ctx context.Context, c bench.Case) (*bench.Sample, error) {
		if run == nil {
			return bench.RunCase(ctx, c)
		}
		in, err := json.Marshal(c)
		if err != nil {
			return nil, err
		}
		out, err := run(ctx, in)
		if err != nil {
			return nil, base.Wrap("bench", c.Subject+", "+c.Name(), ofChild(out, err))
		}
		s := new(bench.Sample)
		if err := json.NewDecoder(bytes.NewReader(out)).Decode(s); err != nil {
			return nil, base.Wrap("bench", "answer of the second process", err)
		}
		return s, nil
	}
}

func showBench(ctx context.Context, e *Env, r *bench.Report, o *BenchOptions) error {
	if o.HTML != "" {
		err := e.output(ctx, "bench", o.HTML, o.Force, func(w io.Writer) error { return r.WriteHTML(w) })
		if err != nil {
			return err
		}
	}
	missed := r.Missed()
	if e.JSON {
		return e.emit(benchDoc{head("bench", nil), append([]string{}, missed...), r})
	}
	if err := r.WriteTable(e.Stdout); err != nil {
		return err
	}
	if len(missed) > 0 {
		return e.say("\nmissed: %s", strings.Join(missed, "; "))
	}
	return nil
}

// benchGroups are those of a suite, or of the sweep that the options describe.
func benchGroups(o *BenchOptions) ([]bench.Group, error) {
	if len(o.Ops) == 0 {
		groups, err := bench.SuiteGroups(o.Suite, o.Bytes, bench.FindFio() != "")
		for i := range groups {
			if c := &groups[i].Case; o.GPU != "" {
				c.GPU, c.Plain = o.GPU, false
			}
		}
		return groups, err
	}
	if o.GPU != "" && o.Plain {
		return nil, usage("bench", "--gpu and --plain exclude each other")
	}
	s := bench.Sweep{Callers: o.Callers, Batches: o.Batches, Depths: o.Depths, Bytes: o.Bytes, Plain: o.Plain, GPU: o.GPU,
		MaxObjects: bench.MaxSweepObjects}
	known := []string{bench.OpPut, bench.OpGet, bench.OpMixed, bench.OpDelete, bench.OpExists}
	for _, op := range o.Ops {
		if !slices.Contains(known, op) {
			return nil, usage("bench", "--op %q: there are %s", op, strings.Join(known, ", "))
		}
		s.Ops = append(s.Ops, op)
	}
	for _, text := range o.Sizes {
		n, err := base.ParseBytes(text)
		if err != nil || n < 1 || n > bench.MaxBytes {
			return nil, usage("bench", "--size %q: write a number and a binary unit, for example 64KiB", text)
		}
		s.Sizes = append(s.Sizes, n)
	}
	switch o.Sync {
	case "relaxed":
		s.Sync = []bool{false}
	case "sync":
		s.Sync = []bool{true}
	case "both":
		s.Sync = []bool{false, true}
	default:
		return nil, usage("bench", "--durability %q: relaxed, sync or both", o.Sync)
	}
	s.Subjects = []string{bench.Store}
	for _, name := range o.Against {
		full, ok := bench.ContestantNames[name]
		if !ok {
			return nil, usage("bench", "--against %q: there are %s", name, strings.Join(bench.Contestants(), ", "))
		}
		if full == bench.Fio && bench.FindFio() == "" {
			return nil, base.WithHint(base.Errorf("bench", "fio", base.ErrNotFound, "it is not installed"), "leave it out of --against")
		}
		s.Subjects = append(s.Subjects, full)
	}
	groups := s.Groups()
	if len(groups) == 0 {
		return nil, usage("bench", "--durability %s: of put, mixed and delete only", o.Sync)
	}
	for i, subject := range s.Subjects[1:] {
		takes := func(g bench.Group) bool { return slices.Contains(g.Subjects, subject) }
		if slices.Contains(o.Given, "against") && !slices.ContainsFunc(groups, takes) {
			return nil, usage("bench", "--against %s: it can do none of these cases; docs/performance.md tells which it can", o.Against[i])
		}
	}
	return groups, nil
}

// mayMake refuses a page that could not be written when all is measured, or would replace
// what is not to be replaced.
func mayMake(ctx context.Context, o *BenchOptions) error {
	page := o.HTML
	if page == "" && o.Force {
		return usage("bench", "--force is for the file that --html names")
	}
	if page == "" || page == Std {
		return nil
	}
	if st, err := os.Stat(page); err == nil && st.Mode().Type() == fs.ModeDevice {
		return usage("bench", "--html %s is a block device", page)
	}
	return mayOutput(ctx, "bench", page, o.Force)
}

// benchPlace finds the store and the raw device that the user named.
func benchPlace(ctx context.Context, t *Target, o *BenchOptions, payload int64) (bench.Place, error) {
	p := bench.Place{Fio: bench.FindFio()}
	if t.Dir != "" || len(t.Devices) > 0 {
		parts, err := t.parts("bench")
		if err != nil {
			return p, err
		}
		if err := bench.WallClock(parts.devices...); err != nil {
			return p, err
		}
		p.Devices, p.Meta = parts.devices, parts.meta
		raw, _ := filePath(o.Raw)
		for _, file := range []string{o.HTML, raw} {
			if err := parts.guard("bench", t.Dir, file); err != nil {
				return p, err
			}
		}
	}
	if o.Raw == "" {
		return p, nil
	}
	raw, err := probe.Parse(o.Raw)
	if err != nil {
		return p, err
	}
	if raw.Scheme != "file" {
		return p, usage("bench", "--raw %s: a file or block device; --device alone measures others", o.Raw)
	}
	if err := spareParts("bench", raw.Rest); err != nil {
		return p, err
	}
	p.Raw = raw.Rest
	what, err := bench.CheckRaw(ctx, o.Raw, payload)
	if err != nil {
		return p, forbidden(err, o.Raw)
	}
	if lost := false; !o.Yes {
		return p, usage("bench", "--raw overwrites the first %s of %s%s; say --yes", base.FormatBytes(payload), o.Raw, holds(what, &lost))
	}
	return p, nil
}

// benchDir makes the directory of the bench, with room for what it makes.
func (e *Env) benchDir(o *BenchOptions, payload int64) (*workDir, error) {
	w, err := e.workDir("bench", o.Dir, o.TempDir, "ugds-bench-", benchClean)
	if err != nil {
		return nil, err
	}
	if err := checkSpace("bench", w.path, bench.NeedBytes(payload), 0); err != nil {
		return nil, errors.Join(base.WithHint(err, "--bytes takes less, --dir goes elsewhere"), w.close(false))
	}
	return w, nil
}

// benchClean removes what a bench makes in its directory.
func benchClean(dir string) error {
	errs := []error{bench.Clean(dir)}
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if n, scale := strings.CutPrefix(entry.Name(), "scale-"); scale && strings.Trim(n, "0123456789") == "" {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, entry.Name())))
		}
	}
	return errors.Join(errs...)
}
