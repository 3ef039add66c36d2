package cuda

import (
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
	return d.Mapped(gpu.Ptr(p.Uint64()), cuIpcCloseMemHandle, d.b.Attributes)
}
