package host

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
)

// stream runs its queue in a goroutine of its own. Operations give an error
// that breaks the stream: what follows never runs, as on a GPU that failed.
type stream struct {
	b      *Backend
	handle uintptr
	ticks  uint64 // queued
	passed atomic.Uint64
	broken atomic.Pointer[error]
	ended  chan struct{}

	mu     sync.Mutex
	wake   *sync.Cond
	queue  []func() error
	closed bool
}

func (d *device) NewStream() (gpu.Stream, error) {
	return d.start(uintptr(d.b.handles.Add(1))), nil
}

// WrapStream gives a new stream with that handle: there are no foreign ones.
func (d *device) WrapStream(handle uintptr) (gpu.Stream, error) { return d.start(handle), nil }

func (d *device) start(handle uintptr) *stream {
	s := &stream{b: d.b, handle: handle, ended: make(chan struct{})}
	s.wake = sync.NewCond(&s.mu)
	go s.run()
	return s
}

func (s *stream) run() {
	defer close(s.ended)
	for {
		s.mu.Lock()
		for len(s.queue) == 0 && !s.closed {
			s.wake.Wait()
		}
		todo := s.queue
		s.queue = nil
		s.mu.Unlock()
		if todo == nil {
			return
		}
		for _, fn := range todo {
			if s.broken.Load() != nil {
				break
			}
			if err := fn(); err != nil {
				s.broken.CompareAndSwap(nil, &err)
			}
		}
	}
}

// put queues fn, or gives the error that broke the stream.
func (s *stream) put(fn func() error) error {
	if err := s.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return base.Errorf("queue", "host stream", base.ErrClosed, "it was closed")
	}
	s.queue = append(s.queue, fn)
	s.wake.Signal()
	return nil
}

// Err is what broke the stream, or nil.
func (s *stream) Err() error {
	if p := s.broken.Load(); p != nil {
		return *p
	}
	return nil
}

func (s *stream) Handle() uintptr { return s.handle }

func (s *stream) Copy(list ...gpu.Copy) error {
	f := &s.b.opt.Faults
	for _, c := range list {
		if f.Queue != nil {
			if err := f.Queue(c); err != nil {
				return err
			}
		}
		if err := s.put(func() error { return s.copy(c) }); err != nil {
			return err
		}
	}
	return nil
}

func (s *stream) copy(c gpu.Copy) error {
	f := &s.b.opt.Faults
	if f.CopyDelay > 0 {
		time.Sleep(f.CopyDelay)
	}
	if f.Run != nil {
		if err := f.Run(c); err != nil {
			return err
		}
	}
	dev, err := s.b.bytes(c.Dev, int64(len(c.Host)))
	if err != nil {
		return err
	}
	if _, err := s.b.bytes(gpu.Ptr(dl.Addr(c.Host)), int64(len(c.Host))); err != nil {
		return err // not pinned
	}
	switch {
	case c.ToHost:
		copy(c.Host, dev)
	case len(dev) == 8 && c.Dev%8 == 0: // one store: another stream may wait for it
		var word [8]byte
		fetch(word[:], c.Host)
		dl.Cell(dev, 0).Store(binary.LittleEndian.Uint64(word[:]))
	default:
		fetch(dev, c.Host)
	}
	return nil
}

// fetch copies pinned memory. A page of a mapped file that the file has lost
// meanwhile is a fault for the processor; a GPU has pinned the page and reads it
// still. The bytes are then undefined here.
func fetch(dst, src []byte) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		var fault interface{ Addr() uintptr } // only memory faults have it
		if r := recover(); r != nil && !errors.As(asError(r), &fault) {
			panic(r)
		}
	}()
	copy(dst, src)
}

func asError(r any) error {
	err, _ := r.(error)
	return err
}

// canRun tells why a kernel cannot be queued.
func (s *stream) canRun(kernel string, count int) error {
	if s.b.opt.Faults.NoMover {
		return base.Errorf("launch", kernel, base.ErrNotSupported, "no kernel")
	}
	if count < 0 || count > gpu.MaxMoves {
		return base.Errorf("launch", kernel, base.ErrInvalid, "%d entries, the limit is %d", count, gpu.MaxMoves)
	}
	return nil
}

