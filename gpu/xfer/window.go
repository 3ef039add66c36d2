package xfer

import (
	"context"
	"io"
	"sync"

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
	// A request has a few windows, so that one is registered while another is copied,
	// but none of less than fineWindow bytes: registering has a price of its own.
	windowParts = 4
	fineWindow  = 8 * base.MiB
	// heldWindows is how many windows a request holds at most. The end of a window waits
	// for the copies from all of them, so that windows end together.
	heldWindows = 32
	// missingShare is which share of a range may be missing in the page cache. That is
	// judged by one page of fineSamples, or about missingSamples of them in all: to look
	// at all of them takes as long as to copy them.
	missingShare   = 8
	fineSamples    = 128
	missingSamples = 256
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
	if j.m.EndWindows(j.ctx) != nil {
		return false // the plain way sees the end of ctx too
	}
	open, why := j.runWindows(first, s, n)
	if after, err := s.Stamp(); why == "" && (err != nil || after != before) {
		why = ReasonChanged
	}
	j.m.endLate(open, n)
	if why != "" {
		return j.noWindow(why)
	}
	j.m.paths.Add(windowPath(), n)
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
	pages := int64(len(mem)) / gpu.HostPage
	step := max(min(fineSamples, pages/16), pages/missingSamples, 1)
	var looked, missing int64
	for from := int64(0); from < pages; from += step {
		at := min(from+from*7919%step, pages-1) * gpu.HostPage // no pattern in which somebody reads
		in, err := unix.Resident(mem[at : at+1])
		if err != nil {
			return ReasonNotCached
		}
		if looked++; in == 0 {
			missing++
		}
	}
	if missing > looked/missingShare {
		return ReasonNotCached
	}
	return ""
}

// runWindows moves n bytes, a window after the other: one is registered while the one
// before it is copied. The library registers one at a time, so that more lanes would
// gain nothing. It gives the windows that are still open, of which no copy is under way,
// and the reason of the first one that failed, or "".
func (j *job) runWindows(l *lane, s driver.Mapper, n int64) (open []*Window, why string) {
	size := min(j.m.opt.WindowChunk, max(fineWindow, base.AlignUp(n/windowParts, base.MiB)))
	skew := j.off & (gpu.HostPage - 1)
	var err error
	for at := -skew; at < n && err == nil; at += size {
		if len(open) == heldWindows {
			if err = l.settle(); err != nil {
				break
			}
			j.m.end(open)
			open = open[:0]
		}
		if err = j.ctx.Err(); err == nil { // the plain way sees the end of ctx too
			from := max(at, 0)
			var w *Window
			if w, err = j.window(l, s, from, min(at+size, n)-from); w != nil {
				open = append(open, w)
			}
		}
	}
	if l.settle() != nil {
		j.doubt.Store(true)
		return nil, ReasonRefused // copies may still run: the windows stay
	}
	if err != nil {
		why = ReasonRefused
	}
	return open, why
}

// window opens the window of n bytes at byte off of the request, and queues the copy.
func (j *job) window(l *lane, s driver.Mapper, off, n int64) (*Window, error) {
	at := (j.off + off) &^ (gpu.HostPage - 1)
	lead := j.off + off - at
	w, err := OpenWindow(j.m.dev, s, at, lead+n)
	if err != nil {
		return nil, err
	}
	return w, l.stream.Copy(gpu.Copy{Dev: j.ptr + gpu.Ptr(off), Host: w.pin.Bytes()[lead : lead+n]})
}

func windowPath() driver.PathKey {
	return driver.PathKey{Path: driver.PathWindow, Reason: ReasonWindow}
}

// end ends windows of which no copy is under way. The bytes have moved: what cannot be
// ended is counted, and stays.
func (m *Mover) end(open []*Window) {
	for _, w := range open {
		m.failed(windowPath(), w.Close())
	}
}

// lateBytes is up to which size the windows of a request end when it has been answered,
// which saves it a quarter of the time. Those of one request do at a time: it bounds what
// is pinned for nobody, and more would stand in the way of the next request.
const lateBytes = 64 * base.MiB

// endLate ends the windows of a request of n bytes, which may be answered then.
func (m *Mover) endLate(open []*Window, n int64) {
	if n <= lateBytes && len(open) > 0 {
		select {
		case m.late <- struct{}{}:
			m.jobs.Add(1)
			go func() {
				defer m.jobs.Done()
				defer func() { <-m.late }()
				m.end(open)
			}()
			return
		default:
		}
	}
	m.end(open)
}

// EndWindows waits until the windows of calls that have returned their answer have ended:
// some do so a moment later. It does not wait for calls that their context has ended. To be called before streams wait for cells, where the mover has
// windows and no Order. ErrTimeout when ctx ends first.
func (m *Mover) EndWindows(ctx context.Context) error {
	select {
	case m.late <- struct{}{}:
		<-m.late
		return nil
	case <-ctx.Done():
		return base.Errorf("end", "windows", base.ErrTimeout, "%w", ctx.Err())
	}
}
