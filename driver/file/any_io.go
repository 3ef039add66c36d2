package file

import (
	"io"
	"sync/atomic"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// Bounds of one operation of a File.
const (
	// maxFileIO is what one system call is asked for at most, in bytes; the
	// kernel moves 2 GiB less a page.
	maxFileIO = base.GiB
	// maxFileRetries bounds calls in a row that moved nothing (EAGAIN).
	maxFileRetries = 64
)

// fileHook lets tests change what the kernel does: it gives how many bytes a call
// may move, or its error.
type fileHook func(op driver.Op, off, n int64, direct bool) (int64, error)

// ReadAt reads len(p) bytes at offset off: all of them; fewer and io.EOF at the end
// of the file; or fewer and the cause. Whatever others do to the file meanwhile,
// each byte is one that it had at that place during the call. Holes are zeros.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.transfer(driver.OpRead, p, off)
	return int(n), err
}

// WriteAt writes p at offset off; beyond the end it makes the file longer, and the
// gap reads as zeros. Fewer bytes come with the cause: ErrNoSpace when the disk or
// the block device is full.
func (f *File) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.transfer(driver.OpWrite, p, off)
	return int(n), err
}

// transfer moves p in order, so that what an error comes with is contiguous.
func (f *File) transfer(op driver.Op, p []byte, off int64) (done int64, err error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if err := f.checkIO(op, p, off); err != nil {
		return 0, err
	}
	odd := false
	for idle := 0; done < int64(len(p)); {
		rest := p[done:]
		n, direct := f.piece(rest, off+done)
		odd = odd || f.direct != nil && !direct
		moved, err := f.call(op, rest[:n], off+done, direct)
		if err == unix.EINVAL && direct { // an alignment that the kernel did not tell
			odd = true
			moved, err = f.call(op, rest[:n], off+done, false)
		}
		done += moved
		switch {
		case moved > 0:
			idle = 0
		case err == unix.EAGAIN && idle < maxFileRetries:
			idle++
		case err == nil && op == driver.OpRead:
			f.note(op, odd)
			return done, io.EOF
		default:
			f.count.errors.Add(1)
			return done, f.ioError(op, off+done, int64(len(rest)), err)
		}
	}
	f.note(op, odd)
	return done, nil
}

func (f *File) checkIO(op driver.Op, p []byte, off int64) error {
	name := op.String()
	if err := f.closed(name); err != nil {
		return err
	}
	switch {
	case off < 0 || off+int64(len(p)) < off:
		return base.Errorf(name, f.path, base.ErrInvalid, "%d bytes at offset %d", len(p), off)
	case op == driver.OpRead && f.access == ForWriting:
		return base.Errorf(name, f.path, base.ErrInvalid, "it was opened for writing only")
	case op == driver.OpWrite && f.access == ForReading:
		return base.Errorf(name, f.path, base.ErrReadOnly, "it was opened for reading only")
	}
	return nil
}

// piece is how much of p goes by the next call, and how. Odd ends go through the
// page cache up to the next block.
func (f *File) piece(p []byte, off int64) (n int64, direct bool) {
	n = min(int64(len(p)), maxFileIO)
	if f.direct == nil {
		return n, false
	}
	if lead := off % f.align; lead != 0 {
		return min(n, f.align-lead), false
	}
	whole := n &^ (f.align - 1)
	if whole == 0 || unix.Addr(p)%uint64(f.mem) != 0 {
		return n, false
	}
	return whole, true
}

func (f *File) call(op driver.Op, p []byte, off int64, direct bool) (int64, error) {
	if f.hook != nil {
		n, err := f.hook(op, off, int64(len(p)), direct)
		if err != nil {
			return 0, err
		}
		p = p[:n]
	}
	fd := f.plain
	if direct {
		fd = f.direct
	}
	do := unix.Pread
	if op == driver.OpWrite {
		do = unix.Pwrite
	}
	n, err := do(fd, p, off)
	if err != nil {
		return 0, err
	}
	f.counter(op, direct).Add(int64(n))
	return int64(n), nil
}

func (f *File) counter(op driver.Op, direct bool) *atomic.Int64 {
	c := &f.count
	switch {
	case op == driver.OpRead && direct:
		return &c.readDirect
	case op == driver.OpRead:
		return &c.readPlain
	case direct:
		return &c.wroteDirect
	}
	return &c.wrotePlain
}

// note counts an operation that ended well.
func (f *File) note(op driver.Op, odd bool) {
	if odd {
		f.count.unaligned.Add(1)
	}
	if op == driver.OpRead {
		f.count.reads.Add(1)
	} else {
		f.count.writes.Add(1)
	}
}

func (f *File) ioError(op driver.Op, off, n int64, err error) error {
	e := unix.ErrnoOf(err)
	switch {
	case err == nil:
		return base.Errorf(op.String(), f.path, base.ErrNoSpace, "offset %d, length %d: the kernel wrote nothing", off, n)
	case e == unix.ENOSPC || e == unix.EDQUOT:
		return base.WithHint(base.Errorf(op.String(), f.path, base.ErrNoSpace, "offset %d, length %d: %w", off, n, e),
			"free space on its file system")
	case e == unix.EFBIG:
		return base.Errorf(op.String(), f.path, base.ErrOutOfRange, "offset %d, length %d: %w", off, n, e)
	case e == 0:
		return base.Wrap(op.String(), f.path, err)
	case e == unix.ENXIO || e == unix.ENODEV:
		return base.Errorf(op.String(), f.path, base.ErrDeviceGone, "%w", e)
	}
	return base.Wrap(op.String(), f.path, &ioError{off, n, e})
}
