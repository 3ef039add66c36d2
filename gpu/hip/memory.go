package hip

import (
	"errors"
	"sync/atomic"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
	"github.com/ugds-store/ugds/internal/unix"
)

// Attributes is hipPointerGetAttribute, which refuses plain host memory.
// Managed memory is asked for first (D-04).
func (b *Backend) Attributes(p gpu.Ptr) (gpu.Attributes, error) {
	f := dl.NewFrame()
	defer f.Done()
	var failed int
	get := func(a uintptr) uint64 {
		v := f.Word(0)
		if code := b.code(hipPointerGetAttribute, v.Addr, a, uintptr(p)); code != 0 && failed == 0 {
			failed = code
		}
		return v.Uint64()
	}
	managed, kind := get(ptrIsManaged)&0xff != 0, uint32(get(ptrMemoryType))
	if failed == errInvalidValue {
		return gpu.Attributes{Device: -1}, nil
	}
	a := gpu.Attributes{Device: int(int32(get(ptrDeviceOrdinal))), BufferID: get(ptrBufferID),
		Base: gpu.Ptr(get(ptrRangeStart)), Size: int64(get(ptrRangeSize))}
	if failed != 0 {
		return gpu.Attributes{}, b.fail("look at", p.String(), hipPointerGetAttribute, failed)
	}
	switch {
	case managed:
		a.Kind = gpu.KindManaged
	case kind == memoryTypeDevice:
		a.Kind, a.Exportable = gpu.KindDevice, true
	case kind == memoryTypeHost:
		a.Kind, a.Device = gpu.KindHost, -1
	default:
		return gpu.Attributes{Device: -1}, nil
	}
	return a, nil
}

// memory is an allocation, or a mapping of another process's one.
type memory struct {
	d    *device
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
	return m.d.use(func() error { return m.d.b.do("free", m.p.String(), m.free, uintptr(m.p)) })
}

// Alloc is hipMalloc.
func (d *device) Alloc(n int64) (gpu.Memory, error) {
	if n <= 0 {
		return nil, base.Errorf("allocate", d.object, base.ErrInvalid, "%d bytes", n)
	}
	f := dl.NewFrame()
	defer f.Done()
	p := f.Word(0)
	err := d.use(func() error { return d.b.do("allocate", d.object, hipMalloc, p.Addr, uintptr(n)) })
	if err != nil {
		return nil, err
	}
	return &memory{d: d, p: gpu.Ptr(p.Uint64()), n: n, free: hipFree}, nil
}

// hostMemory is pinned memory of the runtime, or of the caller.
type hostMemory struct {
	d    *device
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
	return h.d.use(func() error { return h.d.b.do("unpin", "host memory", h.free, dl.Addr(h.b)) })
}

// AllocHost is hipHostMalloc, portable and mapped.
func (d *device) AllocHost(n int64) (gpu.HostMemory, error) {
	if n <= 0 {
		return nil, base.Errorf("pin", "host memory", base.ErrInvalid, "%d bytes", n)
	}
	f := dl.NewFrame()
	defer f.Done()
	p, dev := f.Word(0), f.Word(0)
	err := d.use(func() error {
		if err := d.b.do("pin", "host memory", hipHostMalloc, p.Addr, uintptr(n), hostAllocFlags); err != nil {
			return err
		}
		return d.mapHost(dev.Addr, uintptr(p.Uint64()), hipHostFree)
	})
	if err != nil {
		return nil, err
	}
	h := &hostMemory{d: d, b: dl.Memory(uintptr(p.Uint64()), n), p: gpu.Ptr(dev.Uint64()), free: hipHostFree}
	clear(h.b)
	return h, nil
}

// mapHost stores where GPUs reach the pinned memory at p, or unpins it again by the
// function free.
func (d *device) mapHost(to, p uintptr, free int) error {
	err := d.b.do("map", "host memory", hipHostGetDevicePointer, to, p, 0)
	if err != nil {
		_ = d.b.do("unpin", "host memory", free, p) // the first error is the one to tell
	}
	return err
}

