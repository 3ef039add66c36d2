package unix

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// DSync makes one write durable before it ends (RWF_DSYNC).
const DSync = unix.RWF_DSYNC

// Iovec is the kernel's struct iovec for memory that the collector neither
// moves nor frees during the call: the caller keeps it alive.
type Iovec struct {
	Base uint64 // address, see Addr
	Len  uint64 // bytes
}

// Addr is the address of b's first byte. b must be off-heap, or be kept alive
// and referenced by the caller for as long as the address is used; memory on a
// goroutine's stack would move.
func Addr(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// Preadv reads at offset off into the pieces of iov; it may read less.
func Preadv(f *FD, iov []Iovec, off int64) (int, error) {
	return vectored(unix.SYS_PREADV2, f, iov, off, 0)
}

// Pwritev writes the pieces of iov at offset off; it may write less. flags is 0
// or DSync.
func Pwritev(f *FD, iov []Iovec, off int64, flags int) (int, error) {
	return vectored(unix.SYS_PWRITEV2, f, iov, off, flags)
}

func vectored(call uintptr, f *FD, iov []Iovec, off int64, flags int) (int, error) {
	n, _, errno := unix.Syscall6(call, uintptr(f.Int()),
		uintptr(unsafe.Pointer(unsafe.SliceData(iov))), uintptr(len(iov)),
		uintptr(off), uintptr(uint64(off)>>32), uintptr(flags))
	runtime.KeepAlive(iov)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// AddrOf is the address of a vector, which must be off-heap or kept alive.
func AddrOf(iov []Iovec) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(iov)))) }
