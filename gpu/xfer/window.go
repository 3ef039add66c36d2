package xfer

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// Reasons of windows: of one, and why a request that was large enough had none.
const (
	ReasonWindow    = "cached file data"
	ReasonOrdered   = "a stream of the GPU may wait"
	ReasonNoMapping = "the file cannot be mapped"
	ReasonNotCached = "the file is not in the page cache"
	ReasonRefused   = "the library refused the window"
	ReasonChanged   = "the file changed under the window"
)

const (
	// MinWindow is the least WindowBytes that is not 0: smaller windows cost more
	// than they save.
	MinWindow = base.MiB
	// windowLanes is the most lanes that windows of one request use: the library
	// registers one after the other, and two let it do so while another is copied.
	windowLanes = 2
	// missingShare is which share of a range may be missing in the page cache.
	missingShare = 8
)

// Window is cached file data in the reach of a GPU: mapped, and registered for
// reading. It moves without a copy by the processor. After the file was written past
// the page cache, cut or punched, it gives the old bytes without an error: only the
// file's owner may keep one, and must close it before it writes there.
type Window struct {
	mem   []byte
	pin   gpu.HostMemory
	unmap func() error
	once  sync.Once
	err   error
}

// OpenWindow maps [off, off+n) of m, which is in the file, and registers it with the
// device and all of its backend. off is a multiple of 4 KiB. Pages that are not in the page cache
// are read. ErrNotSupported and other causes where that cannot be.
func OpenWindow(dev gpu.Device, m driver.Mapper, off, n int64) (*Window, error) {
	mem, unmap, err := m.MapRead(off, n)
	if err != nil {
		return nil, err
	}
	pin, err := dev.PinHost(mem, true)
	if err != nil {
		_ = unmap()
		return nil, err
	}
	return &Window{mem: mem, pin: pin, unmap: unmap}, nil
}

// Bytes is the processor's view. A page that the file has lost ends the process,
// unless the fault is caught (debug.SetPanicOnFault).
func (w *Window) Bytes() []byte { return w.mem }

// Endpoint is the window as the source of reads, at offsets in it.
func (w *Window) Endpoint() Endpoint {
	return &pinned{w.pin, driver.PathWindow, ReasonWindow}
}

// Close ends the window. No copy may be under way. It hangs while a stream of the
// GPU waits for a cell, and other threads' calls of the library with it. Closing
// twice is harmless.
func (w *Window) Close() error {
	w.once.Do(func() {
		if w.err = w.pin.Close(); w.err == nil { // else the GPU may still read
			w.err = w.unmap()
		}
	})
	return w.err
}

// windows reads a large range of cached file data through windows that live for the
// call, if the request is one that they suit. False where it has to go the plain way;
// nothing of it counts then.
func (j *job) windows(first *lane) bool {
	f, ok := j.e.(*file)
	if !ok || j.write || j.m.opt.WindowBytes == 0 || j.n < j.m.opt.WindowBytes {
		return false
	}
	s, ok := f.r.(driver.Stamper)
	if !ok {
		return j.noWindow(ReasonNoMapping)
	}
	if j.m.ordered.Load() > 0 {
		return j.noWindow(ReasonOrdered)
	}
	before, err := s.Stamp()
	if err != nil {
		return j.noWindow(ReasonNoMapping)
	}
	n := min(j.n, before.Size-j.off)
	if n < j.m.opt.WindowBytes {
		return false
	}
	if why := notCached(s, j.off, n); why != "" {
		return j.noWindow(why)
	}
	if why := j.runWindows(first, s, n); why != "" {
		return j.noWindow(why)
	}
	if after, err := s.Stamp(); err != nil || after != before {
		return j.noWindow(ReasonChanged)
	}
	j.m.paths.Add(driver.PathKey{Path: driver.PathWindow, Reason: ReasonWindow}, n)
	if n < j.n {
		j.fail(n, io.EOF)
	}
	return true
}

func (j *job) noWindow(why string) bool {
	j.path.Reason = why
	return false
}

// notCached tells why a range is not worth a window, or "".
func notCached(s driver.Mapper, off, n int64) string {
	from := off &^ (gpu.HostPage - 1)
	mem, unmap, err := s.MapRead(from, off+n-from)
	if err != nil {
		return ReasonNoMapping
	}
	defer unmap()
	in, err := unix.Resident(mem)
	if err != nil || int64(len(mem))-in > int64(len(mem))/missingShare {
		return ReasonNotCached
	}
	return ""
}

// runWindows moves n bytes, a window after the other in each lane, two lanes at a
// time. It gives the reason of the first window that failed, or "".
func (j *job) runWindows(first *lane, s driver.Mapper, n int64) string {
	lanes := min(int64(j.m.opt.Threads), windowLanes)
	size := min(j.m.opt.WindowChunk, base.AlignUp(n/lanes+1, base.MiB))
	skew := j.off & (gpu.HostPage - 1)
	var next atomic.Int64
	var failed atomic.Bool
	work := func(l *lane) {
		for !failed.Load() {
			from := next.Add(size) - size - skew
			off, end := max(from, 0), min(from+size, n)
			if off >= end {
				return
			}
			if j.ctx.Err() != nil || j.window(l, s, off, end-off) != nil { // the plain way sees the end of ctx too
				failed.Store(true)
			}
		}
	}
	var wg sync.WaitGroup
	for more := min(lanes, (n+skew+size-1)/size); more > 1; more-- {
		l, _ := j.m.try()
		if l == nil {
			break
		}
		wg.Go(func() {
			work(l)
			j.m.give(l)
		})
	}
	work(first)
	wg.Wait()
	if failed.Load() {
		return ReasonRefused
	}
	return ""
}

// window moves n bytes at byte off of the request by one copy.
func (j *job) window(l *lane, s driver.Mapper, off, n int64) error {
	at := (j.off + off) &^ (gpu.HostPage - 1)
	lead := j.off + off - at
	w, err := OpenWindow(j.m.dev, s, at, lead+n)
	if err != nil {
		return err
	}
	err = l.stream.Copy(gpu.Copy{Dev: j.ptr + gpu.Ptr(off), Host: w.pin.Bytes()[lead : lead+n]})
	if err != nil {
		return errors.Join(err, w.Close())
	}
	if err := l.settle(); err != nil {
		j.doubt.Store(true)
		return err // the copy may still run: the window stays
	}
	return w.Close()
}
