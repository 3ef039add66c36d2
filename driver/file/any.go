package file

import (
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// Access says what a File is opened for.
type Access uint8

const (
	// ForReading allows reads only.
	ForReading Access = iota
	// ForWriting allows writes only.
	ForWriting
	// ForBoth allows both.
	ForBoth
)

// FileOptions say how a File is opened. The zero value reads, and uses O_DIRECT
// where it can.
type FileOptions struct {
	Access Access
	// Create makes the file if there is none, with mode 0644 less the umask.
	Create bool
	// Truncate empties the file.
	Truncate bool
	// Buffered goes through the page cache alone.
	Buffered bool
	// NeedDirect refuses a file that O_DIRECT cannot be used on: ErrNotSupported.
	NeedDirect bool
}

// File is any regular file or block device, as it is: nobody owns it, it has no
// lock, other programs may read, write, cut and extend it at the same time, and
// it may be open several times.
//
// It has two descriptors. Whole blocks of the file go by O_DIRECT where the file
// system allows that and the memory is aligned; the ends of an odd range, and
// everything else, go through the page cache, which the kernel keeps coherent
// with direct I/O. Safe for concurrent use.
type File struct {
	path    string
	kind    unix.Kind
	access  Access
	align   int64 // of offsets and lengths that go direct; 0 if none do
	mem     int64 // of memory that goes direct
	reasons []string
	hook    fileHook // for tests

	mu     sync.RWMutex // held for reading by every operation, for writing by Close
	plain  *unix.FD     // through the page cache
	direct *unix.FD     // O_DIRECT; nil if none
	count  fileCounters
}

type fileCounters struct {
	reads, writes, errors, unaligned               atomic.Int64
	readDirect, readPlain, wroteDirect, wrotePlain atomic.Int64
}

// FileStats are counters since the file was opened. Bytes are counted once, when
// the system call that moved them returned (I10).
type FileStats struct {
	Reads, Writes           int64 // operations that moved what was asked for, or reached the end
	Errors                  int64 // operations that failed
	Unaligned               int64 // operations with a part that could not go by O_DIRECT for its offset, size or memory
	ReadDirect, ReadPlain   int64 // bytes by O_DIRECT, and through the page cache
	WroteDirect, WrotePlain int64
}

// OpenFile opens path. ErrInvalid for anything but a regular file or a block
// device: a pipe has no offsets. ErrNotFound, ErrReadOnly when it may not be
// written, ErrNotSupported when O_DIRECT is needed and refused.
func OpenFile(path string, o FileOptions) (*File, error) {
	if o.Buffered && o.NeedDirect || o.Truncate && o.Access == ForReading {
		return nil, base.Errorf("open", path, base.ErrInvalid, "options that contradict each other: %+v", o)
	}
	flags := o.Access.flags() | unix.NonBlock // a FIFO would wait for its other end
	if o.Create {
		flags |= unix.Create
	}
	fd, err := unix.Open(path, flags, 0o644)
	if err != nil {
		return nil, openFileError(path, o.Access, err)
	}
	f, err := makeFile(path, fd, o)
	if err != nil {
		return nil, err
	}
	if o.Truncate && f.kind == unix.KindRegular { // only now is it known not to be a device
		if err := unix.Truncate(fd, 0); err != nil {
			_ = f.Close()
			return nil, openFileError(path, o.Access, err)
		}
	}
	return f, nil
}

// FromFD makes a File of a descriptor of the caller, who keeps it: the result has
// descriptors of its own. What the descriptor was opened for decides the access;
// Create and Truncate are ignored. ErrInvalid for descriptors that append, since
// their writes ignore the offset, and for what is no file.
func FromFD(fd int, o FileOptions) (*File, error) {
	flags, err := unix.DescriptorFlags(fd)
	if err != nil {
		return nil, base.Errorf("use", "descriptor", base.ErrInvalid, "%d: %w", fd, err)
	}
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		path = "descriptor " + strconv.Itoa(fd)
	}
	own, err := unix.Dup(fd)
	if err != nil {
		return nil, base.Wrap("use", path, err)
	}
	if flags&unix.Append != 0 {
		_ = own.Close()
		return nil, base.WithHint(base.Errorf("use", path, base.ErrInvalid, "it was opened with O_APPEND"), "open it without")
	}
	switch flags & unix.Access {
	case unix.ReadOnly:
		o.Access = ForReading
	case unix.WriteOnly:
		o.Access = ForWriting
	default:
		o.Access = ForBoth
	}
	if flags&unix.Direct != 0 { // a duplicate shares that: one without needs a description of its own
		_ = own.Close()
		if own, err = unix.Reopen(fd, o.Access.flags()|unix.NonBlock); err != nil {
			return nil, base.WithHint(base.Errorf("use", path, base.ErrNotSupported,
				"it has O_DIRECT and cannot be opened again without: %w", err),
				"give a descriptor without O_DIRECT, or the right to open the file")
		}
	}
	return makeFile(path, own, o)
}

func (a Access) flags() int { return [...]int{unix.ReadOnly, unix.WriteOnly, unix.ReadWrite}[a] }

