package unix

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// CPU is the number of the processor that the caller runs on just now (getcpu(2)), or -1
// where the kernel does not tell. It is a hint: the next instruction may run elsewhere.
func CPU() int {
	var cpu uint32
	if _, _, e := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); e != 0 {
		return -1
	}
	return int(cpu)
}
