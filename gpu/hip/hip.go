// Package hip is the gpu.Backend over AMD's runtime, libamdhip64.so. It mirrors
// gpu/cuda; the library is loaded by Open and never before. Where HIP has a
// current device a thread and no contexts, every group of calls locks its
// thread, sets the device and restores the caller's.
//
// It has been tested against a fake runtime library only. So it claims little:
// the write ordering is "none" and there is no flush, which keeps direct reads
// off; there are no kernels; exports need hipMemGetHandleForAddressRange.
package hip

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/native"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
)

// defaultLibraries are the names under which ROCm installs the runtime.
var defaultLibraries = []string{"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"}

// maxDevices bounds the GPUs of one machine.
const maxDevices = 256

// closeWait bounds Close of a stream.
const closeWait = 10 * time.Second

// Options of Open.
type Options struct {
	// Library is the runtime library to load; "" tries the names of ROCm 7 and 6.
	Library string
}

// Error is a failure that HIP reported. errors.As finds it inside the errors of
// this package.
type Error struct {
	Code int    // hipError_t
	Name string // "hipErrorOutOfMemory"
	Call string // the function that reported it
}

// Error gives name, number and function.
func (e *Error) Error() string { return fmt.Sprintf("%s (%d) from %s", e.Name, e.Code, e.Call) }

// Backend is the loaded runtime. Safe for concurrent use.
type Backend struct {
	link *dl.Linker
	lib  *dl.Library
	devs []gpu.Device

	closeWait time.Duration // how long Close of a stream waits for its work
}

// Available tells whether a GPU answers. It loads the library.
func Available() bool {
	b, err := Open(Options{})
	return err == nil && len(b.devs) > 0
}

// Open loads the runtime and lists the GPUs (hipInit, hipGetDeviceCount).
// ErrNotSupported without the library, without a GPU, and in builds with the
// tag nogpu.
func Open(o Options) (*Backend, error) {
	link, err := linker()
	if err != nil {
		return nil, err
	}
	names := defaultLibraries
	if o.Library != "" {
		names = []string{o.Library}
	}
	lib, err := dl.Open(link, table(), names...)
	if err != nil {
		return nil, base.WithHint(err, "install ROCm's runtime, or go on without a GPU")
	}
	b := &Backend{link: link, lib: lib, closeWait: closeWait}
	f := dl.NewFrame()
	defer f.Done()
	count := f.Word(0)
	for _, err := range []error{
		b.do("open", lib.Name(), hipInit, 0),
		b.do("open", lib.Name(), hipGetDeviceCount, count.Addr),
	} {
		if err != nil {
			return nil, err
		}
	}
	if count.Uint32() == 0 || count.Uint32() > maxDevices {
		return nil, base.Errorf("open", lib.Name(), base.ErrNotSupported, "%d GPUs", count.Uint32())
	}
	for i := range int(count.Uint32()) {
		d, err := b.discover(i)
		if err != nil {
			return nil, err
		}
		b.devs = append(b.devs, d)
	}
	return b, nil
}

// Name is "hip".
func (b *Backend) Name() string { return "hip" }

// Devices lists the GPUs in HIP's order.
func (b *Backend) Devices() []gpu.Device { return b.devs }

// Close frees the pinned cells. HIP's contexts stay: they are the process's.
func (b *Backend) Close() error {
	var errs []error
	for _, d := range b.devs {
		errs = append(errs, d.(*device).CloseCells())
	}
	return errors.Join(errs...)
}

func (b *Backend) code(sym int, args ...uintptr) int { return int(int32(b.lib.Call(sym, args...))) }

// do calls a function of the runtime. op and object begin the text of the error.
func (b *Backend) do(op, object string, sym int, args ...uintptr) error {
	if !b.lib.Has(sym) {
		return base.Errorf(op, object, base.ErrNotSupported, "the runtime has no %s", b.lib.Symbol(sym))
	}
	if code := b.code(sym, args...); code != 0 {
		return b.fail(op, object, sym, code)
	}
	return nil
}

// fail makes the error of a hipError_t.
func (b *Backend) fail(op, object string, sym, code int) error {
	err := &Error{code, dl.Text(b.lib.Call(hipGetErrorName, uintptr(code))), b.lib.Symbol(sym)}
	switch code {
	case errOutOfMemory:
		return base.Errorf(op, object, base.ErrNoSpace, "%w", err)
	case errInvalidValue, errInvalidHandle:
		return base.Errorf(op, object, base.ErrInvalid, "%w", err)
	case errNotSupported, errNoDevice, errNotFound:
		return base.Errorf(op, object, base.ErrNotSupported, "%w", err)
	case errIllegalAddress:
		return base.Errorf(op, object, base.ErrOutOfRange, "%w", err)
	}
	return base.Wrap(op, object, err)
}

// device is one GPU.
type device struct {
	*native.GPU
	b    *Backend
	info gpu.Info
}

// calls are what memory is made and ended by.
var calls = native.Calls{Alloc: hipMalloc, Free: hipFree, AllocHost: hipHostMalloc, FreeHost: hipHostFree,
	PinHost: hipHostRegister, UnpinHost: hipHostUnregister, HostPtr: hipHostGetDevicePointer}

func (b *Backend) discover(i int) (*device, error) {
	d := &device{b: b}
	d.GPU = &native.GPU{Object: fmt.Sprintf("gpu %d", i), Calls: calls, Use: d.use, Do: b.do}
	f := dl.NewFrame()
	defer f.Done()
	total := f.Word(0)
	_, name := f.Bytes(128)
	if err := b.do("open", d.Object, hipDeviceGetName, name, 128, uintptr(i)); err != nil {
		return nil, err
	}
	if err := b.do("open", d.Object, hipDeviceTotalMem, total.Addr, uintptr(i)); err != nil {
		return nil, err
	}
	d.info = gpu.Info{Backend: "hip", Index: i, Name: dl.Text(name), Bytes: int64(total.Uint64()),
		Ordering: gpu.OrderingNone, DMABuf: b.lib.Has(hipMemGetHandleForAddressRange),
		MemOps: b.lib.Has(hipStreamWriteValue64) && b.lib.Has(hipStreamWaitValue64)}
	if uuid, addr := f.Bytes(16); b.lib.Has(hipDeviceGetUUID) && b.code(hipDeviceGetUUID, addr, uintptr(i)) == 0 {
		copy(d.info.UUID[:], uuid)
	}
	if _, addr := f.Bytes(32); b.lib.Has(hipDeviceGetPCIBusID) && b.code(hipDeviceGetPCIBusID, addr, 32, uintptr(i)) == 0 {
		d.info.PCI = strings.ToLower(dl.Text(addr))
	}
	return d, nil
}

func (d *device) Info() gpu.Info { return d.info }
func (d *device) Warm() error    { return d.use(func() error { return nil }) }

// use runs fn on a locked thread whose current device is d, and restores the
// device that was current before (hipGetDevice, hipSetDevice).
func (d *device) use(fn func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f := dl.NewFrame()
	defer f.Done()
	old := f.Word(0)
	if err := d.b.do("use", d.Object, hipGetDevice, old.Addr); err != nil {
		return err
	}
	index := uintptr(d.info.Index)
	if before := uintptr(old.Uint32()); before != index {
		if err := d.b.do("use", d.Object, hipSetDevice, index); err != nil {
			return err
		}
		defer d.b.code(hipSetDevice, before) // it was current, so it can be again
	}
	return fn()
}
