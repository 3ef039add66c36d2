package ctl

import (
	"context"
	"io"
	"time"

	"github.com/ugds-store/ugds/internal/base"
)

// writeGrace is how long a write may still take after an interrupt: what a verb
// says about its end shall be read if anybody reads.
const writeGrace = 500 * time.Millisecond

// await ends with ctx, also while do hangs in the kernel: at a pipe without the
// other side, at a terminal. What do still brings is lost, and so is its memory.
func await[T any](ctx context.Context, grace time.Duration, do func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := do()
		done <- result{v, err}
	}()
	select {
	case got := <-done:
		return got.v, got.err
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case got := <-done:
		return got.v, got.err
	case <-timer.C:
		var none T
		return none, interrupted{}
	}
}

// reader ends with ctx, also while a read from a pipe or a terminal waits.
type reader struct {
	ctx  context.Context
	r    io.Reader
	name string
}

func (r reader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, interrupted{}
	}
	n, err := await(r.ctx, 0, func() (int, error) { return r.r.Read(p) })
	if err != nil && err != io.EOF && err != (interrupted{}) {
		name := r.name
		if name == Std {
			name = "standard input"
		}
		err = base.Wrap("read", name, pathCause(err))
	}
	return n, err
}

// Interruptible gives a writer to w that ends soon after ctx, also while nobody
// takes what it writes. After that it writes nothing more.
func Interruptible(ctx context.Context, w io.Writer) io.Writer {
	return &writer{ctx: ctx, w: w}
}

type writer struct {
	ctx  context.Context
	w    io.Writer
	dead bool // a write was left behind
}

func (w *writer) Write(p []byte) (int, error) {
	if w.dead {
		return 0, interrupted{}
	}
	n, err := await(w.ctx, writeGrace, func() (int, error) { return w.w.Write(p) })
	w.dead = err == (interrupted{})
	return n, err
}
