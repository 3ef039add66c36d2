package bench

import (
	"context"
	"errors"
	"io"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// rawSubject writes and reads slots with plain system calls.
type rawSubject struct {
	d *dataset
	f *unix.FD
}

func openRaw(d *dataset) (*rawSubject, error) {
	path := d.c.Place.rawPath()
	f, err := unix.Open(path, unix.ReadWrite|unix.Direct, 0)
	if err != nil {
		return nil, base.Wrap("open", path, err)
	}
	return &rawSubject{d, f}, nil
}

func (s *rawSubject) settle(context.Context) error { return unix.Fdatasync(s.f) }
func (s *rawSubject) close(context.Context) error  { return s.f.Close() }
func (s *rawSubject) count() counts                { return counts{engine: "pwrite, pread"} }
func (s *rawSubject) caller() caller               { return s }

func (s *rawSubject) do(_ context.Context, op string, ids []int) error {
	for _, i := range ids {
		var err error
		switch op {
		case OpPut:
			if err = whole(unix.Pwrite, s.f, s.d.slot(s.d.src, i), s.d.off(i)); err == nil && s.d.c.Sync {
				err = unix.Fdatasync(s.f)
			}
		case OpGet:
			err = whole(unix.Pread, s.f, s.d.slot(s.d.dst, i), s.d.off(i))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// whole repeats short I/O until all of b has moved.
func whole(call func(*unix.FD, []byte, int64) (int, error), f *unix.FD, b []byte, off int64) error {
	for len(b) > 0 {
		n, err := call(f, b, off)
		if err != nil {
			return base.Wrap("bench", f.Path(), err)
		}
		if n == 0 {
			return base.Wrap("bench", f.Path(), io.ErrUnexpectedEOF)
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// ringSubject sends the same slots through the file device in batches.
type ringSubject struct {
	d   *dataset
	dev driver.Device
}

func openRing(ctx context.Context, d *dataset) (*ringSubject, error) {
	dev, err := probe.Open(ctx, "file:"+d.c.Place.rawPath(), probe.Options{File: file.Options{Owner: "ugdsctl bench"}})
	if err != nil {
		return nil, err
	}
	if err := attach(dev, d); err != nil {
		return nil, errors.Join(err, dev.Close(ctx))
	}
	return &ringSubject{d, dev}, nil
}

func (s *ringSubject) settle(ctx context.Context) error { return driver.Flush(ctx, s.dev) }
func (s *ringSubject) close(ctx context.Context) error  { return s.dev.Close(ctx) }

func (s *ringSubject) count() counts {
	st := s.dev.Stats()
	return counts{read: st.ReadBytes, written: st.WriteBytes, hasBytes: true,
		flushes: st.Flushes, hasFlushes: true, engine: s.dev.Info().Engine}
}

// ringCaller keeps Depth commands of its call in flight.
type ringCaller struct {
	s    *ringSubject
	b    [2]driver.Batch
	segs []driver.Seg
}

func (s *ringSubject) caller() caller {
	return &ringCaller{s: s, segs: make([]driver.Seg, s.d.c.Batch)}
}

func (w *ringCaller) do(ctx context.Context, op string, ids []int) error {
	kind, mem := driver.OpRead, w.s.d.dst
	switch op {
	case OpGet:
	case OpPut:
		kind, mem = driver.OpWrite, w.s.d.src
	default:
		return nil
	}
	half := len(ids)
	if depth := w.s.d.c.Depth; depth > 0 && depth < len(ids) {
		half = max(depth/2, 1)
	}
	var under [2]bool
	for turn := 0; len(ids) > 0 || under[0] || under[1]; turn ^= 1 {
		b := &w.b[turn]
		if under[turn] {
			under[turn] = false
			if err := wait(ctx, b); err != nil {
				return errors.Join(err, w.drain(ctx, under))
			}
		}
		now := ids[:min(half, len(ids))]
		ids = ids[len(now):]
		if len(now) == 0 {
			continue
		}
		b.Reqs = b.Reqs[:0]
		for _, i := range now {
			seg := w.segs[len(b.Reqs)+turn*half:][:1]
			seg[0] = mem.Seg(w.s.d.off(i), w.s.d.c.stride())
			b.Reqs = append(b.Reqs, driver.Request{Op: kind, Off: w.s.d.off(i), Len: w.s.d.c.stride(),
				FUA: op == OpPut && w.s.d.c.Sync, Segs: seg})
		}
		if err := w.s.dev.Submit(ctx, b); err != nil {
			return errors.Join(err, w.drain(ctx, under))
		}
		under[turn] = true
	}
	return nil
}

func (w *ringCaller) drain(ctx context.Context, under [2]bool) error {
	var errs []error
	for k := range under {
		if under[k] {
			errs = append(errs, wait(context.WithoutCancel(ctx), &w.b[k]))
		}
	}
	return errors.Join(errs...)
}

// wait returns when nothing of b is in flight any more.
func wait(ctx context.Context, b *driver.Batch) error {
	err := b.Wait(ctx)
	if err != nil {
		err = errors.Join(err, b.Wait(context.WithoutCancel(ctx)))
	}
	return errors.Join(err, b.Err())
}
