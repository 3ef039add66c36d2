package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ugds-store/ugds/internal/unix"
	"github.com/ugds-store/ugds/tools/bench"
	"github.com/ugds-store/ugds/tools/ctl"
	"github.com/ugds-store/ugds/tools/gputool"
)

func benchCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	o := ctl.BenchOptions{TempDir: os.TempDir(), Exec: execSelf("bench-case"), ExecScale: execSelf("bench-scale"), Bytes: ctl.BenchDefaultBytes}
	cmd := &cobra.Command{
		Use:   "bench [--suite NAME | --op OPS | --workload NAME]",
		Short: "measure the store beside what it is built on",
		Long: `bench measures the store and, in turns with it, what it is built on: raw slots
of one file, one file per object, Pebble holding the values, the bare loop of
the durable steps of a commit, and fio if it is installed. Each figure comes
from several processes; every byte is compared; what is put is durable at the
end.

It works in a temporary directory, or in --dir, and removes what it made. With
--store it measures an existing store instead, in a namespace of its own that
stays there, empty.
--raw measures a device instead of a file of slots, and overwrites it.

--device without --store and --meta measures the device itself: --op read or
write, sizes, callers (threads), depths and batches. Controllers are asked for a
way of completion. Files and block devices are only read unless --yes is given.
A model with clock=virtual,service=fixed tells times of its own clock, and is
refused where a store is measured; device --help lists what else models can be.

A flag that what is measured does not heed is refused: --gpu goes with suites
and --op alone.

--workload gather reads many ranges of 512 bytes to 4 KiB of many values, all in
one call and in one call each: of a new store, of --store, or of a model.

Ratios are throughput divided by throughput. docs/performance.md explains them.`,
		Example: `  ugdsctl bench --bytes 16MiB --rounds 1
  ugdsctl bench --op put,get --size 64KiB --callers 1,8 --bytes 8MiB --rounds 1
  ugdsctl bench --suite gates --rounds 10 --html bench.html
  ugdsctl bench --scale 100000,1000000
  ugdsctl bench --device sim:size=1GiB --depth 1,32,512 --explain
  ugdsctl bench --device sim:service=fixed,clock=virtual --size 4KiB
  ugdsctl bench --device sim:size=256MiB --op write --completion polling,hybrid
  ugdsctl bench --device disk0 --size 64KiB --depth 8 --batch 1,8
  ugdsctl bench --workload gather --bytes 16MiB --rounds 1
  ugdsctl bench --workload gather --device sim:size=1GiB --rounds 2`,
		Args: args(0, 0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.Flags().Visit(func(f *pflag.Flag) {
				if cmd.InheritedFlags().Lookup(f.Name) == nil { // of every verb
					o.Given = append(o.Given, f.Name)
				}
			})
			benchDefaults(cmd, t, &o)
			return ctl.Bench(cmd.Context(), e, t, o)
		},
	}
	placeFlags(cmd, t)
	f := cmd.Flags()
	f.StringVar(&o.Dir, "dir", "", "make the files in `DIR`, which is new or empty (default: a temporary directory)")
	f.StringVar(&o.Raw, "raw", "", "measure the device `TARGET` instead of a file of slots, and overwrite it")
	f.BoolVar(&o.Yes, "yes", false, "overwrite the device that --raw or --device names")
	f.StringVar(&o.Suite, "suite", ctl.BenchDefaultSuite, "`NAME` of what to measure: "+strings.Join(bench.Suites(), " or "))
	f.StringVar(&o.Workload, "workload", "", "measure this `NAME` instead of a suite: "+ctl.BenchGather)
	f.IntVar(&o.Ranges, "ranges", ctl.BenchDefaultRanges, "`RANGES` of a gather")
	f.StringSliceVar(&o.Completion, "completion", nil, "`WAYS` in which a controller tells that it is done: "+strings.Join(bench.Completions, ", ")+" (default polling)")
	f.BoolVar(&o.Explain, "explain", false, "of a device: how it is reached, and whether it or the host is the limit; of a gather: the paths")
	f.StringSliceVar(&o.Ops, "op", nil, "measure these `OPS` instead of a suite: put, get, mixed, delete, exists; of a device read, write")
	f.StringSliceVar(&o.Sizes, "size", []string{"64KiB", "1MiB"}, "`SIZES` of values, or of requests to a device (4KiB,64KiB,1MiB)")
	f.IntSliceVar(&o.Callers, "callers", []int{8}, "how many `CALLERS` work at the same time (a device: 1)")
	f.IntSliceVar(&o.Batches, "batch", []int{1}, "`OBJECTS` or requests in one call")
	f.IntSliceVar(&o.Depths, "depth", nil, "`COMMANDS` in flight of the raw ring, of fio, and of each caller of a device (default: the batch; a device: 1,32)")
	f.StringVar(&o.Sync, "durability", "relaxed", "`HOW` puts and deletes are done: relaxed, sync or both")
	f.BoolVar(&o.Plain, "plain", false, "values lie in plain memory, not in regions that the device reaches")
	f.StringVar(&o.GPU, "gpu", "", "the store's values lie in the memory of `GPU`, those of its contestants do not; of suites and --op: "+gputool.Help)
	f.StringSliceVar(&o.Against, "against", []string{"raw", "files"}, "`CONTESTANTS`: "+strings.Join(bench.Contestants(), ", "))
	f.Var((*sizeValue)(&o.Bytes), "bytes", "bytes of values that each process moves, or each case of a device (32MiB)")
	f.IntVar(&o.Rounds, "rounds", ctl.BenchDefaultRounds, "`ROUNDS`, with a process of each contestant; from 10 on the best ones are compared")
	f.Uint64Var(&o.Seed, "seed", 1, "make keys and values from seed `N`")
	f.StringVar(&o.HTML, "html", "", "write a page with plots to `FILE`")
	f.BoolVar(&o.Force, "force", false, "replace the file that --html names")
	f.IntSliceVar(&o.Scale, "scale", nil, "measure opens, memory and lookups with these `NUMBERS` of objects instead")
	f.BoolVar(&o.Keep, "keep", false, "leave the files for a look")
	return cmd
}

