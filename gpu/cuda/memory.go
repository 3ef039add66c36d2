package cuda

import (
	"errors"
	"sync/atomic"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
)

// Attributes is cuPointerGetAttributes. Managed memory is asked for first: its
// memory type depends on where the page is just now (D-04).
func (b *Backend) Attributes(p gpu.Ptr) (gpu.Attributes, error) {
	f := dl.NewFrame()
	defer f.Done()
	list := [...]uint32{ptrIsManaged, ptrMemoryType, ptrDeviceOrdinal, ptrBufferID, ptrRangeStart, ptrRangeSize,
		ptrRDMACapable, ptrMappingBase, ptrMappingSize, ptrMemoryBlockID}
	ids, idsAddr := f.Bytes(4 * len(list))
	var data [len(list)]dl.Slot
	for i, a := range list {
		ids[4*i] = byte(a) // attribute numbers are small
		data[i] = f.Word(0)
	}
	first := f.Word(uint64(data[0].Addr))
	for i := 1; i < len(data); i++ {
		f.Word(uint64(data[i].Addr))
	}
	code := b.code(cuPointerGetAttributes, uintptr(len(list)), idsAddr, first.Addr, uintptr(p))
	if code == errInvalidValue {
		return gpu.Attributes{Device: -1}, nil // older drivers say so of plain host memory
	}
	if code != 0 {
		return gpu.Attributes{}, b.fail("look at", p.String(), cuPointerGetAttributes, code)
	}
	a := gpu.Attributes{Device: int(int32(data[2].Uint32())), BufferID: data[3].Uint64(),
		Base: gpu.Ptr(data[4].Uint64()), Size: int64(data[5].Uint64()), Exportable: data[6].Uint32()&0xff != 0}
	if size := int64(data[8].Uint64()); size > 0 && size < a.Size {
		a.Base, a.Size = gpu.Ptr(data[7].Uint64()), size // one mapping of a virtual range
	}
	if block := data[9].Uint64(); a.BufferID == 0 {
		a.BufferID = block
	}
	switch {
	case data[0].Uint32()&0xff != 0:
		a.Kind, a.Exportable = gpu.KindManaged, false
	case data[1].Uint32() == memoryTypeDevice:
		a.Kind = gpu.KindDevice
	case data[1].Uint32() == memoryTypeHost:
		a.Kind, a.Device, a.Exportable = gpu.KindHost, -1, false
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

// Alloc is cuMemAlloc_v2.
func (d *device) Alloc(n int64) (gpu.Memory, error) {
	if n <= 0 {
		return nil, base.Errorf("allocate", d.object, base.ErrInvalid, "%d bytes", n)
	}
	f := dl.NewFrame()
	defer f.Done()
	p := f.Word(0)
	err := d.use(func() error { return d.b.do("allocate", d.object, cuMemAlloc, p.Addr, uintptr(n)) })
	if err != nil {
		return nil, err
	}
	return &memory{d: d, p: gpu.Ptr(p.Uint64()), n: n, free: cuMemFree}, nil
}

// hostMemory is pinned memory of the driver, or of the caller.
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

// AllocHost is cuMemHostAlloc, portable and mapped.
func (d *device) AllocHost(n int64) (gpu.HostMemory, error) {
	if n <= 0 {
		return nil, base.Errorf("pin", "host memory", base.ErrInvalid, "%d bytes", n)
	}
	f := dl.NewFrame()
	defer f.Done()
	p, dev := f.Word(0), f.Word(0)
	err := d.use(func() error {
		if err := d.b.do("pin", "host memory", cuMemHostAlloc, p.Addr, uintptr(n), hostAllocFlags); err != nil {
			return err
		}
		return d.mapHost(dev.Addr, uintptr(p.Uint64()), cuMemFreeHost)
	})
	if err != nil {
		return nil, err
	}
	h := &hostMemory{d: d, b: dl.Memory(uintptr(p.Uint64()), n), p: gpu.Ptr(dev.Uint64()), free: cuMemFreeHost}
	clear(h.b)
	return h, nil
}

// mapHost stores where GPUs reach the pinned memory at p, or unpins it again by the
// function free.
func (d *device) mapHost(to, p uintptr, free int) error {
	err := d.b.do("map", "host memory", cuMemHostGetDevicePointer, to, p, 0)
	if err != nil {
		_ = d.b.do("unpin", "host memory", free, p) // the first error is the one to tell
	}
	return err
}

// PinHost is cuMemHostRegister_v2, portable and mapped.
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
		if err := d.b.do("pin", "host memory", cuMemHostRegister, dl.Addr(b), uintptr(len(b)), flags); err != nil {
			return err
		}
		return d.mapHost(dev.Addr, dl.Addr(b), cuMemHostUnregister)
	})
	if err != nil {
		return nil, err
	}
	return &hostMemory{d: d, b: b, p: gpu.Ptr(dev.Uint64()), free: cuMemHostUnregister}, nil
}

// IPCHandle is cuIpcGetMemHandle; only memory of cuMemAlloc has one.
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
	err = d.useFor(p, func() error { return d.b.do("share", p.String(), cuIpcGetMemHandle, addr, uintptr(p)) })
	copy(h[:], b)
	return h, err
}

// OpenIPC is cuIpcOpenMemHandle_v2, which refuses handles of this process.
func (d *device) OpenIPC(h [64]byte) (gpu.Memory, error) {
	if !d.b.lib.Has(cuIpcOpenMemHandle) {
		return nil, base.Errorf("open", "shared memory", base.ErrNotSupported, "the driver has no cuIpcOpenMemHandle_v2")
	}
	f := dl.NewFrame()
	defer f.Done()
	p := f.Word(0)
	err := d.use(func() error {
		r := d.b.lib.CallBlock(cuIpcOpenMemHandle, p.Addr, &h, ipcLazyPeerAccess)
		if code := int(int32(r)); code != 0 {
			return d.b.fail("open", "shared memory", cuIpcOpenMemHandle, code)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	m := &memory{d: d, p: gpu.Ptr(p.Uint64()), free: cuIpcCloseMemHandle}
	a, err := d.b.Attributes(m.p)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	m.n = a.Size
	return m, nil
}
