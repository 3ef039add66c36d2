// Package host is a gpu.Backend over host memory: the GPU of machines without
// one, and of tests. Its devices have an address space of their own in which
// every access is checked, streams that run in goroutines, and knobs that make
// them fail, stall and lack things.
package host

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/peermem"
)

// Where the address space of the devices begins, far from addresses of the
// process, and the gap after each allocation, in which nothing may land.
const (
	firstAddress = 1 << 44
	addressGap   = gpu.PinPage
)

// maxDevices bounds the devices of one backend.
const maxDevices = 64

// Options of Open. The zero value is one device of 1 GiB that can everything.
type Options struct {
	Devices int   // 1 if 0
	Bytes   int64 // memory of each device, 1 GiB if 0
	Faults  Faults
	// Memory, if not nil, gives the memory of an allocation of n bytes on a device:
	// memory that real controllers reach, for tests on such.
	Memory func(n int64) (Lent, error)
}

// Lent is memory that is not this process's own.
type Lent struct {
	Bytes  []byte                                 // as the processor sees it
	Export func(off, n int64) (fd int, err error) // a dma-buf of a range, in whole pages
	Free   func()
}

// Faults are the knobs. The functions may be called from any goroutine; nil
// means no fault. None changes after Open.
type Faults struct {
	NoMover  bool // Stream.Move and Stream.Sum are not supported
	NoMemOps bool // streams neither write nor await cells
	NoDMABuf bool // exports are not supported
	Ordering gpu.WriteOrdering
	NoFlush  bool

	Alloc     func(n int64) error       // fails allocations of device and host memory
	Queue     func(c gpu.Copy) error    // fails copies when they are queued
	Run       func(c gpu.Copy) error    // breaks the stream when a copy runs
	CopyDelay time.Duration             // how long each copy takes at least
	Capturing func(handle uintptr) bool // streams that record a graph
	Flush     func() error              // called by FlushWrites, and fails it
}

// Backend is the host memory backend. Safe for concurrent use.
type Backend struct {
	opt  Options
	devs []gpu.Device

	mu     sync.Mutex
	next   gpu.Ptr
	nextID uint64
	allocs []*memory     // device memory, by address
	pinned []*hostMemory // host memory, by address
	ipc    map[uint64]*memory

	flushes atomic.Int64
	handles atomic.Int64
}

// Open makes a backend. ErrInvalid for more than 64 devices.
func Open(o Options) (*Backend, error) {
	if o.Devices == 0 {
		o.Devices = 1
	}
	if o.Bytes == 0 {
		o.Bytes = base.GiB
	}
	if o.Devices < 0 || o.Devices > maxDevices || o.Bytes < 0 {
		return nil, base.Errorf("open", "host gpu", base.ErrInvalid, "%d devices of %d bytes", o.Devices, o.Bytes)
	}
	b := &Backend{opt: o, next: firstAddress, ipc: map[uint64]*memory{}}
	for i := range o.Devices {
		b.devs = append(b.devs, &device{b: b, index: i})
	}
	return b, nil
}

// Name is "host".
func (b *Backend) Name() string { return "host" }

// Devices lists the devices.
func (b *Backend) Devices() []gpu.Device { return b.devs }

// Close fails with ErrBusy while memory of the backend is allocated.
func (b *Backend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.allocs) + len(b.pinned); n > 0 {
		return base.Errorf("close", "host gpu", base.ErrBusy, "%d allocations are left", n)
	}
	return nil
}

// Flushes counts the calls of FlushWrites, for tests.
func (b *Backend) Flushes() int64 { return b.flushes.Load() }

// Attributes tells what p is.
func (b *Backend) Attributes(p gpu.Ptr) (gpu.Attributes, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m := b.find(p); m != nil {
		return gpu.Attributes{Kind: m.kind, Device: m.dev.index, Base: m.at, Size: m.size,
			BufferID: m.id, Exportable: m.kind == gpu.KindDevice && !m.plain}, nil
	}
	for _, h := range b.pinned {
		if p >= h.at && p < h.at+gpu.Ptr(len(h.b)) {
			return gpu.Attributes{Kind: gpu.KindHost, Device: -1, Base: h.at, Size: int64(len(h.b))}, nil
		}
	}
	return gpu.Attributes{Device: -1}, nil
}

// find gives the device memory that p is in, or nil.
func (b *Backend) find(p gpu.Ptr) *memory {
	i, ok := slices.BinarySearchFunc(b.allocs, p, func(m *memory, p gpu.Ptr) int {
		switch {
		case m.at+gpu.Ptr(m.size) <= p:
			return -1
		case m.at > p:
			return 1
		}
		return 0
	})
	if !ok {
		return nil
	}
	return b.allocs[i]
}

// bytes is the memory at [p, p+n): of a device, or pinned. An access that
// leaves its allocation is the error that a real GPU dies of.
func (b *Backend) bytes(p gpu.Ptr, n int64) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m := b.find(p); m != nil && base.CheckRange(int64(p-m.at), n, m.size) {
		return m.view[p-m.at : int64(p-m.at)+n], nil
	}
	for _, h := range b.pinned {
		if p >= h.at && base.CheckRange(int64(p-h.at), n, int64(len(h.b))) {
			return h.b[p-h.at : int64(p-h.at)+n], nil
		}
	}
	return nil, base.Errorf("access", p.String(), base.ErrOutOfRange, "illegal address, %d bytes", n)
}

// memory is an allocation of a device.
type memory struct {
	b     *Backend
	dev   *device
	at    gpu.Ptr
	size  int64
	id    uint64
	kind  gpu.Kind
	plain bool // without the RDMA property
	view  []byte
	from  Lent              // where the memory is from
	lent  []*peermem.Memory // its exports, if it is our own
}

// revoke takes every export back. A device that uses one is waited for.
func (m *memory) revoke() {
	m.b.mu.Lock()
	lent := m.lent
	m.lent = nil
	m.b.mu.Unlock()
	for _, l := range lent {
		l.Revoke()
	}
}

func (m *memory) Ptr() gpu.Ptr { return m.at }
func (m *memory) Size() int64  { return m.size }

func (m *memory) Close() error {
	m.revoke()
	m.b.mu.Lock()
	defer m.b.mu.Unlock()
	i := slices.Index(m.b.allocs, m)
	if i < 0 {
		return nil
	}
	m.b.allocs = slices.Delete(m.b.allocs, i, i+1)
	delete(m.b.ipc, m.id)
	m.dev.used -= m.size
	m.from.Free()
	return nil
}

// hostMemory is pinned host memory.
type hostMemory struct {
	back *Backend
	at   gpu.Ptr
	b    []byte
	own  *dma.Mem // nil if the memory is the caller's
}

func (h *hostMemory) Bytes() []byte { return h.b }
func (h *hostMemory) Ptr() gpu.Ptr  { return h.at }

func (h *hostMemory) Close() error {
	h.back.mu.Lock()
	defer h.back.mu.Unlock()
	i := slices.Index(h.back.pinned, h)
	if i < 0 {
		return nil
	}
	h.back.pinned = slices.Delete(h.back.pinned, i, i+1)
	if h.own != nil {
		h.own.Free()
	}
	return nil
}
