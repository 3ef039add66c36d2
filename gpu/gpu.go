// Package gpu is what the store asks of GPUs: memory, copies in stream order,
// and what a pointer is. The backends are gpu/cuda, gpu/hip and gpu/host; each
// loads its library when it is opened and never before. Sizes and offsets are
// bytes. The rules cited as I3, I4 and I10 stand in docs/architecture.md.
package gpu

import (
	"context"
	"fmt"
)

// Ptr is an address in the memory of a GPU. It is no Go pointer and is never
// used as one.
type Ptr uint64

// String prints the address.
func (p Ptr) String() string { return fmt.Sprintf("%#x", uint64(p)) }

// Limits that hold for every backend.
const (
	// HostPage is the granularity of exports, in bytes: address and size of an
	// exported range are multiples of it.
	HostPage = 4096
	// PinPage is the granularity by which drivers pin GPU memory, in bytes.
	PinPage = 64 << 10
	// MaxMoves is the largest number of entries of one Stream.Move or Stream.Sum.
	MaxMoves = 65536
)

// Kind is what sort of memory an address is in.
type Kind uint8

const (
	// KindUnknown is memory that the backend knows nothing of: plain host memory.
	KindUnknown Kind = iota
	// KindHost is host memory that the backend pinned.
	KindHost
	// KindDevice is memory of one GPU.
	KindDevice
	// KindManaged is memory that moves between host and GPUs by itself. It can
	// be copied to and from, and is never exported.
	KindManaged
)

// String names the kind.
func (k Kind) String() string {
	return [...]string{"unknown", "pinned host", "device", "managed"}[k]
}

// Attributes are what a backend says about an address.
type Attributes struct {
	Kind   Kind
	Device int // index of the GPU; -1 for host memory
	// Base and Size are the allocation, or the mapping of a virtual range, that
	// the address is in. Both are 0 where the backend does not say.
	Base Ptr
	Size int64
	// BufferID is unique in the process: memory that is freed and allocated
	// again at the same address has another one. 0 where there is none.
	BufferID uint64
	// Exportable tells that the driver can make a dma-buf of the memory. It is
	// false for virtual ranges created without the RDMA property and for pools.
	Exportable bool
}

// WriteOrdering says until where writes of another PCIe device to GPU memory
// are ordered without a flush.
type WriteOrdering int

// The orderings, with CUDA's numbers (CU_GPU_DIRECT_RDMA_WRITES_ORDERING_*).
const (
	OrderingNone  WriteOrdering = 0
	OrderingOwner WriteOrdering = 100
	OrderingAll   WriteOrdering = 200
)

// Info describes a GPU. It does not change.
type Info struct {
	Backend  string // "cuda", "hip", "host"
	Index    int    // the backend's number
	Name     string
	UUID     [16]byte
	PCI      string // "0000:17:00.0", "" if it has no address
	Bytes    int64  // memory
	Ordering WriteOrdering
	CanFlush bool // FlushWrites works
	DMABuf   bool // exports work
	MemOps   bool // streams can write and await 64-bit cells
	Mover    bool // Stream.Move, Sum and Watch work, if the kernels can be loaded
}

// Backend is one GPU library. Safe for concurrent use.
type Backend interface {
	// Name is "cuda", "hip" or "host".
	Name() string
	// Devices lists the GPUs, in the library's order. The list is the same at
	// every call, and its length may be 0.
	Devices() []Device
	// Attributes tells what p is. Plain host memory is no error: KindUnknown.
	Attributes(p Ptr) (Attributes, error)
	// Close releases what the backend holds of the GPUs. Memory, streams and
	// events must be closed before. The library stays loaded.
	Close() error
}

