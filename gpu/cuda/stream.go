package cuda

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/native"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
)

// stream is a CUstream, ours or the caller's, with a cell for its ticks.
type stream struct {
	d      *device
	ctx    uintptr
	handle uintptr
	ours   bool
	ticks  uint64
	cell   native.Cell
	passed *atomic.Uint64
	closed atomic.Bool
}

// NewStream is cuStreamCreate with CU_STREAM_NON_BLOCKING.
func (d *device) NewStream() (gpu.Stream, error) {
	ctx, err := d.primary()
	if err != nil {
		return nil, err
	}
	f := dl.NewFrame()
	defer f.Done()
	h := f.Word(0)
	err = d.b.with(ctx, func() error { return d.b.do("make stream of", d.Object, cuStreamCreate, h.Addr, streamNonBlocking) })
	if err != nil {
		return nil, err
	}
	s, err := d.newStream(ctx, uintptr(h.Uint64()), true)
	if err != nil {
		end := func() error { return d.b.do("end stream of", d.Object, cuStreamDestroy, uintptr(h.Uint64())) }
		return nil, errors.Join(err, d.b.with(ctx, end))
	}
	return s, nil
}

// WrapStream takes a CUstream of the caller; its context is the stream's own.
func (d *device) WrapStream(handle uintptr) (gpu.Stream, error) {
	ctx, err := d.primary()
	if err != nil {
		return nil, err
	}
	if handle > 2 && d.b.lib.Has(cuStreamGetCtx) { // 0 to 2 name default streams
		f := dl.NewFrame()
		defer f.Done()
		own := f.Word(0)
		err = d.b.with(ctx, func() error { return d.b.do("wrap stream of", d.Object, cuStreamGetCtx, handle, own.Addr) })
		if err != nil {
			return nil, err
		}
		ctx = uintptr(own.Uint64())
	}
	s, err := d.newStream(ctx, handle, false)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (d *device) newStream(ctx, handle uintptr, ours bool) (*stream, error) {
	s := &stream{d: d, ctx: ctx, handle: handle, ours: ours}
	var err error
	if s.cell, err = d.TakeCell(); err != nil {
		return nil, err
	}
	s.passed = s.cell.Word()
	return s, nil
}

func (s *stream) Handle() uintptr { return s.handle }

func (s *stream) do(op string, sym int, args ...uintptr) error {
	return s.d.b.do(op, s.d.Object, sym, args...)
}

// Copy is cuMemcpyHtoDAsync_v2 and cuMemcpyDtoHAsync_v2.
func (s *stream) Copy(list ...gpu.Copy) error {
	return s.d.b.with(s.ctx, func() error { return s.copyAll(list) })
}

func (s *stream) copyAll(list []gpu.Copy) error {
	for i := range list {
		c := &list[i]
		if len(c.Host) == 0 {
			continue
		}
		host, n := dl.Addr(c.Host), uintptr(len(c.Host))
		var err error
		if c.ToHost {
			err = s.do("copy from", cuMemcpyDtoHAsync, host, uintptr(c.Dev), n, s.handle)
		} else {
			err = s.do("copy to", cuMemcpyHtoDAsync, uintptr(c.Dev), host, n, s.handle)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// CopyTick is Copy and Tick in one visit to the context, see gpu.CopyTick.
func (s *stream) CopyTick(list ...gpu.Copy) (uint64, error) {
	if !s.d.info.MemOps {
		if err := s.Copy(list...); err != nil {
			return 0, err
		}
		return s.Tick()
	}
	n := s.ticks + 1
	err := s.d.b.with(s.ctx, func() error {
		if err := s.copyAll(list); err != nil {
			return err
		}
		return s.writeCell(s.cell.Ptr(), n)
	})
	if err != nil {
		return 0, err
	}
	s.ticks = n
	return n, nil
}

// WriteCell is cuStreamWriteValue64_v2.
func (s *stream) WriteCell(p gpu.Ptr, v uint64) error {
	return s.d.b.with(s.ctx, func() error { return s.writeCell(p, v) })
}

func (s *stream) writeCell(p gpu.Ptr, v uint64) error {
	return s.do("write cell by", cuStreamWriteValue64, s.handle, uintptr(p), uintptr(v), 0)
}

// AwaitCell is cuStreamWaitValue64_v2 with CU_STREAM_WAIT_VALUE_GEQ.
func (s *stream) AwaitCell(p gpu.Ptr, v uint64) error {
	return s.d.b.with(s.ctx, func() error {
		return s.do("await cell by", cuStreamWaitValue64, s.handle, uintptr(p), uintptr(v), waitValueGEQ)
	})
}

// Call is cuLaunchHostFunc.
func (s *stream) Call(fn func()) error {
	call, arg, cancel, err := dl.Once(s.d.b.link, fn)
	if err != nil {
		return err
	}
	err = s.d.b.with(s.ctx, func() error { return s.do("call from", cuLaunchHostFunc, s.handle, call, arg) })
	if err != nil {
		cancel()
	}
	return err
}

// Tick lets the stream store its number into a cell, or, where streams cannot,
// has a host function do it.
func (s *stream) Tick() (uint64, error) {
	n := s.ticks + 1
	var err error
	if s.d.info.MemOps {
		err = s.WriteCell(s.cell.Ptr(), n)
	} else {
		err = s.Call(func() { s.passed.Store(n) })
	}
	if err != nil {
		return 0, err
	}
	s.ticks = n
	return n, nil
}

func (s *stream) Ticked() uint64 { return s.passed.Load() }

func (s *stream) WaitTick(ctx context.Context, n uint64) error {
	return gpu.WaitCell(ctx, s.passed, n, s.query)
}

// query is nil while the stream works, and the error that broke it otherwise.
func (s *stream) query() error {
	return s.d.b.with(s.ctx, func() error {
		if code := s.d.b.code(cuStreamQuery, s.handle); code != 0 && code != errNotReady {
			return s.d.b.fail("wait for", s.d.Object, cuStreamQuery, code)
		}
		return nil
	})
}

// Capturing is cuStreamIsCapturing.
func (s *stream) Capturing() (bool, error) {
	f := dl.NewFrame()
	defer f.Done()
	status := f.Word(0)
	err := s.d.b.with(s.ctx, func() error { return s.do("look at stream of", cuStreamIsCapturing, s.handle, status.Addr) })
	return status.Uint32() == captureActive, err
}

// Close waits for the work and ends a stream of ours (cuStreamDestroy). ErrTimeout
// if the work does not end, because the stream waits for a cell: it then stays
// open, and Close may be called again.
func (s *stream) Close() error {
	if s.closed.Load() {
		return nil
	}
	err := s.drain()
	if errors.Is(err, base.ErrTimeout) {
		return base.WithHint(err, "let the stream go on before it is closed")
	}
	s.closed.Store(true)
	if s.ours {
		err = errors.Join(err, s.d.b.with(s.ctx, func() error { return s.do("end stream of", cuStreamDestroy, s.handle) }))
	}
	if err == nil {
		s.d.PutCell(s.cell) // after an error the GPU may still store into it
	}
	return err
}

func (s *stream) drain() error {
	n, err := s.Tick()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.d.b.closeWait)
	defer cancel()
	return s.WaitTick(ctx, n)
}

// event is a CUevent without timing.
type event struct {
	d      *device
	handle uintptr
	closed atomic.Bool
}

// NewEvent is cuEventCreate with CU_EVENT_DISABLE_TIMING.
func (d *device) NewEvent() (gpu.Event, error) {
	f := dl.NewFrame()
	defer f.Done()
	h := f.Word(0)
	err := d.use(func() error { return d.b.do("make event of", d.Object, cuEventCreate, h.Addr, eventNoTiming) })
	if err != nil {
		return nil, err
	}
	return &event{d: d, handle: uintptr(h.Uint64())}, nil
}

func (e *event) Done() (done bool, err error) {
	err = e.d.use(func() error {
		switch code := e.d.b.code(cuEventQuery, e.handle); code {
		case 0:
			done = true
		case errNotReady:
		default:
			return e.d.b.fail("look at event of", e.d.Object, cuEventQuery, code)
		}
		return nil
	})
	return done, err
}

func (e *event) Close() error {
	if e.closed.Swap(true) {
		return nil
	}
	return e.d.use(func() error { return e.d.b.do("end event of", e.d.Object, cuEventDestroy, e.handle) })
}

func (s *stream) Record(e gpu.Event) error {
	ev, ok := e.(*event)
	if !ok {
		return base.Errorf("record", "event", base.ErrInvalid, "an event of another backend")
	}
	return s.d.b.with(s.ctx, func() error { return s.do("record event of", cuEventRecord, ev.handle, s.handle) })
}

func (s *stream) Await(e gpu.Event) error {
	ev, ok := e.(*event)
	if !ok {
		return base.Errorf("await", "event", base.ErrInvalid, "an event of another backend")
	}
	return s.d.b.with(s.ctx, func() error { return s.do("await event of", cuStreamWaitEvent, s.handle, ev.handle, 0) })
}
