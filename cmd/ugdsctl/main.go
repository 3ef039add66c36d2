// Command ugdsctl works with a store from the command line. It declares the
// flags and wires; what the verbs do is in tools/ctl.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
	"github.com/ugds-store/ugds/tools/ctl"
)

func main() { os.Exit(run()) }

func run() int {
	// The first interrupt stops cleanly, a second one at once. A terminal that is closed
	// hangs up more than once.
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // by nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	go func() {
		<-signals
		stop()
		for s := range signals { // not left to the kernel: a script may have had it ignored
			if s != syscall.SIGHUP {
				os.Exit(ctl.ExitInterrupted)
			}
		}
	}()
	signal.Ignore(syscall.SIGPIPE) // a write then fails, and what is open is closed

	return execute(ctx, &ctl.Env{Stdin: stdin(), Stdout: ctl.Interruptible(ctx, os.Stdout), Stderr: os.Stderr, Getenv: os.LookupEnv}, os.Args[1:])
}

// stdin is standard input. When that is closed, Go opens the null device for reading and
// writing in its place, which would be an empty value for put: then reads fail.
func stdin() io.Reader {
	const number = 0
	null, err := os.Stat(os.DevNull)
	if err != nil {
		return os.Stdin
	}
	st, err := os.Stdin.Stat()
	if flags, ferr := unix.DescriptorFlags(number); err != nil || ferr != nil || !os.SameFile(st, null) || flags&unix.ReadWrite == 0 {
		return os.Stdin
	}
	return closedInput{}
}

type closedInput struct{}

func (closedInput) Read([]byte) (int, error) {
	return 0, base.WithHint(base.ErrClosed, "open it, or name %s for nothing", os.DevNull)
}

// helpWriter remembers that help could not be written: cobra tells of it, and ends well.
type helpWriter struct {
	w   io.Writer
	err error
}

func (h *helpWriter) Write(p []byte) (int, error) {
	if h.err == nil {
		_, h.err = h.w.Write(p)
	}
	return len(p), nil
}

// execute runs one command line and gives its exit status.
func execute(ctx context.Context, env *ctl.Env, args []string) int {
	root := newRoot(env)
	help := &helpWriter{w: env.Stdout}
	root.SetOut(help)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = help.err
	}
	code := ctl.ExitCode(err)
	switch {
	case err == nil || ctl.Quiet(err):
	case code == ctl.ExitInterrupted:
		fmt.Fprintln(env.Stderr, "ugdsctl: interrupted")
	case ctx.Err() != nil:
		fmt.Fprintln(env.Stderr, "ugdsctl: interrupted:", ctl.Plain(err.Error()))
		return ctl.ExitInterrupted
	default:
		fmt.Fprintln(env.Stderr, "ugdsctl:", ctl.Plain(err.Error()))
	}
	return code
}

func newRoot(env *ctl.Env) *cobra.Command {
	t := &ctl.Target{}
	root := &cobra.Command{
		Use:   "ugdsctl",
		Short: "work with a uGDS store",
		Long: `ugdsctl makes, fills, reads and checks a uGDS store.

A store is a directory with store.toml, which names the devices and the
directory of the metadata; --device and --meta name them instead.
Sizes take binary units: 512KiB, 64MiB, 4GiB.

Exit status: 0 done, 1 failed, 2 wrong arguments or --yes is missing, 3 not
found, 4 exists already, 5 the store is in use. fsck has its own.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, a []string) error {
			if len(a) == 0 {
				return nil
			}
			return ctl.UsageError(a[0], "no such verb%s; see ugdsctl --help", similar(cmd, a[0]))
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			env.Progress, env.Screen = progress(env), terminal(os.Stdout)
			return emptyFlag(cmd)
		},
	}
	root.SetErr(env.Stderr)
	root.SetHelpCommand(helpCmd())
	root.CompletionOptions.DisableDefaultCmd = true // completionCmd stands in for it
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", ".FlagUsagesWrapped 80"))
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if cmd == root {
			return fmt.Errorf("%w; see ugdsctl --help", ctl.UsageError("arguments", "%v", err))
		}
		err = errors.New(parseNoise.ReplaceAllString(noNumber.ReplaceAllString(err.Error(), "it is not a number"), ""))
		dashes := ""
		if strings.Contains(err.Error(), "shorthand") {
			dashes = "; -- goes before a key that begins with -"
		}
		return ctl.UsageError(verbName(cmd), "%v%s; see %s --help", err, dashes, cmd.CommandPath())
	})
	root.PersistentFlags().BoolVar(&env.JSON, "json", false, "print one JSON document instead of text; help stays text")
	root.AddCommand(
		demoCmd(env, t), demoVerifyCmd(env, t), formatCmd(env, t), putCmd(env, t), getCmd(env, t), rmCmd(env, t),
		lsCmd(env, t), statCmd(env, t), existsCmd(env, t), usageCmd(env, t), verifyCmd(env, t), trimCmd(env, t),
		fsckCmd(env, t), deviceCmd(env, t), checkCmd(env, t), statsCmd(env), explainCmd(env, t), versionCmd(env),
		completionCmd(env), manCmd(env),
		benchCmd(env, t), benchCaseCmd(env), benchScaleCmd(env), replayCmd(env, t),
	)
	once(root)
	return root
}

// emptyFlag refuses a flag that is given and empty. It would do as if it were left out,
// which is not what a script means whose variable is unset.
func emptyFlag(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.Type() == "string" && f.Value.String() == "" {
			err = ctl.UsageError(verbName(cmd), "--%s is empty; see %s --help", f.Name, cmd.CommandPath())
		}
	})
	return err
}

// noNumber is what package strconv says of a text that is none, parseNoise what it says
// beside other causes.
var (
	noNumber   = regexp.MustCompile(`strconv\.(Atoi|ParseInt|ParseUint|ParseFloat): parsing .*: invalid syntax`)
	parseNoise = regexp.MustCompile(`strconv\.\w+: parsing "[^"]*": `)
)

// helpCmd is cobra's, but an unknown verb is an error.
func helpCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "help [VERB...]",
		Short:   "tell about a verb",
		Example: `  ugdsctl help put`,
		Args:    args(0, 2, "at most a verb of two words"),
		RunE: func(cmd *cobra.Command, a []string) error {
			about, rest, err := cmd.Root().Find(a)
			switch {
			case err != nil:
				return ctl.UsageError("help", "%v", err)
			case len(rest) > 0:
				return ctl.UsageError(strings.Join(a, " "), "no such verb%s; see %s --help", similar(about, rest[0]), about.CommandPath())
			}
			return about.Help()
		},
	}
}

// similar suggests verbs that are written nearly like name.
func similar(root *cobra.Command, name string) string {
	root.SuggestionsMinimumDistance = 1
	s := root.SuggestionsFor(name)
	if len(s) == 0 {
		return ""
	}
	return ", did you mean " + strings.Join(s, " or ") + "?"
}
