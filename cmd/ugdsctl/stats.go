package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/ugds-store/ugds/tools/ctl"
)

func statsCmd(e *ctl.Env) *cobra.Command {
	o := ctl.StatsOptions{}
	cmd := &cobra.Command{
		Use:   "stats --pid P",
		Short: "counters of a process that has a store open",
		Long: `stats shows the counters of the stores that another process has open: commands
and bytes of each device, and by which path values moved and why, with sizes and
errors. Every verb of ugdsctl that opens a store publishes them, and so does a
program that calls Store.Publish. The process is not disturbed, and one that
hangs or is stopped answers too. The figures are up to a quarter of a second
old. Processes of other users are for root.`,
		Example: `  ugdsctl stats --pid 4711
  ugdsctl stats --pid 4711 --watch --interval 5s
  ugdsctl stats --pid 4711 --json`,
		Args: args(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error { return ctl.Stats(cmd.Context(), e, o) },
	}
	cmd.Flags().IntVar(&o.PID, "pid", 0, "the process `P`")
	cmd.Flags().BoolVar(&o.Watch, "watch", false, "go on, with a line of rates each time, until an interrupt")
	cmd.Flags().DurationVar(&o.Interval, "interval", time.Second, "between two looks of --watch")
	return cmd
}
