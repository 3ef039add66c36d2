package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/tools/ctl"
	"github.com/ugds-store/ugds/tools/gputool"
)

// defaultWait is how long an open waits for the writes of a killed owner.
const defaultWait = 30 * time.Second

// storeFlags say which store is meant, and how it is opened.
func storeFlags(cmd *cobra.Command, t *ctl.Target) {
	placeFlags(cmd, t)
	cmd.Flags().DurationVar(&t.Wait, "wait", defaultWait, "how long to wait for the last writes of an owner that was killed")
}

func placeFlags(cmd *cobra.Command, t *ctl.Target) {
	f := cmd.Flags()
	f.StringVar(&t.Dir, "store", "", "work on the store in `DIR`")
	f.StringArrayVar(&t.Devices, "device", nil, "a `TARGET` instead of the devices in store.toml: file:PATH, a path, a block device, pci:ADDRESS or sim:SETTINGS; repeat it for several")
	f.StringVar(&t.Meta, "meta", "", "the metadata is in `DIR` instead of where store.toml says")
	for _, name := range []string{"store", "meta"} {
		_ = cmd.MarkFlagDirname(name) // there is such a flag
	}
}

// keyFlags say how keys are meant.
func keyFlags(cmd *cobra.Command, t *ctl.Target) {
	f := cmd.Flags()
	t.Namespace = ctl.DefaultNamespace
	f.Var((*namespaceValue)(&t.Namespace), "namespace", "work on the keys of namespace `NAME`")
	f.BoolVar(&t.Hex, "hex", false, "keys are written in hexadecimal")
}

// sizeValue is a flag that takes binary units.
type sizeValue int64

func (s *sizeValue) String() string {
	if *s == 0 {
		return ""
	}
	return ctl.FlagBytes(int64(*s))
}

func (s *sizeValue) Type() string { return "SIZE" }

func (s *sizeValue) Set(text string) error {
	n, err := base.ParseBytes(text)
	if err != nil || n == 0 {
		return errors.New("write a number from 1 on and a binary unit, for example 512MiB")
	}
	*s = sizeValue(n)
	return nil
}

// namespaceValue is a flag that takes the name of a namespace.
type namespaceValue string

func (n *namespaceValue) String() string { return string(*n) }

func (n *namespaceValue) Type() string { return "string" }

func (n *namespaceValue) Set(text string) error {
	if len(text) < meta.MinNamespaceLen || len(text) > meta.MaxNamespaceLen {
		return fmt.Errorf("%d bytes: %d to %d are possible", len(text), meta.MinNamespaceLen, meta.MaxNamespaceLen)
	}
	*n = namespaceValue(text)
	return nil
}

// args checks the number of arguments in our own words.
func args(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, a []string) error {
		if len(a) < least || most >= 0 && len(a) > most {
			got := fmt.Sprintf("%d arguments", len(a))
			if len(a) == 1 {
				got = "1 argument"
			}
			return ctl.UsageError(verbName(cmd), "got %s, want %s%s; see %s --help", got, what, detached(cmd, a), cmd.CommandPath())
		}
		return nil
	}
}

// detached says how a value is given to a flag that can stand alone, if an argument
// may be meant as one.
func detached(cmd *cobra.Command, a []string) (hint string) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.NoOptDefVal == "" || f.Value.String() != f.NoOptDefVal {
			return
		}
		for _, arg := range a {
			if _, err := strconv.ParseBool(arg); err == nil || f.Value.Type() != "bool" {
				hint = fmt.Sprintf("; a value of --%s stands after an equals sign: --%s=%s", f.Name, f.Name, arg)
			}
		}
	})
	return hint
}

// oneOrMore refuses numbers below 1 that were given for a flag whose 0 means that it
// was not.
func oneOrMore(cmd *cobra.Command, flag string, n int) error {
	if n < 1 && cmd.Flags().Changed(flag) {
		return ctl.UsageError(verbName(cmd), "--%s %d: 1 or more", flag, n)
	}
	return nil
}

// verbName is what a user writes after ugdsctl.
func verbName(cmd *cobra.Command) string {
	_, name, _ := strings.Cut(cmd.CommandPath(), " ")
	return name
}

func formatCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	var o ctl.FormatOptions
	cmd := &cobra.Command{
		Use:   "format --store DIR --size SIZE --yes",
		Short: "make a store; without --yes tell what would be lost",
		Long: `format makes DIR/store.toml, the file device DIR/data.ugds and DIR/meta.

With --device it uses files or block devices of that name instead; a file that
does not exist is made with --size. Without --yes it prints what it would create
and what would be lost, touches nothing and ends with status 2.`,
		Example: `  ugdsctl format --store new --size 64MiB
  ugdsctl format --store new --size 64MiB --yes
  ugdsctl format --store two --device disk0 --device disk1 --size 64MiB --yes`,
		Args: args(0, 0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error { return ctl.Format(cmd.Context(), e, t, o) },
	}
	storeFlags(cmd, t)
	f := cmd.Flags()
	f.Var((*sizeValue)(&o.Size), "size", "size of each file that is made, at least 64MiB")
	f.Var((*sizeValue)(&o.Slab), "slab", "size of a slab, a power of two from 1MiB to 64MiB (default: by the size of the store)")
	f.BoolVar(&o.Sparse, "sparse", false, "do not reserve the space; a full disk is then noticed by a put")
	f.BoolVar(&o.Yes, "yes", false, "do it")
	return cmd
}

func putCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	var o ctl.PutOptions
	cmd := &cobra.Command{
		Use:   "put --store DIR KEY FILE|-",
		Short: "store a file, or standard input, under a key",
		Example: `  ugdsctl put --store DIR report report.pdf
  date | ugdsctl put --store DIR --replace now -`,
		Args: args(2, 2, "KEY and FILE"),
		RunE: func(cmd *cobra.Command, a []string) error {
			o.Key, o.File = a[0], a[1]
			return ctl.Put(cmd.Context(), e, t, o)
		},
	}
	storeFlags(cmd, t)
	keyFlags(cmd, t)
	cmd.Flags().BoolVar(&o.Replace, "replace", false, "the key may exist; its value is replaced")
	cmd.Flags().BoolVar(&o.Relaxed, "relaxed", false, "do not wait for this put alone; the store is still flushed when the command ends")
	return cmd
}

func getCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	var o ctl.GetOptions
	cmd := &cobra.Command{
		Use:   "get --store DIR KEY FILE|-",
		Short: "write the value of a key to a file or to standard output",
		Long: `get writes the value of KEY to FILE, or to standard output for -.

The file appears under its name when it is whole. Every byte is checked against
the checksum of the value; with --range, the pieces around the range are.

--force puts a new file in the place of FILE. Of a symbolic link it replaces the
link, and leaves what it leads to; a pipe or terminal behind one is written to,
with or without --force. Other devices are written over with --force, unless
they are in use. What a store lies on or consists of is refused in any case.`,
		Example: `  ugdsctl get --store DIR greeting greeting.txt
  ugdsctl get --store DIR greeting - | wc -c
  ugdsctl get --store DIR greeting - --range 0:5`,
		Args: args(2, 2, "KEY and FILE"),
		RunE: func(cmd *cobra.Command, a []string) error {
			o.Key, o.File = a[0], a[1]
			return ctl.Get(cmd.Context(), e, t, o)
		},
	}
	storeFlags(cmd, t)
	keyFlags(cmd, t)
	cmd.Flags().StringVar(&o.Range, "range", "", "only a part: `OFF:LEN`, OFF: or :LEN")
	cmd.Flags().BoolVar(&o.Force, "force", false, "replace an existing file, or write over a device")
	return cmd
}

func rmCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	var o ctl.RmOptions
	cmd := &cobra.Command{
		Use:   "rm --store DIR KEY...",
		Short: "remove keys",
		Example: `  ugdsctl rm --store DIR greeting
  ugdsctl rm --store DIR --hex 00ff hex:00fe`,
		Args: args(1, -1, "one or more keys"),
		RunE: func(cmd *cobra.Command, a []string) error {
			o.Keys = a
			return ctl.Rm(cmd.Context(), e, t, o)
		},
	}
	storeFlags(cmd, t)
	keyFlags(cmd, t)
	return cmd
}

func lsCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	var o ctl.LsOptions
	cmd := &cobra.Command{
		Use:   "ls --store DIR [PREFIX]",
		Short: "list keys in order",
		Example: `  ugdsctl ls --store DIR --long
  ugdsctl ls --store DIR greet --limit 10
  ugdsctl ls --store DIR --json`,
		Args: args(0, 1, "at most a prefix"),
		RunE: func(cmd *cobra.Command, a []string) error {
			if len(a) > 0 {
				o.Prefix = a[0]
			}
			if err := oneOrMore(cmd, "limit", o.Limit); err != nil {
				return err
			}
			return ctl.Ls(cmd.Context(), e, t, o)
		},
	}
	storeFlags(cmd, t)
	keyFlags(cmd, t)
	cmd.Flags().BoolVarP(&o.Long, "long", "l", false, "with size, space, generation and checksum")
	cmd.Flags().IntVar(&o.Limit, "limit", 0, "stop after `N` keys")
	return cmd
}

func statCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stat --store DIR [KEY]",
		Short: "describe the store, or one object",
		Example: `  ugdsctl stat --store DIR
  ugdsctl stat --store DIR greeting`,
		Args: args(0, 1, "at most a key"),
		RunE: func(cmd *cobra.Command, a []string) error {
			return ctl.Stat(cmd.Context(), e, t, a...)
		},
	}
	storeFlags(cmd, t)
	keyFlags(cmd, t)
	return cmd
}

func fsckCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	var o ctl.FsckOptions
	cmd := &cobra.Command{
		Use:   "fsck --store DIR",
		Short: "check a store that nobody has open",
		Long: `fsck checks superblocks, metadata and space, and changes nothing. With
--verify-data it also reads every value, and finds those that changed on the
device.

With --repair --yes it removes objects that are not what was put, lists each of
them and why, and writes damaged superblock copies and labels anew; without
--yes it tells what it would do. docs/cli.md tells what else can be done after a
damage.

Exit status: 0 clean, 1 repaired, 4 faults are left, 8 it could not run.`,
		Example: `  ugdsctl fsck --store DIR
  ugdsctl fsck --store DIR --verify-data
  ugdsctl fsck --store DIR --verify-data --repair --yes`,
		Args: func(cmd *cobra.Command, a []string) error {
			return ctl.FsckArgs(args(0, 0, "none")(cmd, a))
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return ctl.Fsck(cmd.Context(), e, t, o) },
	}
	storeFlags(cmd, t)
	f := cmd.Flags()
	f.BoolVar(&t.Hex, "hex", false, "keys are written in hexadecimal")
	f.BoolVar(&o.VerifyData, "verify-data", false, "read every value and compare its checksum too")
	f.BoolVar(&o.Repair, "repair", false, "remove objects that are not what was put")
	f.BoolVar(&o.Yes, "yes", false, "do it")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return ctl.FsckArgs(ctl.UsageError("fsck", "%v; see ugdsctl fsck --help", err))
	})
	return cmd
}

func versionCmd(e *ctl.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "tell which program this is",
		Example: `  ugdsctl version`,
		Args:    args(0, 0, "none"),
		RunE:    func(*cobra.Command, []string) error { return ctl.Version(e) },
	}
}

// demoFlags are shared by both halves of the demo.
func demoFlags(cmd *cobra.Command, t *ctl.Target, o *ctl.DemoOptions) {
	o.Size = ctl.DemoDefaultSize
	f := cmd.Flags()
	f.StringVar(&t.Dir, "store", "", "make the store in `DIR`, which is new or empty (default: a temporary directory)")
	f.Var((*sizeValue)(&o.Size), "size", "bytes of values")
	f.Uint64Var(&o.Seed, "seed", 1, "make keys and values from seed `N`")
	gpuFlag(cmd, t)
	f.Lookup("gpu").NoOptDefVal = "0"
}

// gpuFlag lets values be put from and got into GPU memory.
func gpuFlag(cmd *cobra.Command, t *ctl.Target) {
	cmd.Flags().StringVar(&t.GPU, "gpu", "", "values lie in the memory of `GPU`: "+gputool.Help)
	gpuSetFlag(cmd, t)
}

func gpuSetFlag(cmd *cobra.Command, t *ctl.Target) {
	cmd.Flags().StringArrayVar(&t.GPUSet, "gpu-set", nil, "one of the settings that explain lists, `NAME=VALUE`")
}

func demoCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	var o ctl.DemoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "put a gigabyte, open again in a new process, compare every byte",
		Long: `demo makes a store in a temporary directory, puts values shaped like the cache
of a language model into it, replaces and deletes some, closes it, opens it in a
new process, compares every byte and checks the store. Then it removes it.

With --gpu the values lie in GPU memory, and it tells which way they took and
why. Another GPU than the first is named after an equals sign: --gpu=1.`,
		Example: `  ugdsctl demo --size 64MiB
  ugdsctl demo --size 64MiB --store demo --keep`,
		Args: args(0, 0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error { return ctl.Demo(cmd.Context(), e, t, o) },
	}
	demoFlags(cmd, t, &o)
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "leave the store for a look")
	cmd.Flags().StringArrayVar(&t.Devices, "device", nil, "make the file of this `TARGET`, file:PATH, a path or sim:path=PATH; repeat it for several")
	o.TempDir = os.TempDir()
	o.Restart = func(ctx context.Context, dir string, o ctl.DemoOptions) ([]byte, error) {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		c := exec.CommandContext(ctx, self, o.VerifyArgs(dir)...)
		defer dieTogether(c)()
		c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
		c.Stderr = os.Stderr
		return c.Output()
	}
	return cmd
}

func demoVerifyCmd(e *ctl.Env, t *ctl.Target) *cobra.Command {
	var o ctl.DemoOptions
	cmd := &cobra.Command{
		Use:    "demo-verify",
		Short:  "the second half of demo",
		Hidden: true,
		Args:   args(0, 0, "none"),
		RunE:   func(cmd *cobra.Command, _ []string) error { return ctl.DemoVerify(cmd.Context(), e, t, o) },
	}
	demoFlags(cmd, t, &o)
	return cmd
}
