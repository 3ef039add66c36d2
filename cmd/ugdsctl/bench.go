package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ugds-store/ugds/tools/bench"
	"github.com/ugds-store/ugds/tools/ctl"
	"github.com/ugds-store/ugds/tools/gputool"
)

func benchCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	o := ctl.BenchOptions{TempDir: os.TempDir(), Exec: execSelf("bench-case"), ExecScale: execSelf("bench-scale"), Bytes: ctl.BenchDefaultBytes}
	cmd := &cobra.Command{
		Use:   "bench [--suite NAME | --op OP]",
		Short: "measure the store beside what it is built on",
		Long: `bench measures the store and, in turns with it, what it is built on: raw slots
of one file, one file per object, Pebble holding the values, the bare loop of
the durable steps of a commit, and fio if it is installed. Each figure comes
from several processes; every byte is compared; what is put is durable at the
end.

It works in a temporary directory, or in --dir, and removes what it made. With
--store it measures an existing store instead, in a namespace of its own.
--raw measures a device instead of a file of slots, and overwrites it.

Ratios are throughput divided by throughput. docs/performance.md explains them.`,
		Example: `  ugdsctl bench --bytes 16MiB --rounds 1
  ugdsctl bench --op put,get --size 64KiB --callers 1,8 --bytes 8MiB --rounds 1
  ugdsctl bench --suite gates --rounds 10 --html bench.html
  ugdsctl bench --scale 100000,1000000`,
		Args: args(0, 0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error { return ctl.Bench(cmd.Context(), e, t, o) },
	}
	storeFlags(cmd, t)
	f := cmd.Flags()
	f.StringVar(&o.Dir, "dir", "", "make the files in `DIR`, which is new or empty (default: a temporary directory)")
	f.StringVar(&o.Raw, "raw", "", "measure the device `TARGET` instead of a file of slots, and overwrite it")
	f.BoolVar(&o.Yes, "yes", false, "overwrite the device that --raw names")
	f.StringVar(&o.Suite, "suite", ctl.BenchDefaultSuite, "what to measure: "+strings.Join(bench.Suites(), " or "))
	f.StringSliceVar(&o.Ops, "op", nil, "measure these `OPS` instead of a suite: put, get, mixed, delete, exists")
	f.StringSliceVar(&o.Sizes, "size", []string{"64KiB", "1MiB"}, "`SIZES` of values")
	f.IntSliceVar(&o.Callers, "callers", []int{8}, "how many callers work at the same time")
	f.IntSliceVar(&o.Batches, "batch", []int{1}, "objects in one call")
	f.IntSliceVar(&o.Depths, "depth", []int{0}, "commands in flight of the raw ring and of fio (default: the batch)")
	f.StringVar(&o.Sync, "durability", "relaxed", "puts and deletes are relaxed, sync or both")
	f.BoolVar(&o.Plain, "plain", false, "values lie in plain memory, not in regions that the device reaches")
	f.StringVar(&o.GPU, "gpu", "", "the store's values lie in the memory of `GPU`, those of its contestants do not: "+gputool.Help)
	f.StringSliceVar(&o.Against, "against", []string{"raw", "files"}, "`CONTESTANTS`: "+strings.Join(bench.Contestants(), ", "))
	f.Var((*sizeValue)(&o.Bytes), "bytes", "bytes of values that each process moves")
	f.IntVar(&o.Rounds, "rounds", ctl.BenchDefaultRounds, "processes of each contestant; from 10 on the best ones are compared")
	f.Uint64Var(&o.Seed, "seed", 1, "make keys and values from seed `N`")
	f.StringVar(&o.HTML, "html", "", "write a page with plots to `FILE`")
	f.IntSliceVar(&o.Scale, "scale", nil, "measure opens, memory and lookups with these `NUMBERS` of objects instead")
	f.BoolVar(&o.Keep, "keep", false, "leave the files for a look")
	return cmd
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
		c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
		c.WaitDelay = time.Minute
		c.Stdin, c.Stderr = bytes.NewReader(in), os.Stderr
		return c.Output()
	}
}
