package unix

import (
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// FD is an open file that is closed only by Close: no finalizer closes it
// while the kernel or a device still uses it. Every FD is close-on-exec. The
// methods may be used concurrently; Close must come after the last use.
type FD struct {
	n    atomic.Int64 // the descriptor plus one; 0 when closed
	path string
}

// NewFD takes over descriptor n. path is for messages.
func NewFD(n int, path string) *FD {
	f := &FD{path: path}
	f.n.Store(int64(n) + 1)
	return f
}

// Int is the descriptor, or -1 after Close.
func (f *FD) Int() int { return int(f.n.Load() - 1) }

// Path is the name that the file was opened with.
func (f *FD) Path() string { return f.path }

// String names the descriptor for messages.
func (f *FD) String() string { return f.path + " (fd " + strconv.Itoa(f.Int()) + ")" }

// Close closes the descriptor. Closing twice gives os.ErrClosed and does no
// harm. Linux frees the descriptor even when close reports an error.
func (f *FD) Close() error {
	n := f.n.Swap(0)
	if n == 0 {
		return os.ErrClosed
	}
	return unix.Close(int(n - 1))
}

// Flags of Open.
const (
	ReadOnly  = unix.O_RDONLY
	WriteOnly = unix.O_WRONLY
	ReadWrite = unix.O_RDWR
	Access    = unix.O_ACCMODE // the bits of the three above
	Append    = unix.O_APPEND
	Create    = unix.O_CREAT
	Direct    = unix.O_DIRECT
	Excl      = unix.O_EXCL
	NonBlock  = unix.O_NONBLOCK
	CreateNew = unix.O_CREAT | unix.O_EXCL
	Directory = unix.O_DIRECTORY
	NoFollow  = unix.O_NOFOLLOW
	Unnamed   = unix.O_TMPFILE // a file without a name in the directory that is named; see Link
)

// Open opens path with O_CLOEXEC and the given flags; mode matters only with
// Create and CreateNew. The error is an Errno. Callers open with NonBlock when path may be
// a FIFO, on which open would wait for a peer; the flag has no effect on I/O to
// files and block devices.
func Open(path string, flags int, mode uint32) (*FD, error) {
	n, err := retryInt(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, mode) })
	if err != nil {
		return nil, err
	}
	return NewFD(n, path), nil
}

// OpenUnnamed makes a file in directory dir that has no name yet, for reading and
// writing; it vanishes with its last descriptor unless Link names it. EOPNOTSUPP
// or EISDIR where the file system has no such files.
func OpenUnnamed(dir string, mode uint32) (*FD, error) {
	return Open(dir, Unnamed|ReadWrite, mode)
}

// Link gives the file behind f, which OpenUnnamed made, the name path. EEXIST if
// there is such a file, ENOENT without /proc.
func Link(f *FD, path string) error {
	from := "/proc/self/fd/" + strconv.Itoa(f.Int())
	return Retry(time.Time{}, func() error {
		return unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
	})
}

// DescriptorFlags gives the flags that descriptor n was opened with.
func DescriptorFlags(n int) (int, error) {
	return retryInt(func() (int, error) { return unix.FcntlInt(uintptr(n), unix.F_GETFL, 0) })
}

// Reopen opens the file behind descriptor n anew, so that the result has flags and
// an open file description of its own. It needs /proc and the right to open the
// file; a file without a name can be reopened too.
func Reopen(n, flags int) (*FD, error) {
	return Open("/proc/self/fd/"+strconv.Itoa(n), flags, 0)
}

// CloseOnExec keeps descriptor n, which something else has opened, out of processes
// that are started from now on (FD_CLOEXEC).
func CloseOnExec(n int) error {
	_, err := retryInt(func() (int, error) { return unix.FcntlInt(uintptr(n), unix.F_SETFD, unix.FD_CLOEXEC) })
	return err
}

// Dup gives another descriptor of the same open file description.
func Dup(n int) (*FD, error) {
	m, err := retryInt(func() (int, error) { return unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 0) })
	if err != nil {
		return nil, err
	}
	return NewFD(m, "descriptor "+strconv.Itoa(n)), nil
}