// benchDefaults gives devices and gathers defaults of their own.
func benchDefaults(cmd *cobra.Command, t *ctl.Target, o *ctl.BenchOptions) {
	unset := func(name string) bool { return !cmd.Flags().Changed(name) }
	device := ctl.BenchesDevice(t)
	if o.Workload != "" && unset("size") {
		o.Sizes = []string{"64KiB"}
	}
	if !device && unset("depth") {
		o.Depths = []int{0}
	}
	if o.Workload != "" || !device {
		return
	}
	if unset("size") {
		o.Sizes = []string{"4KiB", "64KiB", "1MiB"}
	}
	if unset("op") {
		o.Ops = []string{bench.OpRead}
	}
	if unset("callers") {
		o.Callers = []int{1}
	}
	if unset("depth") {
		o.Depths = []int{1, 32}
	}
	if unset("bytes") {
		o.Bytes = ctl.BenchDeviceBytes
	}
}

func benchCaseCmd(e *ctl.Env) *cobra.Command {
	return &cobra.Command{
		Use:    "bench-case",
		Short:  "one process of bench",
		Hidden: true,
		Args:   args(0, 0, "none"),
		RunE:   func(cmd *cobra.Command, _ []string) error { return ctl.BenchCase(cmd.Context(), e) },
	}
}

func benchScaleCmd(e *ctl.Env) *cobra.Command {
	return &cobra.Command{
		Use:    "bench-scale",
		Short:  "one step of bench --scale",
		Hidden: true,
		Args:   args(0, 0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			die, err := ctl.BenchScaleStep(cmd.Context(), e)
			if die && err == nil {
				err = ctl.Die()
			}
			return err
		},
	}
}

// execSelf runs a hidden verb of this program in a new process.
func execSelf(verb string) func(context.Context, []byte) ([]byte, error) {
	return func(ctx context.Context, in []byte) ([]byte, error) {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		c := exec.CommandContext(ctx, self, verb)
		defer dieTogether(c)()
		c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
		c.WaitDelay = time.Minute
		var said bytes.Buffer
		c.Stdin, c.Stderr = bytes.NewReader(in), &said
		out, err := c.Output()
		if why := childError(said.String()); err != nil && why != nil {
			return out, why
		}
		_, _ = os.Stderr.Write(said.Bytes()) // what is not an error of ours, such as a panic
		return out, err
	}
}

// childError is the error that a process of this program has told, on one line: one of
// eight callers is enough. Nil if it said something else.
func childError(said string) error {
	text, ours := strings.CutPrefix(strings.TrimSpace(said), "ugdsctl: ")
	if !ours {
		return nil
	}
	first, more, _ := strings.Cut(text, "\n")
	if more != "" {
		first += fmt.Sprintf("; and %d more", strings.Count(more, "\n")+1)
	}
	return errors.New(first)
}

// dieTogether makes the process of c end with this one, whatever ends this one. The
// result is called when c has ended: until then the thread that starts it stays.
func dieTogether(c *exec.Cmd) (ended func()) {
	runtime.LockOSThread()
	c.SysProcAttr = unix.DieWithParent()
	return runtime.UnlockOSThread
}
