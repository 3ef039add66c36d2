package main

import (
	"github.com/spf13/cobra"

	"github.com/ugds-store/ugds/tools/ctl"
)

func usageCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "usage --store DIR",
		Short: "how much is stored, and what is free and where",
		Long: `usage counts objects, bytes of values and the space they take, for each
namespace and for the whole store, and tells what is free: whole slabs take any
value, free slots of slabs that are in use take values of their size.`,
		Example: `  ugdsctl usage --store DIR
  ugdsctl usage --store DIR --json`,
		Args: args(0, 0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error { return ctl.Usage(cmd.Context(), e, t) },
	}
	storeFlags(cmd, t)
	return cmd
}

func existsCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	var o ctl.ExistsOptions
	cmd := &cobra.Command{
		Use:   "exists --store DIR KEY...|-",
		Short: "tell which keys are missing",
		Long: `exists prints the keys that are not in the store, one a line, and ends with
status 0 if all are there and 3 if some are missing.

For - it takes the lines of standard input as keys, however many there are.`,
		Example: `  ugdsctl exists --store DIR greeting
  ugdsctl exists --store DIR greeting farewell || echo some are missing
  ugdsctl ls --store DIR --hex | ugdsctl exists --store DIR --hex -`,
		Args: args(1, -1, "one or more keys"),
		RunE: func(cmd *cobra.Command, a []string) error {
			o.Keys = a
			return ctl.Exists(cmd.Context(), e, t, o)
		},
	}
	storeFlags(cmd, t)
	keyFlags(cmd, t)
	return cmd
}

func verifyCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	var o ctl.VerifyOptions
	cmd := &cobra.Command{
		Use:   "verify --store DIR [PREFIX]",
		Short: "read every value and compare its checksum",
		Long: `verify reads the values of a namespace, or those whose keys begin with PREFIX,
and lists each key whose value is not what was put. It changes nothing.

Exit status: 0 every byte is right, 1 something is wrong. fsck --verify-data
checks the store itself too, and fsck --repair removes what is wrong.`,
		Example: `  ugdsctl verify --store DIR
  ugdsctl verify --store DIR greet
  ugdsctl verify --store DIR --all-namespaces --json`,
		Args: args(0, 1, "at most a prefix"),
		RunE: func(cmd *cobra.Command, a []string) error {
			if len(a) > 0 {
				o.Prefix = a[0]
			}
			if o.All && cmd.Flags().Changed("namespace") {
				return ctl.UsageError("verify", "--namespace and --all-namespaces exclude each other")
			}
			return ctl.Verify(cmd.Context(), e, t, o)
		},
	}
	storeFlags(cmd, t)
	keyFlags(cmd, t)
	cmd.Flags().BoolVar(&o.All, "all-namespaces", false, "read the values of every namespace")
	return cmd
}

func trimCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trim --store DIR",
		Short: "give free space back to the devices",
		Long: `trim tells the devices that every free slab holds nothing, those included that
were free before. Block devices must support discard; files give space back to
their file system if the store was formatted with --sparse.`,
		Example: `  ugdsctl format --store thin --size 64MiB --sparse --yes
  ugdsctl trim --store thin`,
		Args: args(0, 0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error { return ctl.Trim(cmd.Context(), e, t) },
	}
	storeFlags(cmd, t)
	return cmd
}
