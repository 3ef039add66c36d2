// Package hw is the hardware seam: what the NVMe driver needs from any transport
// to a controller — registers, memory that the controller can reach, interrupts,
// a way to stop it for certain, and a clock. Backends are the controller model
// (sim), VFIO and our kernel module. Package hwtest holds the cases that each of
// them passes.
//
// The seam knows nothing of NVMe but that registers are 32 and 64 bits wide and
// that queues need memory that is contiguous for the controller. Addresses that a
// controller uses are bus addresses (Seg.Addr); they have nothing to do with
// addresses of this process and are not contiguous where the memory is.
package hw

import (
	"context"
	"time"
)

// PageSize is the granularity of bus memory, in bytes: the smallest memory page of
// the NVMe specification, and the smallest page of the machines we run on.
const PageSize = 4096

// ID tells what a device is and how it is reached.
type ID struct {
	Target    string // as the user names it: "pci:0000:01:00.0", "sim:…"
	Transport string // "sim", "vfio", "kdrv"
	Vendor    uint16 // PCI identifiers, for the table of quirks
	Device    uint16
	NUMANode  int    // of the slot, -1 if unknown
	IOMMU     bool   // bus addresses are translated: a wrong one faults
	Window    uint64 // bytes of registers that can be reached
	Peers     bool   // MapFD takes dma-bufs of other devices: memory of a GPU
}

// Device is one controller. All methods are safe for concurrent use; Close comes
// after the last of them. Everything that waits takes a context, whose deadline
// it honours, with ErrTimeout.
type Device interface {
	// ID does not change while the device is open.
	ID() ID

	Registers
	Memory
	Interrupts
	Clock

	// Start lets the device reach memory. A freshly opened device, and one that was
	// stopped, cannot. Starting twice is harmless.
	Start(ctx context.Context) error

	// Stop cuts the device off from memory, whatever state it is in: bus mastering
	// off and no transaction pending, function-level reset, or gone. After nil no
	// access of the device can land and its memory may be reused (I4); the
	// registers are as after a reset, or all ones. After an error nothing is
	// known. A device that is gone has stopped. Stopping twice is harmless.
	Stop(ctx context.Context) error

	// Close gives the device back. It stops it first, if need be and within a
	// bound of its own; memory that is still allocated or mapped stays with the
	// device when that fails, and Close says so. Closing twice is harmless.
	Close() error
}

// Notice is something that the system says about a device.
type Notice uint8

const (
	// NoticeRelease asks for the device: somebody wants to pull it out or to give
	// it to another driver, and waits until it is closed.
	NoticeRelease Notice = iota + 1
	// NoticeStopped says that the system has cut the device off from memory: the
	// memory was revoked, or the bus has failed.
	NoticeStopped
	// NoticeGone says that the device was pulled out.
	NoticeGone
)

// String names the notice.
func (n Notice) String() string {
	return [...]string{"", "the system asks for the device back", "the system has stopped the device",
		"the device was pulled out"}[n]
}

// Notifier is what a Device implements in addition when its system gives notices.
type Notifier interface {
	// Notices returns the channel of the notices. It is closed by Close. The channel
	// has room for a few; one that finds it full is dropped, since they repeat.
	Notices() <-chan Notice

	// Stopped tells whether the system has cut the device off since it was started. A
	// notice of that may be read late, when a Start has ended it already: who acts on
	// one asks first. It does not wait.
	Stopped() bool
}

// Registers is the register window. Offsets are bytes; they come from what the
// controller says of itself, so a bad one is an error: ErrOutOfRange or
// ErrMisaligned. An access to a device that has gone gives ErrDeviceGone, or ones
// without an error; both must be expected at every access (H-04).
type Registers interface {
	// Load32 reads a register, before all later loads of the caller.
	Load32(off uint64) (uint32, error)
	// Store32 writes a register, after all earlier stores of the caller to memory.
	Store32(off uint64, v uint32) error
	// Load64 reads a register as two halves, the low one first.
	Load64(off uint64) (uint64, error)
	// Store64 writes a register as two halves, the low one first.
	Store64(off, v uint64) error
	// Doorbell checks the offset of a register once, for many writes.
	Doorbell(off uint64) (Doorbell, error)
}