// PinHost is hipHostRegister, portable and mapped.
func (d *device) PinHost(b []byte, readOnly bool) (gpu.HostMemory, error) {
	if len(b) == 0 {
		return nil, base.Errorf("pin", "host memory", base.ErrInvalid, "0 bytes")
	}
	flags := uintptr(hostAllocFlags)
	if readOnly {
		flags |= registerReadOnly
	}
	f := dl.NewFrame()
	defer f.Done()
	dev := f.Word(0)
	err := d.use(func() error {
		if err := d.b.do("pin", "host memory", hipHostRegister, dl.Addr(b), uintptr(len(b)), flags); err != nil {
			return err
		}
		return d.mapHost(dev.Addr, dl.Addr(b), hipHostUnregister)
	})
	if err != nil {
		return nil, err
	}
	return &hostMemory{d: d, b: b, p: gpu.Ptr(dev.Uint64()), free: hipHostUnregister}, nil
}

// Export is hipMemGetHandleForAddressRange with a dma-buf.
func (d *device) Export(p gpu.Ptr, n int64) (int, error) {
	a, err := d.b.Attributes(p)
	if err == nil {
		err = gpu.CheckExport(a, p, n)
	}
	if err != nil {
		return -1, err
	}
	f := dl.NewFrame()
	defer f.Done()
	fd := f.Word(0)
	err = d.use(func() error {
		return d.b.do("export", p.String(), hipMemGetHandleForAddressRange, fd.Addr, uintptr(p), uintptr(n), handleDMABuf, 0)
	})
	if err != nil {
		return -1, err
	}
	buf := int(int32(fd.Uint32()))
	if err := unix.CloseOnExec(buf); err != nil { // the driver does it, some day (D-07)
		return -1, errors.Join(base.Wrap("export", p.String(), err), unix.NewFD(buf, "dma-buf").Close())
	}
	return buf, nil
}

// SyncMemOps is hipPointerSetAttribute(HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS).
func (d *device) SyncMemOps(p gpu.Ptr) error {
	f := dl.NewFrame()
	defer f.Done()
	on := f.Word(1)
	return d.use(func() error {
		return d.b.do("order copies of", p.String(), hipPointerSetAttribute, on.Addr, ptrSyncMemOps, uintptr(p))
	})
}

// FlushWrites is not supported: HIP has no call for it.
func (d *device) FlushWrites() error {
	return base.Errorf("flush", d.object, base.ErrNotSupported, "HIP has no flush of writes of other devices")
}

// IPCHandle is hipIpcGetMemHandle.
func (d *device) IPCHandle(p gpu.Ptr) (h [64]byte, err error) {
	a, err := d.b.Attributes(p)
	if err != nil {
		return h, err
	}
	if a.Base != p || a.Kind != gpu.KindDevice {
		return h, base.Errorf("share", p.String(), base.ErrInvalid, "not the beginning of an allocation on a GPU")
	}
	f := dl.NewFrame()
	defer f.Done()
	b, addr := f.Bytes(len(h))
	err = d.use(func() error { return d.b.do("share", p.String(), hipIpcGetMemHandle, addr, uintptr(p)) })
	copy(h[:], b)
	return h, err
}

// OpenIPC is hipIpcOpenMemHandle.
func (d *device) OpenIPC(h [64]byte) (gpu.Memory, error) {
	if !d.b.lib.Has(hipIpcOpenMemHandle) {
		return nil, base.Errorf("open", "shared memory", base.ErrNotSupported, "the runtime has no hipIpcOpenMemHandle")
	}
	f := dl.NewFrame()
	defer f.Done()
	p := f.Word(0)
	err := d.use(func() error {
		r := d.b.lib.CallBlock(hipIpcOpenMemHandle, p.Addr, &h, ipcLazyPeerAccess)
		if code := int(int32(r)); code != 0 {
			return d.b.fail("open", "shared memory", hipIpcOpenMemHandle, code)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	m := &memory{d: d, p: gpu.Ptr(p.Uint64()), free: hipIpcCloseMemHandle}
	a, err := d.b.Attributes(m.p)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	m.n = a.Size
	return m, nil
}
