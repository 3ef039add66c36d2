// Package native is what gpu/cuda and gpu/hip have in common: HIP mirrors the CUDA
// Driver API, so that memory, pinned memory and exports are got from both by the same
// calls under other names.
package native

import (
	"errors"
	"sync/atomic"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
	"github.com/ugds-store/ugds/internal/unix"
)

// Flags that both libraries number alike.
const (
	hostFlags    = 1 | 2 // portable, mapped
	hostReadOnly = 8
)

// Calls are the numbers of a library's functions, for GPU.Do.
type Calls struct {
	Alloc, Free        int // cuMemAlloc, hipMalloc; cuMemFree, hipFree
	AllocHost          int // cuMemHostAlloc, hipHostMalloc
	FreeHost           int // cuMemFreeHost, hipHostFree
	PinHost, UnpinHost int // cuMemHostRegister, hipHostRegister; and Unregister
	HostPtr            int // cuMemHostGetDevicePointer, hipHostGetDevicePointer
}

// GPU gives memory of one GPU. Safe for concurrent use.
type GPU struct {
	Object string // for messages
	Calls  Calls
	// Use runs fn on a thread on which calls are about this GPU.
	Use func(fn func() error) error
	// Do calls a function; op and object begin the text of the error.
	Do func(op, object string, sym int, args ...uintptr) error

	cells cells
}

// memory is an allocation, or a mapping of another process's one.
type memory struct {
	g    *GPU
	p    gpu.Ptr
	n    int64
	free int // the function that ends it
	done atomic.Bool
}

func (m *memory) Ptr() gpu.Ptr { return m.p }
func (m *memory) Size() int64  { return m.n }

func (m *memory) Close() error {
	if m.done.Swap(true) {
		return nil
	}
	return m.g.Use(func() error { return m.g.Do("free", m.p.String(), m.free, uintptr(m.p)) })
}

// Alloc implements gpu.Device.
func (g *GPU) Alloc(n int64) (gpu.Memory, error) {
	if n <= 0 {
		return nil, base.Errorf("allocate", g.Object, base.ErrInvalid, "%d bytes", n)
	}
	f := dl.NewFrame()
	defer f.Done()
	p := f.Word(0)
	err := g.Use(func() error { return g.Do("allocate", g.Object, g.Calls.Alloc, p.Addr, uintptr(n)) })
	if err != nil {
		return nil, err
	}
	return &memory{g: g, p: gpu.Ptr(p.Uint64()), n: n, free: g.Calls.Free}, nil
}

// Mapped is memory of another process that was mapped at p, and that the function free
// ends; attributes tells its size. It is ended again if that fails.
func (g *GPU) Mapped(p gpu.Ptr, free int, attributes func(gpu.Ptr) (gpu.Attributes, error)) (gpu.Memory, error) {
	m := &memory{g: g, p: p, free: free}
	a, err := attributes(p)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	m.n = a.Size
	return m, nil
}

// hostMemory is pinned memory of the library, or of the caller.
type hostMemory struct {
	g    *GPU
	b    []byte
	p    gpu.Ptr
	free int
	done atomic.Bool
}

func (h *hostMemory) Bytes() []byte { return h.b }
func (h *hostMemory) Ptr() gpu.Ptr  { return h.p }

func (h *hostMemory) Close() error {
	if h.done.Swap(true) {
		return nil
	}
	return h.g.Use(func() error { return h.g.Do("unpin", "host memory", h.free, dl.Addr(h.b)) })
}

// AllocHost implements gpu.Device. The memory is zeroed.
func (g *GPU) AllocHost(n int64) (gpu.HostMemory, error) {
	if n <= 0 {
		return nil, base.Errorf("pin", "host memory", base.ErrInvalid, "%d bytes", n)
	}
	f := dl.NewFrame()
	defer f.Done()
	p, dev := f.Word(0), f.Word(0)
	err := g.Use(func() error {
		if err := g.Do("pin", "host memory", g.Calls.AllocHost, p.Addr, uintptr(n), hostFlags); err != nil {
			return err
		}
		return g.mapHost(dev.Addr, uintptr(p.Uint64()), g.Calls.FreeHost)
	})
	if err != nil {
		return nil, err
	}
	h := &hostMemory{g: g, b: dl.Memory(uintptr(p.Uint64()), n), p: gpu.Ptr(dev.Uint64()), free: g.Calls.FreeHost}
	clear(h.b)
	return h, nil
}

// PinHost implements gpu.Device.
func (g *GPU) PinHost(b []byte, readOnly bool) (gpu.HostMemory, error) {
	if len(b) == 0 {
		return nil, base.Errorf("pin", "host memory", base.ErrInvalid, "0 bytes")
	}
	flags := uintptr(hostFlags)
	if readOnly {
		flags |= hostReadOnly
	}
	f := dl.NewFrame()
	defer f.Done()
	dev := f.Word(0)
	err := g.Use(func() error {
		if err := g.Do("pin", "host memory", g.Calls.PinHost, dl.Addr(b), uintptr(len(b)), flags); err != nil {
			return err
		}
		return g.mapHost(dev.Addr, dl.Addr(b), g.Calls.UnpinHost)
	})
	if err != nil {
		return nil, err
	}
	return &hostMemory{g: g, b: b, p: gpu.Ptr(dev.Uint64()), free: g.Calls.UnpinHost}, nil
}

// mapHost stores where GPUs reach the pinned memory at p, or unpins it again by the
// function free.
func (g *GPU) mapHost(to, p uintptr, free int) error {
	err := g.Do("map", "host memory", g.Calls.HostPtr, to, p, 0)
	if err != nil {
		_ = g.Do("unpin", "host memory", free, p) // the first error is the one to tell
	}
	return err
}

// Export checks a range and has call make a dma-buf of it, whose descriptor, a C int,
// it stores at the address fd. See gpu.Device for the errors.
func Export(b gpu.Backend, p gpu.Ptr, n int64, call func(fd uintptr) error) (int, error) {
	a, err := b.Attributes(p)
	if err == nil {
		err = gpu.CheckExport(a, p, n)
	}
	if err != nil {
		return -1, err
	}
	f := dl.NewFrame()
	defer f.Done()
	fd := f.Word(0)
	if err := call(fd.Addr); err != nil {
		return -1, err
	}
	buf := int(int32(fd.Uint32()))
	if err := unix.CloseOnExec(buf); err != nil { // the driver does it, some day (D-07)
		return -1, errors.Join(base.Wrap("export", p.String(), err), unix.NewFD(buf, "dma-buf").Close())
	}
	return buf, nil
}
