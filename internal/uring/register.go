package uring

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/ugds-store/ugds/internal/unix"
)

const (
	regUnregisterBuffers = 1
	regFiles             = 2
	regUnregisterFiles   = 3
	regProbe             = 8
	regBuffers2          = 15
	regBuffersUpdate     = 16

	rsrcSparse = 1 << 0
)

// MaxFixedBuffer is the largest registered buffer, in bytes.
const MaxFixedBuffer = 1 << 30

// RegisterFile makes fd the registered file 0, so that the kernel does not look
// it up for each request. The ring holds a reference until UnregisterFile or
// until a closed ring was torn down, which the kernel does in the background.
func (r *Ring) RegisterFile(fd *unix.FD) error {
	n := int32(fd.Int())
	_, err := unix.UringRegister(r.fd, regFiles, unsafe.Pointer(&n), 1)
	return err
}

// UnregisterFile undoes RegisterFile.
func (r *Ring) UnregisterFile() error {
	_, err := unix.UringRegister(r.fd, regUnregisterFiles, nil, 0)
	return err
}

type rsrcRegister struct {
	nr, flags  uint32
	_          uint64
	data, tags uint64
}

type rsrcUpdate2 struct {
	offset     uint32
	_          uint32
	data, tags uint64
	nr         uint32
	_          uint32
}

// SparseBuffers registers a table of n empty buffers. It fails with EINVAL on
// kernels before 5.19.
func (r *Ring) SparseBuffers(n int) error {
	arg := rsrcRegister{nr: uint32(n), flags: rsrcSparse}
	_, err := unix.UringRegister(r.fd, regBuffers2, unsafe.Pointer(&arg), uint32(unsafe.Sizeof(arg)))
	return err
}

// SetBuffer puts mem in slot i of the table and pins its pages; a nil mem
// empties the slot. ENOMEM means that RLIMIT_MEMLOCK is too low. Requests in
// flight keep the buffer that they started with.
func (r *Ring) SetBuffer(i int, mem []byte) error {
	if len(mem) > MaxFixedBuffer {
		return fmt.Errorf("registered buffer of %d bytes: %w", len(mem), unix.EINVAL)
	}
	r.iov = unix.Iovec{}
	if len(mem) > 0 {
		r.iov = unix.Iovec{Base: unix.Addr(mem), Len: uint64(len(mem))}
	}
	arg := rsrcUpdate2{offset: uint32(i), nr: 1, data: uint64(uintptr(unsafe.Pointer(&r.iov)))}
	_, err := unix.UringRegister(r.fd, regBuffersUpdate, unsafe.Pointer(&arg), uint32(unsafe.Sizeof(arg)))
	runtime.KeepAlive(r)
	return err
}

// UnregisterBuffers drops the table. It waits for requests that use it.
func (r *Ring) UnregisterBuffers() error {
	_, err := unix.UringRegister(r.fd, regUnregisterBuffers, nil, 0)
	return err
}

type probeOp struct {
	op, _ uint8
	flags uint16
	_     uint32
}

type probe struct {
	lastOp, opsLen uint8
	_              uint16
	_              [3]uint32
	ops            [256]probeOp
}

// Supports tells whether the kernel has every one of ops; missing is the first
// that it lacks.
func (r *Ring) Supports(ops ...uint8) (missing uint8, ok bool, err error) {
	p := new(probe)
	if _, err := unix.UringRegister(r.fd, regProbe, unsafe.Pointer(p), uint32(len(p.ops))); err != nil {
		return 0, false, fmt.Errorf("io_uring probe: %w", err)
	}
	for _, op := range ops {
		if op > p.lastOp || p.ops[op].flags&1 == 0 {
			return op, false, nil
		}
	}
	return 0, true, nil
}