// Device is one GPU. Safe for concurrent use. The first call that needs its
// context makes it, which can take hundreds of milliseconds.
type Device interface {
	// Info describes the GPU.
	Info() Info
	// Warm makes the context and loads the kernels.
	Warm() error
	// Alloc takes n bytes of the GPU's memory. ErrNoSpace when it has no more.
	Alloc(n int64) (Memory, error)
	// AllocHost takes n bytes of pinned host memory that every GPU of the
	// backend reaches.
	AllocHost(n int64) (HostMemory, error)
	// PinHost pins memory that the caller keeps mapped until Close returned.
	// readOnly promises that the GPU only reads it, which is what the page
	// cache needs. b must be off the Go heap.
	PinHost(b []byte, readOnly bool) (HostMemory, error)
	// NewStream makes a stream that does not wait for the default stream. It can
	// hang while another stream waits for a cell: make streams beforehand.
	NewStream() (Stream, error)
	// WrapStream gives a stream of the caller, by the library's handle; 0 is the
	// default stream. Close of the result does not end the caller's stream.
	WrapStream(handle uintptr) (Stream, error)
	// NewEvent makes an event.
	NewEvent() (Event, error)
	// Export makes a dma-buf of [p, p+n): both multiples of HostPage and inside
	// one allocation, else ErrMisaligned or ErrOutOfRange; nothing is rounded.
	// The caller closes the descriptor. ErrNotSupported where memory or driver
	// cannot.
	Export(p Ptr, n int64) (fd int, err error)
	// SyncMemOps makes the library finish its own pending copies to the
	// allocation of p before another device may be told to use it.
	SyncMemOps(p Ptr) error
	// FlushWrites makes writes of other devices that have arrived visible to
	// kernels that run already.
	FlushWrites() error
	// IPCHandle names the allocation that begins at p for another process.
	IPCHandle(p Ptr) ([64]byte, error)
	// OpenIPC maps an allocation of another process.
	OpenIPC(h [64]byte) (Memory, error)
}

// Memory is GPU memory that the backend allocated or mapped.
type Memory interface {
	// Ptr is its first byte.
	Ptr() Ptr
	// Size in bytes.
	Size() int64
	// Close frees it. No copy or kernel that names it may be in flight. It can
	// hang while a stream of the GPU waits for a cell. Closing twice is harmless.
	Close() error
}

// HostMemory is pinned host memory: its bytes may be named in copies.
type HostMemory interface {
	// Bytes is the processor's view, valid until Close.
	Bytes() []byte
	// Ptr is the address under which GPUs reach it.
	Ptr() Ptr
	// Close unpins it, under the same rule as Memory.Close.
	Close() error
}

// Copy is one transfer between a GPU and pinned host memory.
type Copy struct {
	Dev    Ptr
	Host   []byte // the host side, which gives the length; pinned
	ToHost bool   // from the GPU
}

// Stream is a queue of GPU work that runs in order. A stream is used by one
// goroutine at a time, except Ticked and WaitTick. The memory that queued work
// names must stay until that work ended.
type Stream interface {
	// Handle is the library's stream, 0 for the default stream.
	Handle() uintptr
	// Copy queues transfers, in order. On an error those before it are queued.
	Copy(list ...Copy) error
	// Move queues a kernel that carries out count entries of a table made with
	// PutMove. The table is at an address that the GPU reaches, and stays
	// unchanged until the kernel ended. Entries have no order and must not
	// overlap. ErrNotSupported where no kernel could be loaded.
	Move(table Ptr, count int) error
	// Sum queues a kernel that computes the CRC-32C of each of the count ranges of
	// a table made with PutSum, and stores it into the table, for a Summer. The
	// table is at an address that the GPU reaches and writes. MaxMoves bounds it.
	// ErrNotSupported where no kernel could be loaded.
	Sum(table Ptr, count int) error
	// Watch queues the kernel of the entry that PutWatch made at an address which the
	// GPU reaches and writes. It occupies a part of the GPU until it ended.
	// ErrNotSupported where no kernel could be loaded.
	Watch(entry Ptr) error
	// WriteCell queues the store of v to the 8 bytes at p.
	WriteCell(p Ptr, v uint64) error
	// AwaitCell holds the stream until the 8 bytes at p are v or more, by
	// difference: the comparison wraps around.
	AwaitCell(p Ptr, v uint64) error
	// Call queues fn, which runs on a thread of the library, must not block and
	// must not call the backend.
	Call(fn func()) error
	// Record queues the event.
	Record(e Event) error
	// Await holds the stream until the event, as it was last recorded, is done.
	Await(e Event) error
	// Tick queues a mark and gives its number, which rises from 1.
	Tick() (uint64, error)
	// Ticked is the number of the last mark that was passed. It does not call
	// the library.
	Ticked() uint64
	// WaitTick waits until mark n was passed: nil; the library's error if the
	// GPU failed; ErrTimeout if ctx ended first, which ends only the wait.
	WaitTick(ctx context.Context, n uint64) error
	// Capturing tells whether the stream records a graph instead of working.
	Capturing() (bool, error)
	// Close ends the stream after its work. ErrTimeout after some seconds if the
	// work does not end: the stream is then still open.
	Close() error
}

// Event is a mark of one stream that other streams can wait for.
type Event interface {
	// Done tells whether the stream passed it, or that it was never recorded.
	Done() (bool, error)
	// Close frees it.
	Close() error
}
