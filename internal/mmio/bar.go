package mmio

import (
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// BAR is a window of device registers in this process.
type BAR struct {
	name   string
	raw    []byte
	base   unsafe.Pointer
	size   uint64
	closed atomic.Bool
}

// Map maps n bytes of f from off: a PCI resource, a VFIO region or a node of our
// kernel module. name is for messages. The errors are those of mmap.
func Map(f *unix.FD, off, n int64, name string) (*BAR, error) {
	raw, err := unix.MmapShared(f, off, n)
	if err != nil {
		return nil, base.Wrap("map registers of", name, err)
	}
	return &BAR{name: name, raw: raw, base: unsafe.Pointer(unsafe.SliceData(raw)), size: uint64(n)}, nil
}

// Close unmaps the window. The caller knows that no access is under way; later
// ones fail with ErrClosed. Closing twice is harmless.
func (b *BAR) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	return base.Wrap("unmap registers of", b.name, unix.Munmap(b.raw))
}

// Size is the size of the window in bytes.
func (b *BAR) Size() uint64 { return b.size }

// check refuses offsets that are outside the window or not a multiple of n.
// Offsets come from what a device says of itself, so they are errors and not
// mistakes of the program.
func (b *BAR) check(off, n uint64) error {
	switch {
	case b.closed.Load():
		return base.Errorf("access registers of", b.name, base.ErrClosed, "offset %#x", off)
	case off%n != 0:
		return base.Errorf("access registers of", b.name, base.ErrMisaligned, "offset %#x, %d bytes", off, n)
	case off > b.size || n > b.size-off:
		return base.Errorf("access registers of", b.name, base.ErrOutOfRange,
			"offset %#x, the window has %#x bytes", off, b.size)
	}
	return nil
}

// Load32 reads the 32-bit register at off. ErrOutOfRange, ErrMisaligned,
// ErrClosed, or ErrDeviceGone when the access faults. Registers of a vanished
// device may also read as ones without any error.
func (b *BAR) Load32(off uint64) (v uint32, err error) {
	if err := b.check(off, 4); err != nil {
		return 0, err
	}
	defer b.caught(debug.SetPanicOnFault(true), off, &err)
	return load32(unsafe.Add(b.base, off)), nil
}

// Store32 writes the 32-bit register at off, after all earlier stores to memory.
// The errors are those of Load32.
func (b *BAR) Store32(off uint64, v uint32) (err error) {
	if err := b.check(off, 4); err != nil {
		return err
	}
	defer b.caught(debug.SetPanicOnFault(true), off, &err)
	store32(unsafe.Add(b.base, off), v)
	return nil
}

// Load64 reads the 64-bit register at off as two halves, the low one first: some
// controllers do not answer wider accesses, and no register of ours changes
// between the two.
func (b *BAR) Load64(off uint64) (v uint64, err error) {
	if err := b.check(off, 8); err != nil {
		return 0, err
	}
	defer b.caught(debug.SetPanicOnFault(true), off, &err)
	lo := load32(unsafe.Add(b.base, off))
	return uint64(load32(unsafe.Add(b.base, off+4)))<<32 | uint64(lo), nil
}

// Store64 writes the 64-bit register at off as two halves, the low one first.
func (b *BAR) Store64(off, v uint64) (err error) {
	if err := b.check(off, 8); err != nil {
		return err
	}
	defer b.caught(debug.SetPanicOnFault(true), off, &err)
	store32(unsafe.Add(b.base, off), uint32(v))
	store32(unsafe.Add(b.base, off+4), uint32(v>>32))
	return nil
}

// Doorbell is one 32-bit register that is written often. The zero value is not
// usable.
type Doorbell struct {
	bar *BAR
	off uint64
}

// Doorbell checks the offset once, for many calls of Ring.
func (b *BAR) Doorbell(off uint64) (Doorbell, error) {
	if err := b.check(off, 4); err != nil {
		return Doorbell{}, err
	}
	return Doorbell{b, off}, nil
}

// Ring writes v to the doorbell, after all earlier stores to memory: one barrier
// and one store. ErrDeviceGone when the access faults, ErrClosed.
func (d Doorbell) Ring(v uint32) (err error) {
	if d.bar.closed.Load() {
		return d.bar.check(d.off, 4)
	}
	defer d.bar.caught(debug.SetPanicOnFault(true), d.off, &err)
	store32(unsafe.Add(d.bar.base, d.off), v)
	return nil
}

// caught is deferred around every access. It turns a fault into ErrDeviceGone:
// between SetPanicOnFault and here nothing runs but the one access, so a fault is
// its own, whatever address the kernel or an emulator reports. old is what
// SetPanicOnFault was before: the setting belongs to the goroutine, and others may
// rely on it.
func (b *BAR) caught(old bool, off uint64, err *error) {
	r := recover()
	debug.SetPanicOnFault(old)
	if r == nil {
		return
	}
	if _, ok := r.(runtime.Error); !ok {
		panic(r)
	}
	*err = base.Errorf("access registers of", b.name, base.ErrDeviceGone, "the access at offset %#x faulted", off)
}
