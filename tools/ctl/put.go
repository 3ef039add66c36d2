package ctl

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/store"
)

// Std names standard input or output in place of a file.
const Std = "-"

// copyBytes is the unit in which values are read and written.
const copyBytes = 4 * base.MiB

// PutOptions of Put.
type PutOptions struct {
	Key, File string
	Replace   bool // the key may exist
	Relaxed   bool // do not wait until the value is durable
}

type putDoc struct {
	header
	nameDoc
	keyDoc
	Bytes int64 `json:"bytes"`
}

// Put stores a file, or standard input, under a key.
func Put(ctx context.Context, e *Env, t *Target, o PutOptions) error {
	return e.fail("put", put(ctx, e, t, o))
}

func put(ctx context.Context, e *Env, t *Target, o PutOptions) error {
	key, err := t.parseKey("put", o.Key)
	if err != nil {
		return err
	}
	in, total, err := e.input(ctx, o.File)
	if err != nil {
		return err
	}
	defer in.Close()
	var n int64
	err = e.withNamespace(ctx, "put", t, false, func(ns *store.Namespace) error {
		n, err = putStream(ctx, e, ns, key, in, total, o)
		return err
	})
	if err != nil {
		return err
	}
	if e.JSON {
		return e.emit(putDoc{head("put", nil), docName(t.namespace()), docKey(key), n})
	}
	return nil
}

func putStream(ctx context.Context, e *Env, ns *store.Namespace, key []byte, in io.Reader, total int64, o PutOptions) (int64, error) {
	po := store.PutOptions{Replace: o.Replace}
	if o.Relaxed {
		po.Durability = store.Relaxed
	}
	if !o.Replace { // better now than after the last byte of a pipe
		switch there, err := ns.Exists(ctx, key); {
		case err != nil:
			return 0, err
		case there:
			return 0, existsHint(base.Wrap("put", o.Key, store.ErrExists))
		}
	}
	w, err := ns.NewWriter(ctx, key, po)
	if err != nil {
		return 0, existsHint(err)
	}
	bar := e.progress("put", total)
	defer bar.Done()
	n, err := io.CopyBuffer(onlyWriter{w}, &counted{r: reader{ctx, in, o.File}, bar: bar}, make([]byte, copyBytes))
	if f, ok := in.(*os.File); ok && err == nil {
		err = sizeKept(f, total)
	}
	if err != nil {
		w.Abort()
		return 0, err
	}
	return n, existsHint(w.Close())
}

func existsHint(err error) error {
	if code := ExitCode(err); code == ExitExists {
		return base.WithHint(err, "--replace puts a new value in its place")
	}
	return err
}

// sizeKept refuses a regular file that another one cut or made longer while it was read:
// what was read may be neither what it was nor what it is.
func sizeKept(f *os.File, size int64) error {
	st, err := f.Stat()
	if err == nil && st.Mode().IsRegular() && st.Size() != size {
		err = fmt.Errorf("its size changed from %d to %d bytes while it was read", size, st.Size())
		return base.WithHint(base.Wrap("put", f.Name(), err), "nothing was stored; put it when nobody writes to it, or put a copy")
	}
	return base.Wrap("put", f.Name(), err)
}

// input opens the file to put; its size is 0 if unknown.
func (e *Env) input(ctx context.Context, name string) (io.ReadCloser, int64, error) {
	if name == "" {
		return nil, 0, usage("put", "the name of the file is empty")
	}
	if name == Std {
		return io.NopCloser(e.Stdin), 0, nil
	}
	f, err := await(ctx, 0, func() (*os.File, error) { return os.Open(name) })
	if err != nil {
		return nil, 0, base.Wrap("put", name, pathCause(err))
	}
	st, err := f.Stat()
	if err == nil && st.IsDir() {
		err = usage("put", "%s is a directory", name)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, st.Size(), nil
}

// onlyWriter hides what else a writer can do, so that copies pass our buffer.
type onlyWriter struct{ io.Writer }
