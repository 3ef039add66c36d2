package unix

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// UringSetup is io_uring_setup. params is the kernel's struct of 120 bytes.
func UringSetup(entries uint32, params unsafe.Pointer) (*FD, error) {
	n, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(params), 0)
	if errno != 0 {
		return nil, errno
	}
	return NewFD(int(n), "io_uring"), nil // the kernel makes it close-on-exec
}

// UringEnter is io_uring_enter. arg and size depend on flags. It may block, and
// may be interrupted (EINTR).
func UringEnter(f *FD, submit, wait, flags uint32, arg unsafe.Pointer, size uintptr) (int, error) {
	n, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(f.Int()), uintptr(submit),
		uintptr(wait), uintptr(flags), uintptr(arg), size)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// UringRegister is io_uring_register.
func UringRegister(f *FD, op uint32, arg unsafe.Pointer, n uint32) (int, error) {
	for {
		r, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(f.Int()), uintptr(op),
			uintptr(arg), uintptr(n), 0, 0)
		switch errno {
		case 0:
			return int(r), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// MmapShared maps n bytes of f at offset off, populated, shared with the kernel.
func MmapShared(f *FD, off, n int64) ([]byte, error) {
	return unix.Mmap(f.Int(), off, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
}
