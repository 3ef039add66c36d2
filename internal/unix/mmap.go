// Package unix is the only door to the Linux system calls: the only importer of
// golang.org/x/sys/unix. It is one of the five places where unsafe is allowed.
package unix

import (
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
