package unix

import (
	"os"

	"golang.org/x/sys/unix"
)

// Memfd makes an anonymous file in memory (memfd_create). Its name shows among
// the descriptors of the process and need not be unique.
func Memfd(name string) (*FD, error) {
	n, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return NewFD(n, "memfd:"+name), nil
}
