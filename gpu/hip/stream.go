package hip

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/native"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
)

// stream is a hipStream_t, ours or the caller's, with a cell for its ticks.
type stream struct {
	d      *device
	handle uintptr
	ours   bool
	calls  bool // ticks are host functions
	ticks  uint64
	cell   native.Cell
	passed *atomic.Uint64
	closed atomic.Bool
}

// NewStream is hipStreamCreateWithFlags with hipStreamNonBlocking.
func (d *device) NewStream() (gpu.Stream, error) {
	f := dl.NewFrame()
	defer f.Done()
	h := f.Word(0)
	err := d.use(func() error {
		return d.b.do("make stream of", d.Object, hipStreamCreateWithFlags, h.Addr, streamNonBlocking)
	})
	if err != nil {
		return nil, err
	}
	s, err := d.newStream(uintptr(h.Uint64()), true)
	if err != nil {
		end := func() error { return d.b.do("end stream of", d.Object, hipStreamDestroy, uintptr(h.Uint64())) }
		return nil, errors.Join(err, d.use(end))
	}
	return s, nil
}

// WrapStream takes a hipStream_t of the caller.
func (d *device) WrapStream(handle uintptr) (gpu.Stream, error) {
	s, err := d.newStream(handle, false)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (d *device) newStream(handle uintptr, ours bool) (*stream, error) {
	s := &stream{d: d, handle: handle, ours: ours, calls: !d.info.MemOps}
	var err error
	if s.cell, err = d.TakeCell(); err != nil {
		return nil, err
	}
	s.passed = s.cell.Word()
	return s, nil
}

func (s *stream) Handle() uintptr { return s.handle }

// do calls a function on the stream's device.
func (s *stream) do(op string, sym int, args ...uintptr) error {
	return s.d.use(func() error { return s.d.b.do(op, s.d.Object, sym, args...) })
}

// Copy is hipMemcpyHtoDAsync and hipMemcpyDtoHAsync.
func (s *stream) Copy(list ...gpu.Copy) error {
	return s.d.use(func() error {
		for i := range list {
			c := &list[i]
			if len(c.Host) == 0 {
				continue
			}
			host, n := dl.Addr(c.Host), uintptr(len(c.Host))
			var err error
			if c.ToHost {
				err = s.d.b.do("copy from", s.d.Object, hipMemcpyDtoHAsync, host, uintptr(c.Dev), n, s.handle)
			} else {
				err = s.d.b.do("copy to", s.d.Object, hipMemcpyHtoDAsync, uintptr(c.Dev), host, n, s.handle)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Move is not supported: there is no kernel for AMD's GPUs.
func (s *stream) Move(gpu.Ptr, int) error {
	return base.Errorf("launch", "move kernel", base.ErrNotSupported, "there is none for HIP")
}

// Sum is not supported either: values of AMD's GPUs are checked in the host memory
// that they pass.
func (s *stream) Sum(gpu.Ptr, int) error {
	return base.Errorf("launch", "checksum kernel", base.ErrNotSupported, "there is none for HIP")
}

// Watch is not supported: self-tests have the stream wait.
func (s *stream) Watch(gpu.Ptr) error {
	return base.Errorf("launch", "waiting kernel", base.ErrNotSupported, "there is none for HIP")
}

// WriteCell is hipStreamWriteValue64.
func (s *stream) WriteCell(p gpu.Ptr, v uint64) error {
	return s.do("write cell by", hipStreamWriteValue64, s.handle, uintptr(p), uintptr(v), 0)
}

// AwaitCell is hipStreamWaitValue64 with hipStreamWaitValueGte and every bit.
func (s *stream) AwaitCell(p gpu.Ptr, v uint64) error {
	return s.do("await cell by", hipStreamWaitValue64, s.handle, uintptr(p), uintptr(v), waitValueGEQ, ^uintptr(0))
}

// Call is hipLaunchHostFunc.
func (s *stream) Call(fn func()) error {
	call, arg, cancel, err := dl.Once(s.d.b.link, fn)
	if err != nil {
		return err
	}
	if err = s.do("call from", hipLaunchHostFunc, s.handle, call, arg); err != nil {
		cancel()
	}
	return err
}

// Tick lets the stream store its number into a cell, or, where the GPU turns
// out not to support that, has a host function do it.
func (s *stream) Tick() (uint64, error) {
	n := s.ticks + 1
	err := base.ErrNotSupported
	if !s.calls {
		err = s.WriteCell(s.cell.Ptr(), n)
	}
	if errors.Is(err, base.ErrNotSupported) {
		s.calls = true
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
	return gpu.WaitCell(ctx, s.passed, n, func() error {
		err := s.do("wait for", hipStreamQuery, s.handle)
		if e := (*Error)(nil); errors.As(err, &e) && e.Code == errNotReady {
			return nil
		}
		return err
	})
}

// Capturing is hipStreamIsCapturing.
func (s *stream) Capturing() (bool, error) {
	f := dl.NewFrame()
	defer f.Done()
	status := f.Word(0)
	err := s.do("look at stream of", hipStreamIsCapturing, s.handle, status.Addr)
	return status.Uint32() == captureActive, err
}

// Close waits for the work and ends a stream of ours (hipStreamDestroy). ErrTimeout
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
		err = errors.Join(err, s.do("end stream of", hipStreamDestroy, s.handle))
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

// event is a hipEvent_t without timing.
type event struct {
	d      *device
	handle uintptr
	closed atomic.Bool
}

// NewEvent is hipEventCreateWithFlags with hipEventDisableTiming.
func (d *device) NewEvent() (gpu.Event, error) {
	f := dl.NewFrame()
	defer f.Done()
	h := f.Word(0)
	err := d.use(func() error {
		return d.b.do("make event of", d.Object, hipEventCreateWithFlags, h.Addr, eventNoTiming)
	})
	if err != nil {
		return nil, err
	}
	return &event{d: d, handle: uintptr(h.Uint64())}, nil
}

func (e *event) Done() (done bool, err error) {
	err = e.d.use(func() error {
		switch code := e.d.b.code(hipEventQuery, e.handle); code {
		case 0:
			done = true
		case errNotReady:
		default:
			return e.d.b.fail("look at event of", e.d.Object, hipEventQuery, code)
		}
		return nil
	})
	return done, err
}

func (e *event) Close() error {
	if e.closed.Swap(true) {
		return nil
	}
	return e.d.use(func() error { return e.d.b.do("end event of", e.d.Object, hipEventDestroy, e.handle) })
}

func (s *stream) Record(e gpu.Event) error {
	ev, ok := e.(*event)
	if !ok {
		return base.Errorf("record", "event", base.ErrInvalid, "an event of another backend")
	}
	return s.do("record event of", hipEventRecord, ev.handle, s.handle)
}

func (s *stream) Await(e gpu.Event) error {
	ev, ok := e.(*event)
	if !ok {
		return base.Errorf("await", "event", base.ErrInvalid, "an event of another backend")
	}
	return s.do("await event of", hipStreamWaitEvent, s.handle, ev.handle, 0)
}
