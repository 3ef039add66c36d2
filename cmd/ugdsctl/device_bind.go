package main

import (
	"github.com/spf13/cobra"

	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/tools/ctl"
)

func deviceBindCmd(e *ctl.Env) *cobra.Command {
	var o ctl.DeviceBindOptions
	cmd := &cobra.Command{
		Use:   "bind ADDRESS [--driver DRIVER] --yes",
		Short: "take a controller from the kernel, for a store alone",
		Long: `bind gives the NVMe controller at a PCI address to our kernel module ugds, or
to vfio-pci. Its disks vanish from the kernel, so it is refused while one is
mounted, swapped on, built upon or open, and whoever has it is named. When
anything fails the controller goes back to the driver that it had. Without
--yes it prints what it would do and what the disks hold, changes nothing and
ends with status 2.

It needs root. The binding lasts until unbind or the next boot.`,
		Example: `  ugdsctl device bind 0000:01:00.0
  ugdsctl device bind 0000:01:00.0 --yes
  ugdsctl device bind 0000:01:00.0 --driver vfio-pci --yes`,
		Args: args(1, 1, "a PCI address"),
		RunE: func(cmd *cobra.Command, a []string) error {
			o.Address = a[0]
			return ctl.DeviceBind(cmd.Context(), e, o, probe.Sysfs)
		},
	}
	cmd.Flags().StringVar(&o.Driver, "driver", "", "the `DRIVER`: ugds or vfio-pci; otherwise ugds, or vfio-pci if only that is loaded and an IOMMU translates")
	cmd.Flags().BoolVar(&o.Yes, "yes", false, "do it")
	return cmd
}

func deviceUnbindCmd(e *ctl.Env) *cobra.Command {
	var o ctl.DeviceBindOptions
	cmd := &cobra.Command{
		Use:   "unbind ADDRESS --yes",
		Short: "give a controller back to the kernel",
		Long: `unbind gives the NVMe controller at a PCI address back to the kernel's own
driver, so that its disks appear again. It is refused while a process has it.
Without --yes it prints what it would do, changes nothing and ends with
status 2. It needs root.`,
		Example: `  ugdsctl device unbind 0000:01:00.0
  ugdsctl device unbind 0000:01:00.0 --yes`,
		Args: args(1, 1, "a PCI address"),
		RunE: func(cmd *cobra.Command, a []string) error {
			o.Address = a[0]
			return ctl.DeviceUnbind(cmd.Context(), e, o, probe.Sysfs)
		},
	}
	cmd.Flags().BoolVar(&o.Yes, "yes", false, "do it")
	return cmd
}

func checkCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	var pairs bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "tell what this machine has for the direct path, and what it lacks",
		Long: `check looks at what the direct path between disks and GPU memory needs of this
machine: IOMMU, kernel options, our module, VFIO, Secure Boot and lockdown,
huge pages, locked memory, each NVMe controller. Each line is ok, fallback or
refused, with the reason and what to do about it. It changes nothing and needs
no rights.

With --gpu it looks at that GPU as well; without, no library of a GPU is loaded.
With --pairs it also opens the store and sends patterns between the GPU and
each of its devices, through a place on the device that holds nothing: a line
tells whether values go directly between them, or are staged and why.
It ends with the settings of transfers and where each was set.

A store works without all of it, through the kernel and host memory. So the exit
status is 0 whatever is found, unless the settings ask for the direct path
(compat_mode OFF, strict) and something that it needs is missing: then it is 1.`,
		Example: `  ugdsctl check
  ugdsctl check --gpu host
  ugdsctl check --store DIR --gpu host --pairs
  ugdsctl check --json`,
		Args: args(0, 0, "nothing"),
		RunE: func(cmd *cobra.Command, _ []string) error { return ctl.Check(cmd.Context(), e, t, pairs) },
	}
	cmd.Flags().BoolVar(&pairs, "pairs", false, "test each device of the store with the GPU")
	gpuLookFlags(cmd, t, "look at this `GPU` as well: ")
	return cmd
}
