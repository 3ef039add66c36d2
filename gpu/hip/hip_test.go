//go:build !nogpu

package hip

import (
	"bytes"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestTableIsComplete(t *testing.T) {
	all := table()
	if len(all) != symbolCount {
		t.Fatalf("%d symbols, %d constants", len(all), symbolCount)
	}
	for i, s := range all {
		if s.Name == "" {
			t.Errorf("constant %d has no symbol", i)
		}
	}
}

func TestDiscovery(t *testing.T) {
	f := newFake(t)
	b := f.open()
	in := b.Devices()[1].Info()
	want := gpu.Info{Backend: "hip", Index: 1, Name: "Fake Instinct 1", PCI: "0000:2b:00.0", Bytes: 1 << 34,
		DMABuf: true, MemOps: true}
	copy(want.UUID[:], bytes.Repeat([]byte{0xb1}, 16))
	if len(b.Devices()) != 2 || in != want || b.Name() != "hip" || b.Devices()[1].Warm() != nil {
		t.Errorf("%+v", in)
	}
}

func TestOpenWithoutGPU(t *testing.T) {
	_, err := Open(Options{Library: "libamdhip64-of-nobody.so"})
	if !errors.Is(err, base.ErrNotSupported) || !strings.Contains(err.Error(), "go on without a GPU") {
		t.Error(err)
	}
	f := newFake(t)
	f.set(kCount, 0)
	_, err = Open(Options{Library: f.path})
	var c *Error
	if !errors.Is(err, base.ErrNotSupported) || !errors.As(err, &c) || c.Code != 100 || c.Name != "hipErrorNoDevice" {
		t.Error(err)
	}
}

func TestCopiesAndTicks(t *testing.T) {
	f := newFake(t)
	d := f.open().Devices()[1]
	m, h, s := use(t, d, 8192)
	for i := range 1000 {
		h.Bytes()[i] = byte(i * 3)
	}
	for round, memOps := range []uintptr{1, 0} { // then the GPU turns out not to store cells
		f.set(kMemOps, memOps)
		clear(h.Bytes()[2000:3000])
		err := errors.Join(s.Copy(gpu.Copy{Dev: m.Ptr() + 5, Host: h.Bytes()[:1000]}, gpu.Copy{Dev: m.Ptr()},
			gpu.Copy{Dev: m.Ptr() + 5, Host: h.Bytes()[2000:3000], ToHost: true}), finish(t, s))
		if err != nil || s.Ticked() != uint64(round+1) || !bytes.Equal(h.Bytes()[:1000], h.Bytes()[2000:3000]) {
			t.Errorf("round %d: %v, %d ticks, or other bytes", round, err, s.Ticked())
		}
	}
	if calls := f.calls(); !strings.Contains(calls, "hipLaunchHostFunc") {
		t.Errorf("no host function: %s", calls)
	}
	for _, err := range []error{s.Move(h.Ptr(), 1), s.Sum(h.Ptr(), 1), s.Watch(h.Ptr())} {
		if !errors.Is(err, base.ErrNotSupported) || !strings.Contains(err.Error(), "HIP") {
			t.Error(err)
		}
	}
	if _, err := gpu.NewSummer(d); !errors.Is(err, base.ErrNotSupported) {
		t.Error(err)
	}
}

func TestErrorsCarryNameAndNumber(t *testing.T) {
	f := newFake(t)
	d := f.open().Devices()[0]
	m, h, s := use(t, d, 4096)
	for _, c := range []struct {
		fn   string
		code int
		call func() error
		want error
		text string
	}{
		{"hipMalloc", 2, func() error { _, err := d.Alloc(1); return err }, base.ErrNoSpace,
			"allocate gpu 0: no space: hipErrorOutOfMemory (2) from hipMalloc"},
		{"hipHostMalloc", 2, func() error { _, err := d.AllocHost(1); return err }, base.ErrNoSpace, "(2) from hipHostMalloc"},
		{"hipMemcpyDtoHAsync", 1, func() error { return s.Copy(gpu.Copy{Dev: m.Ptr(), Host: h.Bytes(), ToHost: true}) },
			base.ErrInvalid, "hipErrorInvalidValue (1)"},
		{"hipStreamWaitValue64", 801, func() error { return s.AwaitCell(h.Ptr(), 1) }, base.ErrNotSupported, "(801)"},
		{"hipEventCreateWithFlags", 999, func() error { _, err := d.NewEvent(); return err }, nil, "hipErrorUnknown (999)"},
		{"hipGetDevice", 100, func() error { _, err := d.Alloc(1); return err }, base.ErrNotSupported, "(100) from hipGetDevice"},
	} {
		f.fail(c.fn, 0, c.code)
		err := c.call()
		var e *Error
		if err == nil || !errors.As(err, &e) || e.Code != c.code || e.Call != c.fn || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", c.fn, err)
		}
		if c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.fn, err, c.want)
		}
	}
	for _, n := range []int64{0, -1} {
		_, e1 := d.Alloc(n)
		_, e2 := d.AllocHost(n)
		if !errors.Is(e1, base.ErrInvalid) || !errors.Is(e2, base.ErrInvalid) {
			t.Error(e1, e2)
		}
	}
}

