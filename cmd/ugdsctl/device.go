package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/tools/ctl"
)

func deviceCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "device",
		Short: "look at devices and controllers",
		Long: `device lists devices, describes them, asks controllers how they are, resets
them and gives them from driver to driver. It knows the targets that stores
know: files, block devices, NVMe controllers (pci:ADDRESS) and models of them
(sim:SETTINGS).

The settings of a model stand between commas, as in sim:size=1GiB,mdts=3, and a
comma inside a value is written twice. sim: alone has the defaults.

` + strings.TrimRight(probe.ModelSettings(), "\n"),
		Args: func(cmd *cobra.Command, a []string) error {
			if len(a) == 0 {
				return nil
			}
			return ctl.UsageError("device "+a[0], "no such verb%s; see ugdsctl device --help", similar(cmd, a[0]))
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(deviceListCmd(e, t), deviceInfoCmd(e, t), deviceHealthCmd(e, t), deviceResetCmd(e, t),
		deviceBindCmd(e), deviceUnbindCmd(e))
	return cmd
}

// deviceFlags are those of the verbs that look at several devices.
func deviceFlags(cmd *cobra.Command, t *ctl.Target) {
	cmd.Flags().StringVar(&t.Dir, "store", "", "the devices of the store in `DIR`")
	_ = cmd.MarkFlagDirname("store") // there is such a flag
}

func deviceListCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [--store DIR | TARGET...]",
		Short: "which devices there are, what they hold, and which are free",
		Long: `list shows the targets that are named, or those of a store, and the NVMe
controllers of this machine as the kernel shows them: model, node, link, disks,
what uses them, and whether a store can have them. It only reads, and needs no
rights to see the controllers.`,
		Example: `  ugdsctl device list
  ugdsctl device list --store DIR
  ugdsctl device list disk0 sim:size=1GiB --json`,
		Args: args(0, -1, "any number of targets"),
		RunE: func(cmd *cobra.Command, a []string) error {
			return ctl.DeviceList(cmd.Context(), e, t, a, probe.Sysfs)
		},
	}
	deviceFlags(cmd, t)
	return cmd
}

func deviceInfoCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "info [--store DIR | TARGET...]",
		Short: "describe devices, and what limits them",
		Long: `info describes devices: how they are driven and why, sizes, caches, what they
hold. Of a controller it also tells what that says of itself: model, limits that
the driver honours, block formats, queues, quirks.

A controller is brought up for it, so that nobody else may have it.`,
		Example: `  ugdsctl device info --store DIR
  ugdsctl device info disk0
  ugdsctl device info sim:size=1GiB,mdts=3,noiob=32 --json`,
		Args: args(0, -1, "targets"),
		RunE: func(cmd *cobra.Command, a []string) error { return ctl.DeviceInfo(cmd.Context(), e, t, a) },
	}
	deviceFlags(cmd, t)
	return cmd
}

func deviceHealthCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "health [--store DIR | TARGET...]",
		Short: "ask controllers how they are",
		Long: `health asks controllers for their health page and their error log: temperature,
spare, endurance, data moved, errors. It is for controllers only, and brings
them up; those that the kernel drives are asked with nvme or smartctl.

Exit status: 0 all are well, 1 one is not, or could not be asked.`,
		Example: `  ugdsctl device health sim:size=1GiB
  ugdsctl device health sim:size=1GiB --json`,
		Args: args(0, -1, "targets"),
		RunE: func(cmd *cobra.Command, a []string) error { return ctl.DeviceHealth(cmd.Context(), e, t, a) },
	}
	deviceFlags(cmd, t)
	return cmd
}

func deviceResetCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	var o ctl.DeviceResetOptions
	cmd := &cobra.Command{
		Use:   "reset TARGET --yes",
		Short: "disable a controller and bring it up anew",
		Long: `reset takes a controller from whatever state a former owner left it in, brings
it up anew and shuts it down in an orderly way. What it holds stays. Nobody else
may have it. Without --yes it prints what it would do, touches nothing and ends
with status 2.`,
		Example: `  ugdsctl device reset sim:size=1GiB
  ugdsctl device reset sim:size=1GiB --yes`,
		Args: args(1, 1, "a target"),
		RunE: func(cmd *cobra.Command, a []string) error {
			o.Target = a[0]
			return ctl.DeviceReset(cmd.Context(), e, t, o)
		},
	}
	cmd.Flags().BoolVar(&o.Yes, "yes", false, "do it")
	return cmd
}
