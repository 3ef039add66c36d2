package ctl

import (
	"context"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/ugds-store/ugds/internal/base"
)

type manDoc struct {
	header
	Dir   string   `json:"dir"`
	Pages []string `json:"pages"`
}

// Man writes manual pages, given by the names of their files, into a directory,
// which it makes if need be.
func Man(ctx context.Context, e *Env, dir string, pages map[string][]byte) error {
	doc := manDoc{head("man", nil), dir, slices.Sorted(maps.Keys(pages))}
	err := os.MkdirAll(dir, 0o755)
	if err != nil {
		return e.fail("man", base.Wrap("make", dir, pathCause(err)))
	}
	for _, name := range doc.Pages {
		if ctx.Err() != nil {
			return e.fail("man", interrupted{})
		}
		err := writeFile(filepath.Join(dir, name), true, func(f io.Writer) error {
			_, err := f.Write(pages[name])
			return err
		})
		if err != nil {
			return e.fail("man", err)
		}
	}
	if e.JSON {
		return e.emit(doc)
	}
	return e.say("%s in %s", count(int64(len(doc.Pages)), "page"), dir)
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
