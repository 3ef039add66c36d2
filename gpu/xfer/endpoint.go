package xfer

import (
	"context"
	"errors"
	"io"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
)

// Endpoint is the other side of a transfer: a file, a range of a device, or
// pinned host memory. Make one with Reader, Writer, File, Extent or Pinned.
type Endpoint interface {
	// place tells how much room [off, off+n) needs in a bounce buffer, and
	// where in it the first byte lies.
	place(off, n int64, write bool) (lead, room int64, err error)
	// begin starts moving [off, off+n), placed at byte at of the lane's memory.
	begin(ctx context.Context, l *lane, at, off, n int64, write bool, w *work) error
	// end waits for it and gives the bytes moved, and those that commands
	// carried. Fewer than n without an error means the end of the data.
	end(w *work) (moved, carried int64, err error)
	// async tells that begin returns before the bytes moved.
	async() bool
	// unit is the alignment in memory, in bytes, of what place asks room for; at
	// most a page.
	unit() int64
	// reason tells why the bytes are staged.
	reason() string
}

// work is a transfer between an endpoint and a bounce buffer.
type work struct {
	batch driver.Batch
	segs  [1]driver.Seg
	buf   []byte
	off   int64
	n     int64
	write bool
	begun bool
}

// file is anything with positioned reads or writes.
type file struct {
	r     io.ReaderAt
	w     io.WriterAt
	align int64 // offset and memory should have the same remainder by it; 1 if that is no matter
}

// Aligner is a source or sink that moves bytes better where the offset and the
// address in memory have the same remainder by Align, a power of two of at most a
// page: a file with O_DIRECT.
type Aligner interface{ Align() int64 }

func newFile(f any, r io.ReaderAt, w io.WriterAt) *file {
	align := int64(1)
	if a, ok := f.(Aligner); ok {
		align = min(max(a.Align(), 1), gpu.HostPage)
	}
	return &file{r, w, align}
}

// Reader is a source that is read at offsets: an *os.File, for example. It must
// be safe for concurrent use.
func Reader(r io.ReaderAt) Endpoint { return newFile(r, r, nil) }

// Writer is a sink that is written at offsets, under the same rule.
func Writer(w io.WriterAt) Endpoint { return newFile(w, nil, w) }

// File is both.
func File(f interface {
	io.ReaderAt
	io.WriterAt
}) Endpoint {
	return newFile(f, f, f)
}

func (f *file) place(off, n int64, write bool) (int64, int64, error) {
	if write && f.w == nil || !write && f.r == nil {
		return 0, 0, base.Errorf("move", "file", base.ErrInvalid, "it was not given for this direction")
	}
	lead := off & (f.align - 1)
	return lead, lead + n, nil
}

func (f *file) begin(_ context.Context, l *lane, at, off, n int64, write bool, w *work) error {
	at += off & (f.align - 1)
	w.buf, w.off, w.n, w.write = l.bytes(at, n), off, n, write
	return nil
}

func (f *file) end(w *work) (moved, carried int64, err error) {
	var n int
	if w.write {
		n, err = f.w.WriteAt(w.buf, w.off)
	} else if n, err = f.r.ReadAt(w.buf, w.off); errors.Is(err, io.EOF) {
		err = nil
	}
	return int64(n), int64(n), err
}

func (f *file) async() bool    { return false }
func (f *file) unit() int64    { return f.align }
func (f *file) reason() string { return ReasonFile }

// extent is a range of a device.
type extent struct {
	dev  driver.Device
	off  int64
	size int64
	in   driver.Info
	why  string // why the bytes are staged, if that is known
}

// Bounce is Extent for bytes that are staged for a known reason, one of few.
func Bounce(d driver.Device, off, size int64, why string) (Endpoint, error) {
	e, err := Extent(d, off, size)
	if err == nil {
		e.(*extent).why = why
	}
	return e, err
}