// TestD24CurrentDevice: goroutines move between threads and every call has its
// device; the caller's current device stays what it was.
func TestD24CurrentDevice(t *testing.T) {
	f := newFake(t)
	b := f.open()
	var wg sync.WaitGroup
	for g := range 64 {
		wg.Go(func() {
			for range 20 {
				m, err := b.Devices()[g%2].Alloc(64)
				if err != nil {
					t.Error(err)
					return
				}
				runtime.Gosched()
				if a, err := b.Attributes(m.Ptr()); err != nil || a.Device != g%2 {
					t.Error(a, err)
				}
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f.lib.Call(fakeUse, 1)
	m, err := b.Devices()[0].Alloc(64)
	if err != nil || m.Close() != nil || f.lib.Call(fakeCurrent) != 1 {
		t.Errorf("the caller's device became %d, %v", f.lib.Call(fakeCurrent), err)
	}
	f.fail("hipMalloc", 0, 2)
	if _, err := b.Devices()[0].Alloc(64); err == nil || f.lib.Call(fakeCurrent) != 1 {
		t.Errorf("after an error it became %d", f.lib.Call(fakeCurrent))
	}
	f.lib.Call(fakeUse, 0)
}

func TestAttributesAndRegistration(t *testing.T) {
	f := newFake(t)
	b := f.open()
	d := b.Devices()[1]
	m, h, _ := use(t, d, 65536)
	managed := gpu.Ptr(f.lib.Call(fakeAlloc, 4096, 3, 0))
	defer f.lib.Call(fakeFree, uintptr(managed))
	for _, c := range []struct {
		p    gpu.Ptr
		want gpu.Attributes
	}{
		{m.Ptr() + 77, gpu.Attributes{Kind: gpu.KindDevice, Device: 1, Base: m.Ptr(), Size: 65536, Exportable: true}},
		{h.Ptr(), gpu.Attributes{Kind: gpu.KindHost, Device: -1, Base: h.Ptr(), Size: 65536}},
		{managed, gpu.Attributes{Kind: gpu.KindManaged, Base: managed, Size: 4096}},
		{4096, gpu.Attributes{Device: -1}},
	} {
		a, err := b.Attributes(c.p)
		if again, _ := b.Attributes(c.p); again != a { // D-04: managed memory stays that, wherever its page is
			t.Errorf("%s: %+v, then %+v", c.p, a, again)
		}
		a.BufferID = 0
		if err != nil || a != c.want {
			t.Errorf("%s: %+v, %v", c.p, a, err)
		}
	}
	tab := gpu.NewTable(b, gpu.TableOptions{Export: true})
	for p, want := range map[gpu.Ptr]string{m.Ptr(): "", m.Ptr() + 8191: gpu.ReasonUnaligned, managed: gpu.ReasonManaged} {
		r, err := tab.Register(p, 4096)
		if err != nil {
			t.Fatal(err)
		}
		if _, why := r.Direct(); why != want || r.Check() != nil {
			t.Errorf("%s: %q, want %q", p, why, want)
		}
		r.Close()
	}
	f.fail("hipPointerSetAttribute", 0, 801)
	r, err := tab.Register(m.Ptr(), 4096)
	if err != nil {
		t.Fatal(err)
	}
	if _, why := r.Direct(); why != gpu.ReasonNoSync || r.Err() == nil {
		t.Error(why, r.Err())
	}
	r.Close()
	fd, err := d.Export(m.Ptr(), 4096)
	if err != nil {
		t.Fatal(err)
	}
	unix.NewFD(fd, "dma-buf").Close()
	if _, err := d.Export(m.Ptr(), 100); !errors.Is(err, base.ErrMisaligned) {
		t.Error(err)
	}
}

func TestEventsCallsAndForeignStreams(t *testing.T) {
	f := newFake(t)
	d := f.open().Devices()[1]
	_, h, s := use(t, d, 4096)
	ev, err := d.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	done, err := ev.Done()
	err = errors.Join(err, s.Record(ev), s.Await(ev), s.WriteCell(h.Ptr()+8, 9), s.AwaitCell(h.Ptr()+8, 9), ev.Close(), ev.Close())
	if err != nil || !done {
		t.Error(err, done)
	}
	var ran atomic.Int64
	for range 200 {
		if err := s.Call(func() { ran.Add(1) }); err != nil {
			t.Fatal(err)
		}
	}
	if ran.Load() != 200 || dl.Cell(h.Bytes(), 8).Load() != 9 {
		t.Errorf("%d calls", ran.Load())
	}
	for _, handle := range []uintptr{0, 1, 2, 4711} {
		w, err := d.WrapStream(handle)
		if err != nil || w.Handle() != handle {
			t.Fatal(handle, err)
		}
		f.set(kCapturing, 1)
		on, err := w.Capturing()
		f.set(kCapturing, 0)
		off, err2 := w.Capturing()
		if errors.Join(err, err2, w.Close()) != nil || !on || off {
			t.Error(on, off, err, err2)
		}
	}
	if strings.Contains(f.calls(), "hipStreamDestroy") {
		t.Error("a stream of the caller was ended")
	}
}

func TestPinHostAndIPC(t *testing.T) {
	f := newFake(t)
	d := f.open().Devices()[0]
	m, _, s := use(t, d, 4096)
	mem, err := dma.Alloc(4096, "hip test")
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Free()
	h, err := d.PinHost(mem.Bytes(), true)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Copy(gpu.Copy{Dev: m.Ptr(), Host: mem.Bytes()}), finish(t, s), h.Close()); err != nil {
		t.Error(err)
	}
	handle, err := d.IPCHandle(m.Ptr())
	if err != nil {
		t.Fatal(err)
	}
	o, err := d.OpenIPC(handle)
	if err != nil || o.Ptr() != m.Ptr() || o.Size() != 4096 || o.Close() != nil {
		t.Errorf("%+v, %v", o, err)
	}
	handle[40]++
	if _, err := d.OpenIPC(handle); !errors.Is(err, base.ErrInvalid) {
		t.Errorf("a damaged handle: %v", err)
	}
	if _, err := d.IPCHandle(m.Ptr() + 1); !errors.Is(err, base.ErrInvalid) {
		t.Error(err)
	}
}

// TestOldRuntime says by name what is missing, and still copies and ticks.
func TestOldRuntime(t *testing.T) {
	f := newFake(t, "-DFAKE_OLD")
	d := f.open().Devices()[0]
	m, h, s := use(t, d, 4096)
	if in := d.Info(); in.MemOps || in.DMABuf {
		t.Errorf("%+v", in)
	}
	if err := errors.Join(s.Copy(gpu.Copy{Dev: m.Ptr(), Host: h.Bytes()}), finish(t, s)); err != nil {
		t.Fatal(err)
	}
	_, e1 := d.Export(m.Ptr(), 4096)
	_, e2 := d.IPCHandle(m.Ptr())
	_, e3 := d.OpenIPC([64]byte{})
	_, e4 := s.Capturing()
	for want, err := range map[string]error{"hipMemGetHandleForAddressRange": e1, "hipIpcGetMemHandle": e2, "hipIpcOpenMemHandle": e3,
		"hipStreamIsCapturing": e4, "hipStreamWriteValue64": s.WriteCell(h.Ptr(), 1), "hipStreamWaitValue64": s.AwaitCell(h.Ptr(), 1),
		"hipPointerSetAttribute": d.SyncMemOps(m.Ptr()), "flush": d.FlushWrites()} {
		if !errors.Is(err, base.ErrNotSupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestCloseOfAWaitingStream: the wait has an end, and the stream another chance.
func TestCloseOfAWaitingStream(t *testing.T) {
	f := newFake(t)
	b := f.open()
	b.closeWait = 5 * time.Millisecond
	s, err := b.Devices()[0].NewStream()
	if err != nil {
		t.Fatal(err)
	}
	f.set(kStuck, 1)
	if err := s.Close(); !errors.Is(err, base.ErrTimeout) {
		t.Errorf("%v", err)
	}
	if strings.Contains(f.calls(), "StreamDestroy") {
		t.Error("a stream with work was ended")
	}
	f.set(kStuck, 0)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(f.calls(), "StreamDestroy") {
		t.Error("it was not ended")
	}
}