// Doorbell is a register that is written often.
type Doorbell interface {
	// Ring is Store32 without the checks of the offset. It allocates nothing.
	Ring(v uint32) error
}

// Seg is a piece of memory as the device sees it.
type Seg struct {
	Addr uint64 // bus address
	Len  uint64 // bytes
}

// Memory makes memory reachable for the device.
type Memory interface {
	// Alloc gives size bytes of zeroed memory for queues and lists. They are
	// contiguous for the device, and a page boundary for the processor and for
	// the device is where they begin. owner names them in dma.Usage. ErrInvalid
	// for a size below 1, ErrNoSpace when there is no such piece but there may be a
	// smaller one, or the system's error.
	Alloc(size int64, owner string) (*Buffer, error)

	// Map makes mem reachable, which must stay where it is until Unmap. ErrInvalid
	// for no bytes.
	Map(mem []byte) (Mapping, error)

	// MapFD makes n bytes at off of a dma-buf or memfd reachable. ErrNotSupported
	// where the transport cannot.
	MapFD(fd int, off, n int64) (Mapping, error)
}

// Buffer is memory from Alloc. It belongs to the caller until Free.
type Buffer struct {
	Bytes []byte // as the processor sees it
	Addr  uint64 // bus address of the first byte
	free  func()
}

// NewBuffer is for backends; free is called once, by Free.
func NewBuffer(b []byte, addr uint64, free func()) *Buffer {
	return &Buffer{b, addr, free}
}

// Free gives the memory back. The caller knows that the device does not use it
// any more. Freeing twice panics.
func (b *Buffer) Free() {
	free := b.free
	if free == nil {
		panic("hw: freed twice")
	}
	b.free, b.Bytes = nil, nil
	free()
}

// Mapping is memory that the device can reach.
type Mapping interface {
	// Segments lists what the device sees, in the order of the memory; together
	// they have its length. Adjacent pieces are merged. The offset of each byte in
	// its page is the same for the processor and the device. The caller must not
	// change the list.
	Segments() []Seg
	// Unmap takes the memory away from the device. The caller knows that no
	// command names it. Unmapping twice panics.
	Unmap() error
}

// Revocable is what a Mapping implements in addition when somebody else can take its
// memory back: the exporter of a dma-buf.
type Revocable interface {
	// Revoked tells whether that has begun. From then on accesses of the device may not
	// reach the memory, and what a command did with it, whatever its status, is
	// unknown. It is cheap until the first revocation on the device.
	Revoked() bool
}

// Interrupts are the vectors of the device.
type Interrupts interface {
	// Vectors is how many there are; 0 where the transport has no interrupts.
	Vectors() int
	// Vector opens one for waiting. ErrOutOfRange for a vector that does not
	// exist, ErrBusy for one that is open.
	Vector(n int) (Vector, error)
}

// Vector counts interrupts, as an eventfd does: those that arrive while nobody
// waits are not lost. One goroutine at a time waits.
type Vector interface {
	// Wait returns nil when at least one interrupt or Wake has come since the last
	// Wait returned nil, and forgets them. ErrTimeout when ctx ends first, with
	// the context's error inside; ErrClosed after Close.
	Wait(ctx context.Context) error
	// Wake ends a wait from the outside.
	Wake()
	// Close gives the vector back and ends a wait. Closing twice is harmless.
	Close() error
}

// Clock is the time that deadlines of the device are measured in. It is monotonic.
// A model of a controller has its own.
type Clock interface {
	// Now is the time since some fixed point.
	Now() time.Duration
	// Pause is called between two looks at memory that found nothing new. until is
	// the next time at which the caller wants to act by itself, or Forever. It
	// returns soon in real time: a transport to hardware lets the processor rest
	// for an instant, a model does its next step, which may move Now up to until.
	Pause(until time.Duration)
}

// Forever is a time that never comes.
const Forever = time.Duration(1<<63 - 1)
