package ctl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/store"
)

// existsKeys is how many keys one look-up takes.
const existsKeys = store.MaxBatchKeys

// ExistsOptions of Exists.
type ExistsOptions struct {
	Keys []string // Std stands for the lines of standard input
}

type existsDoc struct {
	header
	nameDoc
	Keys    int64    `json:"keys"`
	There   int64    `json:"there"`
	Missing []keyDoc `json:"missing"`
}

// Exists tells which of the keys are missing. Standard input is read to its end
// if it holds fewer keys than one look-up takes, before the store is opened.
func Exists(ctx context.Context, e *Env, t *Target, o ExistsOptions) error {
	return e.fail("exists", exists(ctx, e, t, o))
}

func exists(ctx context.Context, e *Env, t *Target, o ExistsOptions) error {
	doc := existsDoc{header: head("exists", nil), nameDoc: docName(t.namespace()), Missing: []keyDoc{}}
	keys := &keySource{ctx: ctx, e: e, t: t, args: o.Keys}
	chunk, err := keys.next()
	if err != nil {
		return err
	}
	out := bufio.NewWriter(e.Stdout)
	var absent error
	err = e.with(ctx, "exists", t, true, func(s *session) error {
		n, err := s.Namespace(ctx, t.namespace(), store.NamespaceOptions{})
		if absent = err; err != nil && (len(chunk) == 0 || !errors.Is(err, store.ErrNotFound)) {
			return t.mayBeAbsent(err)
		}
		there := make([]bool, existsKeys)
		for len(chunk) > 0 {
			if ctx.Err() != nil {
				return interrupted{}
			}
			if absent == nil {
				if err := n.ExistsMany(chunk, there[:len(chunk)]); err != nil {
					return err
				}
			}
			if err := doc.add(e, t, out, chunk, there); err != nil {
				return err
			}
			if chunk, err = keys.next(); err != nil {
				return err
			}
		}
		return nil
	})
	if ferr := out.Flush(); err == nil {
		err = ferr
	}
	if err != nil {
		return err
	}
	return doc.report(e, t.mayBeAbsent(absent))
}

// add counts one look-up and prints the keys that are missing.
func (d *existsDoc) add(e *Env, t *Target, out io.Writer, keys [][]byte, there []bool) error {
	for i, k := range keys {
		d.Keys++
		switch {
		case there[i]:
			d.There++
		case e.JSON:
			d.Missing = append(d.Missing, docKey(k))
		default:
			if _, err := fmt.Fprintln(out, t.showKey(k)); err != nil {
				return err
			}
		}
	}
	return nil
}

// report ends the list; absent is why no key is there, if the namespace is to blame.
func (d *existsDoc) report(e *Env, absent error) error {
	missing := d.Keys - d.There
	if e.JSON {
		if err := e.emit(d); err != nil {
			return err
		}
	} else if missing > 0 {
		why := ""
		if absent != nil {
			why = ": " + absent.Error()
		}
		if _, err := fmt.Fprintf(e.Stderr, "ugdsctl: exists: %d of %s missing%s\n", missing, count(d.Keys, "key"), why); err != nil {
			return base.Wrap("write", "standard error", err)
		}
	}
	if missing > 0 {
		return quietly(ExitNotFound)
	}
	return nil
}

// keySource gives the keys of the arguments, and of standard input where an
// argument is Std, in pieces that one look-up takes.
type keySource struct {
	ctx  context.Context
	e    *Env
	t    *Target
	args []string
	in   *bufio.Scanner // of Std, while it lasts
	line int            // the last one that in gave, from 1
}

// located says which line of standard input an error about a key means, if it came from
// there.
func (k *keySource) located(err error) error {
	if wrong := new(usageError); k.in != nil && errors.As(err, &wrong) {
		return usage(wrong.verb, "line %d of standard input: %s", k.line, wrong.text)
	}
	return err
}

// next gives the next keys, none at the end.
func (k *keySource) next() ([][]byte, error) {
	var keys [][]byte
	for len(keys) < existsKeys {
		text, ok, err := k.text()
		if err != nil || !ok {
			return keys, err
		}
		key, err := k.t.parseKey("exists", text)
		if err != nil {
			return nil, k.located(err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// text gives the next key as it was written; false at the end.
func (k *keySource) text() (string, bool, error) {
	for {
		if k.in != nil {
			if k.in.Scan() {
				k.line++
				return k.in.Text(), true, nil
			}
			switch err := k.in.Err(); {
			case errors.Is(err, bufio.ErrTooLong):
				k.line++
				return "", false, k.located(usage("exists", "it is longer than any key"))
			case err != nil:
				return "", false, err
			}
			k.in = nil
		}
		if len(k.args) == 0 {
			return "", false, nil
		}
		arg := k.args[0]
		k.args = k.args[1:]
		if arg != Std {
			return arg, true, nil
		}
		k.in = bufio.NewScanner(reader{k.ctx, k.e.Stdin, Std})
		k.in.Split(splitLines)
		k.line = 0
	}
}

// splitLines is bufio.ScanLines, but a carriage return is part of the key.
func splitLines(data []byte, atEOF bool) (int, []byte, error) {
	for i, b := range data {
		if b == '\n' {
			return i + 1, data[:i], nil
		}
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}
