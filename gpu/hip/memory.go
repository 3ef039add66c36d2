package hip

import (
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/native"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
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

// Export is hipMemGetHandleForAddressRange with a dma-buf.
func (d *device) Export(p gpu.Ptr, n int64) (int, error) {
	return native.Export(d.b, p, n, func(fd uintptr) error {
		return d.use(func() error {
			return d.b.do("export", p.String(), hipMemGetHandleForAddressRange, fd, uintptr(p), uintptr(n), handleDMABuf, 0)
		})
	})
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
	return base.Errorf("flush", d.Object, base.ErrNotSupported, "HIP has no flush of writes of other devices")
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
	return d.Mapped(gpu.Ptr(p.Uint64()), hipIpcCloseMemHandle, d.b.Attributes)
}