// Extent is the range [off, off+size) of a device, which must be a multiple of
// the block size. Reads may begin and end inside a block; writes must not:
// ErrMisaligned.
func Extent(d driver.Device, off, size int64) (Endpoint, error) {
	in := d.Info()
	if off%in.BlockSize != 0 || size%in.BlockSize != 0 {
		return nil, base.Errorf("use", in.Target, base.ErrMisaligned,
			"offset %d and size %d must be multiples of %d", off, size, in.BlockSize)
	}
	if !base.CheckRange(off, size, in.Capacity) || 2*in.BlockSize > slack || in.MemAlign > gpu.HostPage {
		return nil, base.Errorf("use", in.Target, base.ErrOutOfRange,
			"offset %d, size %d, capacity %d, blocks of %d", off, size, in.Capacity, in.BlockSize)
	}
	return &extent{dev: d, off: off, size: size, in: in}, nil
}

func (e *extent) place(off, n int64, write bool) (lead, room int64, err error) {
	lead = off % e.in.BlockSize
	room = base.AlignUp(lead+n, e.in.BlockSize)
	if write && (lead != 0 || room != n) {
		return 0, 0, base.Errorf("write", e.in.Target, base.ErrMisaligned,
			"offset %d and length %d must be multiples of %d", off, n, e.in.BlockSize)
	}
	return lead, room, nil
}

func (e *extent) begin(ctx context.Context, l *lane, at, off, n int64, write bool, w *work) error {
	lead, room, err := e.place(off, n, write)
	if err != nil {
		return err
	}
	op := driver.OpRead
	if write {
		if !base.CheckRange(off, n, e.size) {
			return base.Errorf("write", e.in.Target, base.ErrOutOfRange, "%d bytes at %d of %d", n, off, e.size)
		}
		op = driver.OpWrite
	}
	if off >= e.size {
		w.n = 0 // the end of the data
		return nil
	}
	room = min(room, e.size-(off-lead))
	w.n = min(n, room-lead)
	w.segs[0] = l.region.Seg(at, room)
	w.batch.Reqs = append(w.batch.Reqs[:0], driver.Request{Op: op, Off: e.off + off - lead, Len: room, Segs: w.segs[:]})
	if err := e.dev.Submit(ctx, &w.batch); err != nil {
		return err
	}
	w.begun = true
	return nil
}

func (e *extent) end(w *work) (moved, carried int64, err error) {
	if !w.begun {
		return 0, 0, nil
	}
	w.begun = false
	// The device's own deadline ends the wait; the memory is its until then.
	if err := w.batch.Wait(context.Background()); err != nil {
		return 0, 0, err
	}
	r := &w.batch.Reqs[0]
	if r.Err != nil {
		return 0, r.Done, r.Err
	}
	return w.n, r.Done, nil
}

func (e *extent) async() bool { return true }
func (e *extent) unit() int64 { return gpu.HostPage }

func (e *extent) reason() string {
	if e.why != "" {
		return e.why
	}
	return ReasonNoTransport
}

// pinned is host memory that the copy engine reaches by itself.
type pinned struct {
	mem  gpu.HostMemory
	path driver.Path
	why  string
}

// Pinned is host memory of the backend. It moves without a copy by the
// processor, and must not be closed or changed meanwhile.
func Pinned(mem gpu.HostMemory) Endpoint {
	return &pinned{mem, driver.PathWindow, ReasonPinned}
}

// Staging is pinned host memory that stands between a device and the GPU, under
// the rules of Pinned. What moves is counted as staged for the reason why, which
// is one of few: each is a line of the statistics.
func Staging(mem gpu.HostMemory, why string) Endpoint {
	return &pinned{mem, driver.PathStaged, why}
}

// Tail is Staging for the partial last block of a value that otherwise goes directly:
// it is allowed where staging is not.
func Tail(mem gpu.HostMemory, why string) Endpoint {
	return &pinned{mem, driver.PathTail, why}
}

func (p *pinned) place(off, n int64, _ bool) (int64, int64, error) {
	if !base.CheckRange(off, n, int64(len(p.mem.Bytes()))) {
		return 0, 0, base.Errorf("move", "pinned memory", base.ErrOutOfRange,
			"%d bytes at %d of %d", n, off, len(p.mem.Bytes()))
	}
	return 0, 0, nil
}

func (p *pinned) begin(context.Context, *lane, int64, int64, int64, bool, *work) error { return nil }
func (p *pinned) end(*work) (int64, int64, error)                                      { return 0, 0, nil }
func (p *pinned) async() bool                                                          { return false }
func (p *pinned) unit() int64                                                          { return 1 }
func (p *pinned) reason() string                                                       { return p.why }
