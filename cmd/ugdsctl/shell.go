package main

import (
	"bytes"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/ugds-store/ugds/tools/ctl"
)

func completionCmd(e *ctl.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "print a script with which a shell completes verbs and flags",
		Long: `completion prints a script. For this session of a shell:

  bash  source <(ugdsctl completion bash)
  zsh   source <(ugdsctl completion zsh)
  fish  ugdsctl completion fish | source

For every session put it where the shell looks for completions.`,
		Example: `  ugdsctl completion bash > ugdsctl.bash
  ugdsctl completion zsh > _ugdsctl
  ugdsctl completion fish > ugdsctl.fish`,
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args:      args(1, 1, "bash, zsh or fish"),
		RunE: func(cmd *cobra.Command, a []string) error {
			script, err := completionScript(cmd.Root(), a[0])
			if err != nil {
				return err
			}
			return ctl.Completion(e, a[0], script)
		},
	}
}

func completionScript(root *cobra.Command, shell string) (string, error) {
	var b bytes.Buffer
	var err error
	switch shell {
	case "bash":
		err = root.GenBashCompletionV2(&b, true)
	case "zsh":
		err = root.GenZshCompletion(&b)
	case "fish":
		err = root.GenFishCompletion(&b, true)
	default:
		err = ctl.UsageError("completion", "%q: bash, zsh and fish are known", shell)
	}
	return b.String(), err
}

func manCmd(e *ctl.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "man DIR",
		Short: "write manual pages into a directory",
		Long: `man writes a page for ugdsctl and for each verb into DIR, which it makes if it
does not exist. man -l DIR/ugdsctl-put.1 shows one.`,
		Example: `  ugdsctl man man1`,
		Args:    args(1, 1, "a directory"),
		RunE: func(cmd *cobra.Command, a []string) error {
			pages, err := manPages(cmd.Root())
			if err != nil {
				return err
			}
			return ctl.Man(cmd.Context(), e, a[0], pages)
		},
	}
}

// manPages makes the pages, by the names of their files.
func manPages(root *cobra.Command) (map[string][]byte, error) {
	root.DisableAutoGenTag = true // the pages follow from the program alone
	pages := map[string][]byte{}
	date := buildTime()
	for _, cmd := range append([]*cobra.Command{root}, root.Commands()...) {
		if cmd != root && !cmd.IsAvailableCommand() {
			continue
		}
		var b bytes.Buffer
		h := &doc.GenManHeader{Section: "1", Source: "uGDS Store", Manual: "uGDS Store", Date: &date}
		if err := doc.GenMan(cmd, h, &b); err != nil {
			return nil, err
		}
		pages[strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1"] = b.Bytes()
	}
	return pages, nil
}

// buildTime is that of the source, if the program knows it.
func buildTime() time.Time {
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			if s.Key == "vcs.time" {
				if at, err := time.Parse(time.RFC3339, s.Value); err == nil {
					return at.UTC()
				}
			}
		}
	}
	return time.Unix(0, 0).UTC()
}
