package ctl

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

type manDoc struct {
	header
	Dir   string   `json:"dir"`
	Pages []string `json:"pages"`
}

// ManOptions of Man.
type ManOptions struct {
	Dir   string
	Pages map[string][]byte // by the names of their files
	Force bool              // replace files that are not such pages
}

// Man writes manual pages into a directory, which it makes if need be. It replaces the
// same pages of another version, and anything else only with Force.
func Man(ctx context.Context, e *Env, o ManOptions) error {
	return e.fail("man", man(ctx, e, o))
}

func man(ctx context.Context, e *Env, o ManOptions) error {
	if o.Dir == "" {
		return usage("man", "where? a directory for the pages")
	}
	doc := manDoc{head("man", nil), o.Dir, slices.Sorted(maps.Keys(o.Pages))}
	if err := mayFill("man", o.Dir); err != nil {
		return err
	}
	for _, name := range doc.Pages {
		path := filepath.Join(o.Dir, name)
		force := o.Force || samePage(path, o.Pages[name])
		if err := mayOutput(ctx, "man", path, force); err != nil && !errors.Is(err, base.ErrNotFound) {
			return err
		}
		if _, err := os.Lstat(path); err == nil && !force { // a pipe is no output here: its name is taken
			return fileExists("man", path)
		}
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return base.Wrap("make", o.Dir, pathCause(err))
	}
	for _, name := range doc.Pages {
		if ctx.Err() != nil {
			return interrupted{}
		}
		err := writeFile(filepath.Join(o.Dir, name), true, func(f io.Writer) error {
			_, err := f.Write(o.Pages[name])
			return err
		})
		if err != nil {
			return err
		}
	}
	if e.JSON {
		return e.emit(doc)
	}
	return e.say("%s in %s", count(int64(len(doc.Pages)), "page"), o.Dir)
}

// pageLimit is how many bytes of a page are looked at; the longest has about 10 KB.
const pageLimit = 1 << 20

// samePage tells whether the file at path has the title line of page, but for the date:
// then it is that page, as some version of this program made it.
func samePage(path string, page []byte) bool {
	if st, err := os.Lstat(path); err != nil || !st.Mode().IsRegular() {
		return false // a link to one is somebody's
	}
	old, err := unix.ReadRegular(path, pageLimit)
	title := titleOf(page)
	return err == nil && title != "" && titleOf(old) == title
}

// titleOf is the title line of a manual page without its date, "" if there is none:
//
//	.TH "NAME" "SECTION" "DATE" "SOURCE" "MANUAL"
func titleOf(page []byte) string {
	for line := range bytes.Lines(page) {
		if f := strings.Split(strings.TrimSpace(string(line)), `"`); f[0] == ".TH " && len(f) == 11 {
			f[5] = ""
			return strings.Join(f, `"`)
		}
	}
	return ""
}

type completionDoc struct {
	header
	Shell  string `json:"shell"`
	Script string `json:"script"`
}

// Completion prints a completion script.
func Completion(e *Env, shell, script string) error {
	if e.JSON {
		return e.emit(completionDoc{head("completion", nil), shell, script})
	}
	_, err := e.Stdout.Write([]byte(script))
	return err
}
