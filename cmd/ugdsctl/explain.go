package main

import (
	"github.com/spf13/cobra"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/tools/ctl"
	"github.com/ugds-store/ugds/tools/gputool"
)

func explainCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	size := int64(base.MiB)
	cmd := &cobra.Command{
		Use:   "explain TARGET...",
		Short: "how bytes go between a file or device and each GPU, and why",
		Long: `explain prints every decision for a transfer between each target and each GPU:
how the target is driven, what the GPU can do, the settings and where each was
set, and whether the bytes would go directly, through host memory, or not at
all. It moves nothing, and takes no lock on files.

Settings come from --gpu-set NAME=VALUE, else from the environment (UGDS_ and
the name in capitals), else from the table [gpu] of store.toml with --store DIR.`,
		Example: `  ugdsctl explain disk0
  ugdsctl explain --gpu host --size 4KiB disk0 sim:size=64MiB
  ugdsctl explain --gpu host --gpu-set compat_mode=OFF --store DIR disk0 --json`,
		Args: args(1, -1, "one or more targets"),
		RunE: func(cmd *cobra.Command, a []string) error { return ctl.Explain(cmd.Context(), e, t, a, size) },
	}
	gpuLookFlags(cmd, t, "look at this `GPU` only, not at every one: ")
	cmd.Flags().Var((*sizeValue)(&size), "size", "bytes of the transfer, a `SIZE`")
	return cmd
}

// gpuLookFlags are those of verbs that look at a GPU and at the settings.
func gpuLookFlags(cmd *cobra.Command, t *ctl.Target, what string) {
	cmd.Flags().StringVar(&t.GPU, "gpu", "", what+gputool.Help)
	gpuSetFlag(cmd, t)
	cmd.Flags().StringVar(&t.Dir, "store", "", "settings of the store in `DIR` count, too")
	_ = cmd.MarkFlagDirname("store") // there is such a flag
}
