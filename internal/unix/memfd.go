package unix

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Memfd makes an anonymous file in memory (memfd_create). Its name shows among
// the descriptors of the process and need not be unique.
func Memfd(name string) (*FD, error) {
	n, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return NewFD(n, "memfd:"+name), nil
}

// SealShrink makes sure that a file in memory keeps its size or grows.
func SealShrink(f *FD) error {
	_, err := unix.FcntlInt(uintptr(f.Int()), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	return os.NewSyscallError("seal", err)
}

// udmabufCreate is struct udmabuf_create of include/uapi/linux/udmabuf.h.
type udmabufCreate struct {
	Memfd, Flags uint32
	Offset, Size uint64
}

const (
	udmabufCreateNr = 1<<30 | 24<<16 | 'u'<<8 | 0x42
	udmabufCloexec  = 1
)

// UDMABuf makes a dma-buf of n bytes at off of a memfd that cannot shrink, in whole
// pages. ENOENT where the kernel has no /dev/udmabuf, EACCES for those who may not
// use it.
func UDMABuf(memfd *FD, off, n int64) (*FD, error) {
	dev, err := Open("/dev/udmabuf", ReadWrite, 0)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	a := udmabufCreate{uint32(memfd.Int()), udmabufCloexec, uint64(off), uint64(n)}
	fd, err := retryInt(func() (int, error) {
		r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(dev.Int()), udmabufCreateNr, uintptr(unsafe.Pointer(&a)))
		if errno != 0 {
			return 0, errno
		}
		return int(r), nil
	})
	if err != nil {
		return nil, err
	}
	return NewFD(fd, "dma-buf of "+memfd.Path()), nil
}
