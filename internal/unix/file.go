package unix

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Kind is what a path names.
type Kind uint8

// The kinds of files that the drivers tell apart.
const (
	KindOther Kind = iota
	KindRegular
	KindBlock
	KindChar
	KindDir
	KindFIFO
	KindSocket
)

// String names the kind for messages.
func (k Kind) String() string {
	return [...]string{"special file", "regular file", "block device", "character device",
		"directory", "FIFO", "socket"}[k]
}

// Dev is a device number.
type Dev struct{ Major, Minor uint32 }

// Stat is what statx says about a file.
type Stat struct {
	Kind   Kind
	Mode   uint32 // permission bits
	UID    uint32
	Size   int64 // bytes
	Blocks int64 // 512-byte units that are allocated
	Ino    uint64
	Dev    Dev   // of the file system
	Rdev   Dev   // of a device node
	Change int64 // time of the last change of data or attributes, nanoseconds since 1970

	// Alignment that O_DIRECT needs, bytes; both are 0 when the kernel does not
	// say (before 6.1) or the file system does not support it.
	DIOMem, DIOOffset uint32
	// DIOKnown tells that the kernel answered, so that 0 means "no O_DIRECT".
	DIOKnown bool
}

// FStat describes an open file.
func FStat(f *FD) (Stat, error) { return statx(f.Int(), "", unix.AT_EMPTY_PATH) }

// StatPath describes path and follows symbolic links.
func StatPath(path string) (Stat, error) { return statx(unix.AT_FDCWD, path, 0) }

func statx(dir int, path string, flags int) (Stat, error) {
	var x unix.Statx_t
	err := Retry(time.Time{}, func() error {
		return unix.Statx(dir, path, flags, unix.STATX_BASIC_STATS|unix.STATX_DIOALIGN, &x)
	})
	if err != nil {
		return Stat{}, err
	}
	return Stat{
		Kind: kindOf(x.Mode), Mode: uint32(x.Mode) & 0o7777, UID: x.Uid,
		Size: int64(x.Size), Blocks: int64(x.Blocks), Ino: x.Ino,
		Dev: Dev{x.Dev_major, x.Dev_minor}, Rdev: Dev{x.Rdev_major, x.Rdev_minor},
		Change: x.Ctime.Sec*1e9 + int64(x.Ctime.Nsec),
		DIOMem: x.Dio_mem_align, DIOOffset: x.Dio_offset_align,
		DIOKnown: x.Mask&unix.STATX_DIOALIGN != 0,
	}, nil
}

func kindOf(mode uint16) Kind {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return KindRegular
	case unix.S_IFBLK:
		return KindBlock
	case unix.S_IFCHR:
		return KindChar
	case unix.S_IFDIR:
		return KindDir
	case unix.S_IFIFO:
		return KindFIFO
	case unix.S_IFSOCK:
		return KindSocket
	}
	return KindOther
}

// How Flock locks.
const (
	LockShared    = unix.LOCK_SH
	LockExclusive = unix.LOCK_EX
)

// TryFlock takes the flock of the open file description behind f without
// waiting; EAGAIN when somebody else has it.
func TryFlock(f *FD, how int) error {
	return Retry(time.Time{}, func() error { return unix.Flock(f.Int(), how|unix.LOCK_NB) })
}

// Unflock releases the lock of the open file description behind f, for every
// process that shares it.
func Unflock(f *FD) error { return unix.Flock(f.Int(), unix.LOCK_UN) }

// Fallocate modes, used alone.
const (
	Reserve   = 0
	PunchHole = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	ZeroRange = unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE
)

// Fallocate changes the allocation of [off, off+n) as mode says.
func Fallocate(f *FD, mode uint32, off, n int64) error {
	return Retry(time.Time{}, func() error { return unix.Fallocate(f.Int(), mode, off, n) })
}

// Truncate sets the size of the file in bytes.
func Truncate(f *FD, size int64) error {
	return Retry(time.Time{}, func() error { return unix.Ftruncate(f.Int(), size) })
}

// MayWrite tells whether this process may write to path: nil, EACCES, EROFS, or
// what else looking at it gives. It opens nothing.
func MayWrite(path string) error {
	return Retry(time.Time{}, func() error {
		return unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS)
	})
}

// Fdatasync makes the data of the file durable. It is never retried after a
// failure: the kernel reports a lost write once.
func Fdatasync(f *FD) error {
	return Retry(time.Time{}, func() error { return unix.Fdatasync(f.Int()) })
}

// Fsync makes data and attributes of a file or directory durable.
func Fsync(f *FD) error {
	return Retry(time.Time{}, func() error { return unix.Fsync(f.Int()) })
}

// Pread reads into b at offset off; it may read less than asked.
func Pread(f *FD, b []byte, off int64) (int, error) {
	return retryInt(func() (int, error) { return unix.Pread(f.Int(), b, off) })
}

// ReadRegular reads the whole regular file path, of at most limit bytes (EFBIG). Other
// kinds are refused: an open of a FIFO would wait for its other end, a device may have
// no end. Other errors are Errnos.
func ReadRegular(path string, limit int64) ([]byte, error) {
	f, err := Open(path, ReadOnly|NonBlock, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	st, err := FStat(f)
	if err != nil {
		return nil, err
	}
	if st.Kind != KindRegular {
		return nil, fmt.Errorf("it is a %s, not a regular file", st.Kind)
	}
	b := make([]byte, min(max(st.Size, 0), limit)+1) // one more, to see its end
	for n := 0; ; {
		m, err := Pread(f, b[n:], int64(n))
		if err != nil {
			return nil, err
		}
		n += m
		switch {
		case m == 0:
			return b[:n], nil
		case int64(n) > limit:
			return nil, unix.EFBIG
		case n == len(b): // it grew
			b = append(b, make([]byte, limit+1-int64(n))...)
		}
	}
}

// Pwrite writes b at offset off; it may write less than asked.
func Pwrite(f *FD, b []byte, off int64) (int, error) {
	return retryInt(func() (int, error) { return unix.Pwrite(f.Int(), b, off) })
}

// SyncFS makes everything durable that was written to the file system of f.
func SyncFS(f *FD) error {
	return Retry(time.Time{}, func() error { return unix.Syncfs(f.Int()) })
}

// Written tells how many of the first n bytes of a file were written to, as its
// file system knows it: reads of holes, and of space that was only reserved, do
// not reach the disk. The error is the
// system's.
func Written(f *FD, n int64) (int64, error) {
	var sum int64
	for at := int64(0); at < n; {
		from, err := unix.Seek(f.Int(), at, unix.SEEK_DATA)
		if err == unix.ENXIO || err == nil && from >= n {
			break // only a hole is left
		}
		if err != nil {
			return 0, err
		}
		to, err := unix.Seek(f.Int(), from, unix.SEEK_HOLE)
		if err != nil {
			return 0, err
		}
		sum += min(to, n) - from
		at = to
	}
	return sum, nil
}
