// Package cuda is the gpu.Backend over NVIDIA's driver library, libcuda.so.1,
// through the CUDA Driver API. The library is loaded by Open and never before;
// without it, or without a GPU, Open answers ErrNotSupported.
//
// Contexts belong to threads in CUDA and goroutines move between threads, so
// that every group of calls locks its thread, pushes the context it needs and
// pops it again: the pointer's own or the stream's own, else the primary one. A
// context of the caller is never replaced (D-24). No context is ever created
// besides the primary one.
//
// While any stream of a GPU waits for a cell, cuMemFree, cuMemFreeHost,
// cuMemHostUnregister, cuModuleLoadData and, with many streams, cuStreamCreate
// can hang until it goes on (measured). So the thread that lets streams go on
// makes only copies, ticks and cell stores, streams exist before any waits, and
// the kernels are loaded with the context.
package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
)

// DefaultLibrary is the name under which the driver installs its library.
const DefaultLibrary = "libcuda.so.1"

// maxDevices bounds the GPUs of one machine.
const maxDevices = 256

// closeWait bounds Close of a stream.
const closeWait = 10 * time.Second

// Options of Open.
type Options struct {
	// Library is the driver library to load; "" means DefaultLibrary.
	Library string
}

// Error is a failure that CUDA reported. errors.As finds it inside the errors
// of this package.
type Error struct {
	Code int    // CUresult
	Name string // "CUDA_ERROR_OUT_OF_MEMORY"
	Call string // the function that reported it
}

// Error gives name, number and function.
func (e *Error) Error() string { return fmt.Sprintf("%s (%d) from %s", e.Name, e.Code, e.Call) }

// Backend is the loaded driver. Safe for concurrent use.
type Backend struct {
	link    *dl.Linker
	lib     *dl.Library
	version int // of the driver: 1000*major + 10*minor
	devs    []gpu.Device

	closeWait time.Duration // how long Close of a stream waits for its work
}

// Available tells whether a GPU answers. It loads the library.
func Available() bool {
	b, err := Open(Options{})
	return err == nil && len(b.devs) > 0
}

// Open loads the driver library and lists the GPUs (cuInit, cuDeviceGetCount).
// It makes no context. ErrNotSupported without the library, without a GPU, and
// in builds with the tag nogpu.
func Open(o Options) (*Backend, error) {
	link, err := linker()
	if err != nil {
		return nil, err
	}
	if o.Library == "" {
		o.Library = DefaultLibrary
	}
	lib, err := dl.Open(link, table(), o.Library)
	if err != nil {
		return nil, base.WithHint(err, "install NVIDIA's driver, or go on without a GPU")
	}
	b := &Backend{link: link, lib: lib, closeWait: closeWait}
	f := dl.NewFrame()
	defer f.Done()
	version, count := f.Word(0), f.Word(0)
	for _, err := range []error{
		b.do("open", lib.Name(), cuInit, 0),
		b.do("open", lib.Name(), cuDriverGetVersion, version.Addr),
		b.do("open", lib.Name(), cuDeviceGetCount, count.Addr),
	} {
		if err != nil {
			return nil, err
		}
	}
	b.version = int(version.Uint32())
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

// Load opens another C library of the vendor with this package's dynamic linker.
// ErrNotSupported where it cannot be loaded or lacks a function, and in builds with the
// tag nogpu.
func Load(symbols []dl.Symbol, names ...string) (*dl.Library, error) {
	link, err := linker()
	if err != nil {
		return nil, err
	}
	return dl.Open(link, symbols, names...)
}

// Use runs fn on a locked thread in the primary context of GPU index: for calls of
// other libraries of the vendor.
func (b *Backend) Use(index int, fn func() error) error {
	if index < 0 || index >= len(b.devs) {
		return base.Errorf("use", "gpu", base.ErrNotFound, "number %d of %d", index, len(b.devs))
	}
	return b.devs[index].(*device).use(fn)
}

// Name is "cuda".
func (b *Backend) Name() string { return "cuda" }

// Version is the CUDA version that the driver supports: 1000*major + 10*minor.
func (b *Backend) Version() int { return b.version }

// Devices lists the GPUs in CUDA's order.
func (b *Backend) Devices() []gpu.Device { return b.devs }

// Close unloads the kernels and releases the primary contexts that were used.
// The library itself stays loaded: its threads cannot be ended.
func (b *Backend) Close() error {
	var errs []error
	for _, d := range b.devs {
		errs = append(errs, d.(*device).close())
	}
	return errors.Join(errs...)
}

// code calls a function of the driver and gives its CUresult.
func (b *Backend) code(sym int, args ...uintptr) int { return int(int32(b.lib.Call(sym, args...))) }

// do calls a function of the driver. op and object begin the text of the error.
func (b *Backend) do(op, object string, sym int, args ...uintptr) error {
	if !b.lib.Has(sym) {
		return base.Errorf(op, object, base.ErrNotSupported, "the driver has no %s", b.lib.Symbol(sym))
	}
	if code := b.code(sym, args...); code != 0 {
		return b.fail(op, object, sym, code)
	}
	return nil
}

// fail makes the error of a CUresult.
func (b *Backend) fail(op, object string, sym, code int) error {
	f := dl.NewFrame()
	defer f.Done()
	text := f.Word(0)
	name := "CUDA_ERROR"
	if b.code(cuGetErrorName, uintptr(code), text.Addr) == 0 {
		name = dl.Text(uintptr(text.Uint64()))
	}
	err := &Error{code, name, b.lib.Symbol(sym)}
	switch code {
	case errOutOfMemory:
		return base.Errorf(op, object, base.ErrNoSpace, "%w", err)
	case errInvalidValue, errInvalidHandle:
		return base.Errorf(op, object, base.ErrInvalid, "%w", err)
	case errNotSupported, errNotPermitted, errNoDevice, errNotFound:
		return base.Errorf(op, object, base.ErrNotSupported, "%w", err)
	case errIllegalAddress:
		return base.Errorf(op, object, base.ErrOutOfRange, "%w", err)
	}
	return base.Wrap(op, object, err)
}

// with runs fn on a locked thread with context ctx on top, and restores what
// was there before.
func (b *Backend) with(ctx uintptr, fn func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if code := b.code(cuCtxPushCurrent, ctx); code != 0 {
		return b.fail("use", "context", cuCtxPushCurrent, code)
	}
	err := fn()
	f := dl.NewFrame()
	defer f.Done()
	if code := b.code(cuCtxPopCurrent, f.Word(0).Addr); code != 0 && err == nil {
		err = b.fail("leave", "context", cuCtxPopCurrent, code)
	}
	return err
}
