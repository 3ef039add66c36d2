package main

import (
	"bytes"
	"regexp"
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
	var o ctl.ManOptions
	cmd := &cobra.Command{
		Use:   "man DIR",
		Short: "write manual pages into a directory",
		Long: `man writes a page for ugdsctl and for each verb into DIR, which it makes if it
does not exist. man -l DIR/ugdsctl-put.1 shows one.

A file that is there under the name of a page is replaced if it has the title
line (.TH) of that page, as one of another version has; any other only with
--force.`,
		Example: `  ugdsctl man man1`,
		Args:    args(1, 1, "a directory"),
		RunE: func(cmd *cobra.Command, a []string) error {
			pages, err := manPages(cmd.Root())
			if err != nil {
				return err
			}
			o.Dir, o.Pages = a[0], pages
			return ctl.Man(cmd.Context(), e, o)
		},
	}
	cmd.Flags().BoolVar(&o.Force, "force", false, "replace files that are no such pages")
	return cmd
}

// manDate is that of the texts; it rises when they change much.
var manDate = time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)

// emptyDefault is how cobra writes the default of a flag that has none.
var emptyDefault = regexp.MustCompile(`(?m)^(\\fB-.*\\fP)(=\[\]|=""|=|=0|=\[0\]|\[=false\])$`)

// listDefault is how it writes one that is a list.
var listDefault = regexp.MustCompile(`(?m)^(\\fB-.*\\fP)=\[(.*)\]$`)

// manPages makes the pages, by the names of their files.
func manPages(root *cobra.Command) (map[string][]byte, error) {
	root.DisableAutoGenTag = true // the pages follow from the program alone
	pages := map[string][]byte{}
	for _, cmd := range withPages(root) {
		var b bytes.Buffer
		h := &doc.GenManHeader{Section: "1", Source: "uGDS Store", Manual: "uGDS Store", Date: &manDate}
		if err := doc.GenMan(cmd, h, &b); err != nil {
			return nil, err
		}
		page := emptyDefault.ReplaceAll(b.Bytes(), []byte("$1"))
		page = listDefault.ReplaceAll(page, []byte("$1=$2"))
		pages[strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1"] = page
	}
	return pages, nil
}

// withPages gives cmd and the verbs below it that a user sees.
func withPages(cmd *cobra.Command) []*cobra.Command {
	out := []*cobra.Command{cmd}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			out = append(out, withPages(c)...)
		}
	}
	return out
}
