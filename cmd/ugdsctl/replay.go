package main

import (
	"github.com/spf13/cobra"

	"github.com/ugds-store/ugds/tools/ctl"
)

func replayCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	var o ctl.ReplayOptions
	cmd := &cobra.Command{
		Use:   "replay --store DIR --trace FILE|- --block-bytes SIZE",
		Short: "run a trace of block references against the store",
		Long: `replay reads requests, one JSON object a line, with a timestamp in ms and the
hash_ids of their blocks. For each request in order, a block that is there is
read and one that is not is put. The gets of a request are one call, its puts
another; an id that stands in a request again counts as a hit after its put.

The value of a block follows from its id, so --verify compares every byte, also
of blocks that an earlier replay put. An interrupt stops it after a request,
with what was counted so far; puts are durable when the command ends.`,
		Example: `  ugdsctl replay --store DIR --trace t.jsonl --block-bytes 4KiB --verify
  ugdsctl replay --store DIR --trace t.jsonl --block-bytes 4KiB --speed 60`,
		Args: args(0, 0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := oneOrMore(cmd, "limit", o.Limit); err != nil {
				return err
			}
			return ctl.Replay(cmd.Context(), e, t, o)
		},
	}
	storeFlags(cmd, t)
	f := cmd.Flags()
	f.Var((*namespaceValue)(&t.Namespace), "namespace", "work on the keys of namespace `NAME`")
	f.StringVar(&o.Trace, "trace", "", "the trace is in `FILE`, or comes from standard input for -")
	f.Var((*sizeValue)(&o.BlockBytes), "block-bytes", "size of each block")
	f.IntVar(&o.Limit, "limit", 0, "stop after `R` requests")
	f.BoolVar(&o.Verify, "verify", false, "compare every byte that is read")
	f.Float64Var(&o.Speed, "speed", 0, "keep to the timestamps, `X` times as fast; 0 does not wait")
	gpuFlag(cmd, t)
	f.BoolVar(&o.Sync, "sync", false, "each put returns when it is durable")
	return cmd
}