// Sum has hash/crc32 do it.
func (s *stream) Sum(table gpu.Ptr, count int) error {
	if err := s.canRun("checksum kernel", count); err != nil {
		return err
	}
	return s.put(func() error {
		t, err := s.b.bytes(table, int64(count)*gpu.SumBytes)
		if err != nil {
			return err
		}
		return gpu.EachSum(t, count, func(p gpu.Ptr, n int64) (uint32, error) {
			if n == 0 { // the address is not looked at
				return 0, nil
			}
			b, err := s.b.bytes(p, n)
			return crc32.Checksum(b, castagnoli), err
		})
	})
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (s *stream) Move(table gpu.Ptr, count int) error {
	if err := s.canRun("move kernel", count); err != nil {
		return err
	}
	return s.put(func() error {
		t, err := s.b.bytes(table, int64(count)*gpu.MoveBytes)
		for i := 0; i < count && err == nil; i++ {
			m := gpu.GetMove(t, i)
			if m.N == 0 { // the addresses are not looked at
				continue
			}
			var src, dst []byte
			if src, err = s.b.bytes(m.Src, m.N); err == nil {
				dst, err = s.b.bytes(m.Dst, m.N)
			}
			copy(dst, src)
		}
		return err
	})
}

func (s *stream) cell(p gpu.Ptr) (*atomic.Uint64, error) {
	if s.b.opt.Faults.NoMemOps {
		return nil, base.Errorf("use", "cell", base.ErrNotSupported, "no stream memory operations")
	}
	b, err := s.b.bytes(p, 8)
	if err != nil {
		return nil, err
	}
	return dl.Cell(b, 0), nil
}

func (s *stream) WriteCell(p gpu.Ptr, v uint64) error {
	c, err := s.cell(p)
	if err != nil {
		return err
	}
	return s.put(func() error { c.Store(v); return nil })
}

// Watch is a wait like AwaitCell, but a bounded one, and a copy.
func (s *stream) Watch(entry gpu.Ptr) error {
	if err := s.canRun("waiting kernel", 1); err != nil {
		return err
	}
	return s.put(func() error {
		b, err := s.b.bytes(entry, gpu.WatchBytes)
		if err != nil {
			return err
		}
		w := gpu.GetWatch(b)
		src, err := s.b.bytes(w.Src, w.N)
		if err != nil {
			return err
		}
		dst, err := s.b.bytes(w.Dst, w.N)
		if err != nil {
			return err
		}
		last, end := dl.Cell(src, int(w.N-8)), time.Now().Add(w.For)
		gpu.WatchBegun(b).Store(1)
		for last.Load() != w.Value {
			if s.Err() != nil || time.Now().After(end) {
				gpu.WatchEnded(b).Store(gpu.WatchGaveUp)
				return nil
			}
			time.Sleep(awaitPoll)
		}
		copy(dst, src)
		gpu.WatchEnded(b).Store(gpu.WatchSaw)
		return nil
	})
}

// awaitPoll is how often a waiting stream looks at its cell.
const awaitPoll = 20 * time.Microsecond

func (s *stream) AwaitCell(p gpu.Ptr, v uint64) error {
	c, err := s.cell(p)
	if err != nil {
		return err
	}
	return s.put(func() error {
		for int64(c.Load()-v) < 0 {
			if s.Err() != nil {
				return nil
			}
			time.Sleep(awaitPoll)
		}
		return nil
	})
}

func (s *stream) Call(fn func()) error { return s.put(func() error { fn(); return nil }) }

// event counts how often it was recorded and passed.
type event struct{ recorded, passed atomic.Int64 }

func (d *device) NewEvent() (gpu.Event, error) { return new(event), nil }

func (e *event) Done() (bool, error) { return e.passed.Load() >= e.recorded.Load(), nil }
func (e *event) Close() error        { return nil }

func (s *stream) Record(e gpu.Event) error {
	ev := e.(*event)
	n := ev.recorded.Add(1)
	return s.put(func() error { ev.passed.Store(n); return nil })
}

func (s *stream) Await(e gpu.Event) error {
	ev := e.(*event)
	n := ev.recorded.Load()
	return s.put(func() error {
		for ev.passed.Load() < n && s.Err() == nil {
			time.Sleep(awaitPoll)
		}
		return nil
	})
}

func (s *stream) Tick() (uint64, error) {
	n := s.ticks + 1
	if err := s.put(func() error { s.passed.Store(n); return nil }); err != nil {
		return 0, err
	}
	s.ticks = n
	return n, nil
}

func (s *stream) Ticked() uint64 { return s.passed.Load() }

func (s *stream) WaitTick(ctx context.Context, n uint64) error {
	return gpu.WaitCell(ctx, &s.passed, n, s.Err)
}

func (s *stream) Capturing() (bool, error) {
	f := s.b.opt.Faults.Capturing
	return f != nil && f(s.handle), nil
}

// Close waits for the queue. A stream that waits for a cell is given up.
func (s *stream) Close() error {
	s.mu.Lock()
	s.closed = true
	s.wake.Signal()
	s.mu.Unlock()
	select {
	case <-s.ended:
	case <-time.After(closeWait):
		err := base.Errorf("close", "host stream", base.ErrTimeout, "it still waits")
		s.broken.CompareAndSwap(nil, &err)
		<-s.ended
		return err
	}
	return nil
}

// closeWait bounds the wait of Close for queued work.
const closeWait = 10 * time.Second
