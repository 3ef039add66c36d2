package cuda

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/native"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
)

// device is one GPU. Its primary context is retained by the first call that
// needs it.
type device struct {
	*native.GPU
	b      *Backend
	handle uintptr // CUdevice
	info   gpu.Info

	mu     sync.Mutex
	ctx    uintptr // the primary context, 0 before the first use
	module uintptr
	move   uintptr // CUfunction of the move kernel, 0 if it could not be loaded
	sum    uintptr // of the checksum kernel
	watch  uintptr // of the one that waits
	none   error   // why not
	blocks int     // of the checksum kernel at once
}

// calls are what memory is made and ended by.
var calls = native.Calls{Alloc: cuMemAlloc, Free: cuMemFree, AllocHost: cuMemHostAlloc, FreeHost: cuMemFreeHost,
	PinHost: cuMemHostRegister, UnpinHost: cuMemHostUnregister, HostPtr: cuMemHostGetDevicePointer}

// discover reads what the driver says about GPU i, without a context.
func (b *Backend) discover(i int) (*device, error) {
	d := &device{b: b}
	d.GPU = &native.GPU{Object: fmt.Sprintf("gpu %d", i), Calls: calls, Use: d.use, Do: b.do}
	f := dl.NewFrame()
	defer f.Done()
	handle, total := f.Word(0), f.Word(0)
	if err := b.do("open", d.Object, cuDeviceGet, handle.Addr, uintptr(i)); err != nil {
		return nil, err
	}
	d.handle = uintptr(handle.Uint32())
	_, nameAddr := f.Bytes(128)
	if err := b.do("open", d.Object, cuDeviceGetName, nameAddr, 128, d.handle); err != nil {
		return nil, err
	}
	if err := b.do("open", d.Object, cuDeviceTotalMem, total.Addr, d.handle); err != nil {
		return nil, err
	}
	d.info = gpu.Info{Backend: "cuda", Index: i, Name: dl.Text(nameAddr), Bytes: int64(total.Uint64()),
		Ordering: gpu.WriteOrdering(d.attribute(attrWriteOrdering)),
		CanFlush: d.attribute(attrFlushOptions)&1 != 0 && b.lib.Has(cuFlushGPUDirectRDMAWrites),
		DMABuf:   d.attribute(attrDMABuf) != 0 && b.lib.Has(cuMemGetHandleForAddressRange),
		MemOps:   d.attribute(attrMemOps64) != 0 && b.lib.Has(cuStreamWriteValue64) && b.lib.Has(cuStreamWaitValue64),
		Mover:    10*d.attribute(attrMajor)+d.attribute(attrMinor) >= kernelCapability && b.lib.Has(cuLaunchKernel),
	}
	d.blocks = min(gpu.MaxMoves, sumBlocks*max(1, d.attribute(attrProcessors)))
	if uuid, addr := f.Bytes(16); b.lib.Has(cuDeviceGetUuid) && b.code(cuDeviceGetUuid, addr, d.handle) == 0 {
		copy(d.info.UUID[:], uuid)
	}
	if _, addr := f.Bytes(32); b.lib.Has(cuDeviceGetPCIBusID) && b.code(cuDeviceGetPCIBusID, addr, 32, d.handle) == 0 {
		d.info.PCI = strings.ToLower(dl.Text(addr))
	}
	return d, nil
}

// attribute is 0 when the driver does not know it.
func (d *device) attribute(a uintptr) int {
	f := dl.NewFrame()
	defer f.Done()
	v := f.Word(0)
	if d.b.code(cuDeviceGetAttribute, v.Addr, a, d.handle) != 0 {
		return 0
	}
	return int(int32(v.Uint32()))
}

func (d *device) Info() gpu.Info { return d.info }

// primary gives the primary context and retains it on first use
// (cuDevicePrimaryCtxRetain). D-06: it works when nobody used CUDA before.
func (d *device) primary() (uintptr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx != 0 {
		return d.ctx, nil
	}
	f := dl.NewFrame()
	defer f.Done()
	ctx := f.Word(0)
	if err := d.b.do("use", d.Object, cuDevicePrimaryCtxRetain, ctx.Addr, d.handle); err != nil {
		return 0, err
	}
	d.ctx = uintptr(ctx.Uint64())
	d.none = d.b.with(d.ctx, d.loadKernels) // Move, Sum and Watch answer with the reason
	return d.ctx, nil
}

func (d *device) Warm() error {
	_, err := d.primary()
	return err
}

// use runs fn in the primary context.
func (d *device) use(fn func() error) error {
	ctx, err := d.primary()
	if err != nil {
		return err
	}
	return d.b.with(ctx, fn)
}

// useFor runs fn in the context that p belongs to, else in the primary one.
func (d *device) useFor(p gpu.Ptr, fn func() error) error {
	f := dl.NewFrame()
	defer f.Done()
	ctx := f.Word(0)
	if d.b.code(cuPointerGetAttribute, ctx.Addr, ptrContext, uintptr(p)) == 0 && ctx.Uint64() != 0 {
		return d.b.with(uintptr(ctx.Uint64()), fn)
	}
	return d.use(fn)
}

func (d *device) close() error {
	d.mu.Lock()
	ctx := d.ctx
	d.mu.Unlock()
	if ctx == 0 {
		return nil
	}
	err := d.CloseCells()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.module != 0 {
		module := d.module
		unload := func() error { return d.b.do("unload", "kernels", cuModuleUnload, module) }
		err = errors.Join(err, d.b.with(d.ctx, unload))
	}
	err = errors.Join(err, d.b.do("close", d.Object, cuDevicePrimaryCtxRelease, d.handle))
	d.ctx, d.module, d.move, d.sum, d.watch = 0, 0, 0, 0, 0
	return err
}

// Export is cuMemGetHandleForAddressRange with a dma-buf. The PCIe mapping flag
// is not set: drivers refuse it where BAR mappings are the only kind.
func (d *device) Export(p gpu.Ptr, n int64) (int, error) {
	return native.Export(d.b, p, n, func(fd uintptr) error {
		return d.useFor(p, func() error {
			return d.b.do("export", p.String(), cuMemGetHandleForAddressRange, fd, uintptr(p), uintptr(n), handleDMABuf, 0)
		})
	})
}

// SyncMemOps is cuPointerSetAttribute(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS).
func (d *device) SyncMemOps(p gpu.Ptr) error {
	f := dl.NewFrame()
	defer f.Done()
	on := f.Word(1)
	return d.useFor(p, func() error {
		return d.b.do("order copies of", p.String(), cuPointerSetAttribute, on.Addr, ptrSyncMemOps, uintptr(p))
	})
}

// FlushWrites is cuFlushGPUDirectRDMAWrites for the owner's context.
func (d *device) FlushWrites() error {
	if !d.info.CanFlush {
		return base.Errorf("flush", d.Object, base.ErrNotSupported, "the host cannot flush writes of other devices")
	}
	return d.use(func() error {
		return d.b.do("flush", d.Object, cuFlushGPUDirectRDMAWrites, flushTargetCtx, flushToOwner)
	})
}
