// Package unix is the only door to the Linux system calls: the only importer of
// golang.org/x/sys/unix. It is one of the five places where unsafe is allowed.
package unix

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// MmapAnon maps n bytes of private anonymous memory, page-aligned and zeroed.
func MmapAnon(n int64) ([]byte, error) {
	return unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
}

// Munmap undoes MmapAnon.
func Munmap(b []byte) error { return unix.Munmap(b) }

// DontFork keeps the pages of b out of forked children, so that copy-on-write
// never moves a page away from under a device.
func DontFork(b []byte) error { return unix.Madvise(b, unix.MADV_DONTFORK) }

// HugePages asks for transparent huge pages; a hint.
func HugePages(b []byte) { _ = unix.Madvise(b, unix.MADV_HUGEPAGE) }

// DontNeed gives the pages of b back; they read as zeros from then on. b begins
// and ends on page borders.
func DontNeed(b []byte) { _ = unix.Madvise(b, unix.MADV_DONTNEED) }

// MmapRead maps [off, off+n) of f for reading, shared with every other user of the
// file; off is a multiple of the page size. Touching a page that the file does not
// have any more ends the process, unless the fault is caught.
func MmapRead(f *FD, off, n int64) ([]byte, error) {
	return unix.Mmap(f.Int(), off, int(n), unix.PROT_READ, unix.MAP_SHARED)
}

// Resident tells how many bytes of b, a mapping of a file that begins on a page, are
// in the page cache, in whole pages. For files that the caller may not write the
// kernel says that all of them are.
func Resident(b []byte) (int64, error) {
	if len(b) == 0 {
		return 0, nil
	}
	page := unix.Getpagesize()
	vec := make([]byte, (len(b)+page-1)/page)
	_, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), uintptr(unsafe.Pointer(unsafe.SliceData(vec))))
	if e != 0 {
		return 0, e
	}
	var n int64
	for _, v := range vec {
		n += int64(v & 1)
	}
	return n * int64(page), nil
}