// makeFile takes over plain, also when it fails.
func makeFile(path string, plain *unix.FD, o FileOptions) (*File, error) {
	f := &File{path: path, access: o.Access, plain: plain}
	st, err := unix.FStat(plain)
	if err == nil {
		f.kind, err = st.Kind, refuseKind(path, st.Kind)
	}
	if err == nil {
		err = f.openDirect(&st, o)
	}
	if err != nil {
		_ = plain.Close()
		return nil, err
	}
	return f, nil
}

// openDirect opens the second descriptor, or says why there is none.
func (f *File) openDirect(st *unix.Stat, o FileOptions) error {
	why := f.noDirect(st, o)
	if why == "" {
		fd, err := unix.Reopen(f.plain.Int(), o.Access.flags()|unix.NonBlock|unix.Direct)
		if err == nil {
			f.direct = fd
			f.reasons = append(f.reasons, "whole blocks by O_DIRECT, the ends of odd ranges through the page cache")
			return nil
		}
		why = "O_DIRECT is refused: " + err.Error()
	}
	f.align = 0
	f.reasons = append(f.reasons, "through the page cache: "+why)
	if o.NeedDirect {
		return base.Errorf("open", f.path, base.ErrNotSupported, "%s", why)
	}
	return nil
}

// noDirect says what speaks against O_DIRECT, or sets the alignments.
func (f *File) noDirect(st *unix.Stat, o FileOptions) string {
	f.align, f.mem = base.StoreBlock, base.StoreBlock
	switch {
	case o.Buffered:
		return "asked for"
	case st.DIOKnown && st.DIOOffset == 0:
		return "the file system has no O_DIRECT for this file"
	case st.DIOKnown:
		f.align, f.mem = int64(st.DIOOffset), max(int64(st.DIOMem), smallestBlock)
	}
	return ""
}

// Path is the name that the file was opened by.
func (f *File) Path() string { return f.path }

// Reasons tell how the file is used, one sentence each.
func (f *File) Reasons() []string { return f.reasons }

// Direct tells whether whole blocks go by O_DIRECT.
func (f *File) Direct() bool { return f.direct != nil }

// Align is the unit, in bytes, in which file offset and memory address should
// have the same remainder for O_DIRECT; 1 if there is none.
func (f *File) Align() int64 { return max(f.align, f.mem, 1) }

// Size is the present size in bytes.
func (f *File) Size() (int64, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if err := f.closed("measure"); err != nil {
		return 0, err
	}
	if f.kind == unix.KindBlock {
		n, err := unix.BlockSize64(f.plain)
		return n, base.Wrap("measure", f.path, err)
	}
	st, err := unix.FStat(f.plain)
	return st.Size, base.Wrap("measure", f.path, err)
}

// Sync makes what was written durable, the size included.
func (f *File) Sync() error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if err := f.closed("sync"); err != nil {
		return err
	}
	return base.Wrap("sync", f.path, unix.Fdatasync(f.plain))
}

// Stats gives the counters.
func (f *File) Stats() FileStats {
	c := &f.count
	return FileStats{Reads: c.reads.Load(), Writes: c.writes.Load(), Errors: c.errors.Load(), Unaligned: c.unaligned.Load(),
		ReadDirect: c.readDirect.Load(), ReadPlain: c.readPlain.Load(),
		WroteDirect: c.wroteDirect.Load(), WrotePlain: c.wrotePlain.Load()}
}

// closed is ErrClosed after Close. The caller holds mu.
func (f *File) closed(op string) error {
	if f.plain.Int() < 0 {
		return base.Wrap(op, f.path, base.ErrClosed)
	}
	return nil
}

// Close waits for the operations under way and closes the file; what was written
// is not made durable by it. A second Close gives ErrClosed.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.closed("close"); err != nil {
		return err
	}
	var err error
	if f.direct != nil {
		err = f.direct.Close()
	}
	if e := f.plain.Close(); err == nil {
		err = e
	}
	return base.Wrap("close", f.path, err)
}

// openFileError gives err its class.
func openFileError(path string, a Access, err error) error {
	switch err {
	case unix.ENOENT:
		return base.Errorf("open", path, base.ErrNotFound, "%w", err)
	case unix.EROFS, unix.ETXTBSY:
		return base.Errorf("open", path, base.ErrReadOnly, "it cannot be written: %w", err)
	case unix.EISDIR:
		return refuseKind(path, unix.KindDir)
	case unix.ENXIO: // a FIFO without a reader, a socket, a device without hardware
		if st, serr := unix.StatPath(path); serr == nil && refuseKind(path, st.Kind) != nil {
			return refuseKind(path, st.Kind)
		}
		return base.Errorf("open", path, base.ErrDeviceGone, "%w", err)
	case unix.EACCES, unix.EPERM:
		if a != ForReading {
			return base.WithHint(base.Errorf("open", path, base.ErrReadOnly, "%w", err), "check the permissions of the file")
		}
	}
	return base.Wrap("open", path, err)
}
