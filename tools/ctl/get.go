package ctl

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/store"
)

// GetOptions of Get.
type GetOptions struct {
	Key, File string
	Range     string // OFF:LEN, OFF: or :LEN; "" is the whole value
	Force     bool   // replace an existing file
}

type getDoc struct {
	header
	nameDoc
	keyDoc
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	Bytes  int64  `json:"bytes"`
	Size   int64  `json:"size"`
}

// Get writes the value of a key, or a range of it, to a file or to standard
// output. A file appears whole or not at all.
func Get(ctx context.Context, e *Env, t *Target, o GetOptions) error {
	if o.File == Std && e.JSON {
		return usage("get", "--json and - both want standard output")
	}
	return e.fail("get", get(ctx, e, t, o))
}

func get(ctx context.Context, e *Env, t *Target, o GetOptions) error {
	key, err := t.parseKey("get", o.Key)
	if err != nil {
		return err
	}
	r, err := parseRange(o.Range)
	if err != nil {
		return err
	}
	if o.File == "" {
		return usage("get", "the name of the file is empty")
	}
	p, err := t.parts("get")
	if err != nil {
		return err
	}
	if err := p.guard("get", t.Dir, o.File); err != nil {
		return err
	}
	if err := mayOutput(ctx, "get", o.File, o.Force); err != nil {
		return err
	}
	doc := getDoc{header: head("get", nil), nameDoc: docName(t.namespace()), keyDoc: docKey(key), File: o.File}
	err = e.withNamespace(ctx, "get", t, true, func(ns *store.Namespace) error {
		if ns == nil {
			return noKey("get", t, key)
		}
		return getStream(ctx, e, ns, t.showKey(key), key, r, o, &doc)
	})
	if err != nil {
		return err
	}
	if e.JSON {
		return e.emit(doc)
	}
	return nil
}

func getStream(ctx context.Context, e *Env, ns *store.Namespace, name string, key []byte, rng byteRange, o GetOptions, doc *getDoc) error {
	r, err := ns.NewReader(ctx, key)
	if err != nil {
		return err
	}
	defer r.Close()
	doc.Size = r.Size()
	off, n, err := rng.of(name, r.Size())
	if err != nil {
		return err
	}
	doc.Offset, doc.Bytes = off, n
	if err := fits("get", o.File, n); err != nil {
		return err
	}
	var bar Bar = noBar{}
	if o.File != Std || !e.Screen {
		bar = e.progress("get", n)
	}
	defer bar.Done()
	return e.output(ctx, "get", o.File, o.Force, func(w io.Writer) error { return copyRange(ctx, w, r, off, n, bar) })
}

// copyRange reads in units that begin and end on pieces, so that none is read
// twice to be verified.
func copyRange(ctx context.Context, w io.Writer, r *store.Reader, off, n int64, bar Bar) error {
	buf := make([]byte, min(copyBytes, n))
	for end := off + n; off < end; {
		b := buf[:min(copyBytes-off%copyBytes, end-off, int64(len(buf)))]
		if err := r.ReadRange(ctx, b, off); err != nil {
			return err
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
		bar.Add(int64(len(b)))
		off += int64(len(b))
	}
	return nil
}

// byteRange is a part of a value; len -1 means to the end.
type byteRange struct{ off, len int64 }

// parseRange reads OFF:LEN with binary units.
func parseRange(s string) (byteRange, error) {
	if s == "" {
		return byteRange{0, -1}, nil
	}
	a, b, ok := strings.Cut(s, ":")
	if !ok || a == "" && b == "" {
		return byteRange{}, usage("get", "range %q: write OFF:LEN, OFF: or :LEN", s)
	}
	r := byteRange{0, -1}
	for _, p := range []struct {
		text string
		to   *int64
	}{{a, &r.off}, {b, &r.len}} {
		if p.text == "" {
			continue
		}
		n, err := base.ParseBytes(p.text)
		if err != nil {
			return byteRange{}, usage("get", "range %q: %s is not a number of bytes", s, strconv.Quote(p.text))
		}
		*p.to = n
	}
	return r, nil
}

// of applies the range to a value of size bytes; what is outside is refused, not
// cut off.
func (r byteRange) of(name string, size int64) (off, n int64, err error) {
	n = r.len
	if n < 0 {
		n = size - r.off
	}
	if !base.CheckRange(r.off, n, size) {
		return 0, 0, base.Errorf("get", name, base.ErrOutOfRange,
			"the value has %d bytes, the range begins at %d and needs %d", size, r.off, max(n, 0))
	}
	return r.off, n, nil
}

// pathCause takes the operation and path out of an error of package os, which
// the message names already.
func pathCause(err error) error {
	var p *fs.PathError
	var l *os.LinkError
	switch {
	case errors.As(err, &p):
		return p.Err
	case errors.As(err, &l):
		return l.Err
	}
	return err
}
