//go:build !nogpu

package cuda

import (
	"bytes"
	"errors"
	"flag"
	"hash/crc32"
	"os"
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

func TestMain(m *testing.M) {
	flag.Parse()
	if *realGPU {
		os.Exit(m.Run()) // the driver keeps descriptors and threads for ever
	}
	testenv.Main(m)
}

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
	f.set(kDMABuf, 0)
	b := f.open()
	in := b.Devices()[1].Info()
	want := gpu.Info{Backend: "cuda", Index: 1, Name: "Fake GPU 1", PCI: "0000:1b:00.0", Bytes: 1 << 33,
		Ordering: gpu.OrderingOwner, CanFlush: true, MemOps: true, Mover: true}
	copy(want.UUID[:], bytes.Repeat([]byte{0xa1}, 16))
	if len(b.Devices()) != 2 || in != want || b.Version() != 13000 || b.Name() != "cuda" {
		t.Errorf("%+v", in)
	}
	if calls := f.calls(); strings.Contains(calls, "Ctx") {
		t.Errorf("discovery made a context: %s", calls)
	}
}

func TestOpenWithoutGPU(t *testing.T) {
	_, err := Open(Options{Library: "libcuda-of-nobody.so.9"})
	if !errors.Is(err, base.ErrNotSupported) || !strings.Contains(err.Error(), "libcuda-of-nobody.so.9") ||
		!strings.Contains(err.Error(), "go on without a GPU") {
		t.Error(err)
	}
	f := newFake(t)
	f.set(kCount, 0)
	_, err = Open(Options{Library: f.path})
	var c *Error
	if !errors.Is(err, base.ErrNotSupported) || !errors.As(err, &c) || c.Code != 100 || c.Name != "CUDA_ERROR_NO_DEVICE" {
		t.Error(err)
	}
}

func TestCopiesTicksAndMoves(t *testing.T) {
	f := newFake(t)
	d := f.open().Devices()[1]
	m, h, s := use(t, d, 8192)
	for i := range 1000 {
		h.Bytes()[i] = byte(i * 3)
	}
	err := s.Copy(gpu.Copy{Dev: m.Ptr() + 5, Host: h.Bytes()[:1000]}, gpu.Copy{Dev: m.Ptr()},
		gpu.Copy{Dev: m.Ptr() + 5, Host: h.Bytes()[2000:3000], ToHost: true})
	if err != nil {
		t.Fatal(err)
	}
	gpu.PutMove(h.Bytes()[4096:], 0, gpu.Move{Src: m.Ptr() + 5, Dst: m.Ptr() + 6000, N: 500})
	gpu.PutMove(h.Bytes()[4096:], 1, gpu.Move{Src: m.Ptr() + 505, Dst: h.Ptr() + 7000, N: 500})
	if err := errors.Join(s.Move(h.Ptr()+4096, 2), s.Move(0, 0), finish(t, s), finish(t, s)); err != nil {
		t.Fatal(err)
	}
	if s.Ticked() != 2 || !bytes.Equal(h.Bytes()[:1000], h.Bytes()[2000:3000]) || !bytes.Equal(h.Bytes()[500:1000], h.Bytes()[7000:7500]) {
		t.Errorf("%d ticks, or other bytes", s.Ticked())
	}
	if err := s.Move(h.Ptr(), gpu.MaxMoves+1); !errors.Is(err, base.ErrInvalid) {
		t.Error(err)
	}
	calls := f.calls()
	if !strings.Contains(calls, "cuModuleLoadData cuModuleGetFunction cuFuncLoad cuModuleGetFunction cuFuncLoad") ||
		strings.Index(calls, "cuModuleLoadData") > strings.Index(calls, "cuStreamCreate") {
		t.Errorf("kernels must be loaded before the first stream: %s", calls)
	}
}

// TestChecksums: the table goes to the kernel and comes back, and a fault in it, or
// a kernel that cannot be loaded, is told.
func TestChecksums(t *testing.T) {
	f := newFake(t)
	d := f.open().Devices()[1]
	m, h, s := use(t, d, 300<<10)
	rng := testenv.Seed(t)
	for i := range h.Bytes() {
		h.Bytes()[i] = byte(rng.Uint32())
	}
	if err := errors.Join(s.Copy(gpu.Copy{Dev: m.Ptr(), Host: h.Bytes()}), finish(t, s)); err != nil {
		t.Fatal(err)
	}
	sum, err := gpu.NewSummer(d)
	if err != nil {
		t.Fatal(err)
	}
	defer sum.Close()
	var items []gpu.SumItem
	for n := range int64(100) {
		items = append(items, gpu.SumItem{Ptr: m.Ptr() + gpu.Ptr(rng.IntN(17)), N: n})
	}
	items = append(items, gpu.SumItem{Ptr: m.Ptr() + 3, N: m.Size() - 3})
	if err := sum.Sum(t.Context(), items); err != nil {
		t.Fatal(err)
	}
	for _, it := range items {
		b := h.Bytes()[it.Ptr-m.Ptr():][:it.N]
		if want := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)); it.CRC != want {
			t.Fatalf("%+v, want %08x", it, want)
		}
	}
	f.fail("cuLaunchKernel", 0, 1)
	if err := sum.Sum(t.Context(), items); !errors.Is(err, base.ErrInvalid) || !strings.Contains(err.Error(), "checksum kernel") {
		t.Error(err)
	}
	if err := s.Sum(h.Ptr(), gpu.MaxMoves+1); !errors.Is(err, base.ErrInvalid) {
		t.Error(err)
	}
}

// TestWatch: the entry goes to the kernel that waits, in one block, and what it stores
// comes back.
func TestWatch(t *testing.T) {
	f := newFake(t)
	d := f.open().Devices()[1]
	m, h, s := use(t, d, 8192)
	entry, in, out := h.Bytes(), h.Bytes()[1024:][:512], h.Bytes()[2048:][:512]
	for i := range in {
		in[i] = byte(i * 7)
	}
	if err := errors.Join(s.Copy(gpu.Copy{Dev: m.Ptr(), Host: in}), finish(t, s)); err != nil {
		t.Fatal(err)
	}
	last := dl.Cell(in, 504).Load()
	for _, c := range []struct {
		value, ended uint64
		copied       bool
	}{{last + 1, gpu.WatchGaveUp, false}, {last, gpu.WatchSaw, true}} {
		gpu.PutWatch(entry, gpu.Watch{Src: m.Ptr(), Dst: h.Ptr() + 2048, N: 512, Value: c.value, For: time.Second})
		if err := errors.Join(s.Watch(h.Ptr()), finish(t, s)); err != nil {
			t.Fatal(err)
		}
		if gpu.WatchBegun(entry).Load() != 1 || gpu.WatchEnded(entry).Load() != c.ended || bytes.Equal(in, out) != c.copied {
			t.Errorf("%+v: begun %d, ended %d", c, gpu.WatchBegun(entry).Load(), gpu.WatchEnded(entry).Load())
		}
	}
	if err := s.Watch(m.Ptr()); !errors.Is(err, base.ErrOutOfRange) || !strings.Contains(err.Error(), "waiting kernel") {
		t.Errorf("an entry that is not in pinned memory: %v", err)
	}
}

// TestNoKernels: what cannot be loaded is told by those who need it, and everything
// else works.
func TestNoKernels(t *testing.T) {
	for _, fn := range []string{"cuModuleLoadData", "cuModuleGetFunction", "cuFuncLoad"} {
		f := newFake(t)
		f.fail(fn, 0, 801)
		d := f.open().Devices()[0]
		if _, err := gpu.NewSummer(d); !errors.Is(err, base.ErrNotSupported) || !strings.Contains(err.Error(), fn) {
			t.Errorf("%s: %v", fn, err)
		}
		m, h, s := use(t, d, 4096)
		for _, err := range []error{s.Move(h.Ptr(), 1), s.Watch(h.Ptr())} {
			if !errors.Is(err, base.ErrNotSupported) || !strings.Contains(err.Error(), fn) {
				t.Errorf("%s: %v", fn, err)
			}
		}
		if err := errors.Join(s.Copy(gpu.Copy{Dev: m.Ptr(), Host: h.Bytes()}), finish(t, s)); err != nil {
			t.Error(err)
		}
	}
}

func TestErrorsCarryNameAndNumber(t *testing.T) {
	f := newFake(t)
	b := f.open()
	d := b.Devices()[0]
	m, h, s := use(t, d, 4096)
	for _, c := range []struct {
		fn   string
		code int
		call func() error
		want error
		text string
	}{
		{"cuMemAlloc_v2", 2, func() error { _, err := d.Alloc(1); return err }, base.ErrNoSpace,
			"allocate gpu 0: no space: CUDA_ERROR_OUT_OF_MEMORY (2) from cuMemAlloc_v2"},
		{"cuMemHostAlloc", 2, func() error { _, err := d.AllocHost(1); return err }, base.ErrNoSpace, "(2) from cuMemHostAlloc"},
		{"cuMemcpyHtoDAsync_v2", 1, func() error { return s.Copy(gpu.Copy{Dev: m.Ptr(), Host: h.Bytes()}) }, base.ErrInvalid, "(1)"},
		{"cuStreamWaitValue64_v2", 801, func() error { return s.AwaitCell(h.Ptr(), 1) }, base.ErrNotSupported, "CUDA_ERROR_NOT_SUPPORTED (801)"},
		{"cuStreamQuery", 700, func() error { return s.(*stream).query() }, base.ErrOutOfRange, "CUDA_ERROR_ILLEGAL_ADDRESS (700)"},
		{"cuEventCreate", 999, func() error { _, err := d.NewEvent(); return err }, nil, "CUDA_ERROR (999) from cuEventCreate"},
		{"cuCtxPushCurrent_v2", 201, func() error { _, err := d.Alloc(1); return err }, nil, "CUDA_ERROR_INVALID_CONTEXT (201)"},
	} {
		f.fail(c.fn, 0, c.code)
		err := c.call()
		var ce *Error
		if err == nil || !errors.As(err, &ce) || ce.Code != c.code || ce.Call != c.fn || !strings.Contains(err.Error(), c.text) {
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

// TestD24Contexts: goroutines move between threads, and every call has its
// context; a context of the caller stays what it was.
func TestD24Contexts(t *testing.T) {
	f := newFake(t)
	b := f.open()
	var wg sync.WaitGroup
	for g := range 64 {
		wg.Go(func() {
			d := b.Devices()[g%2]
			for range 20 {
				m, err := d.Alloc(64)
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
	if b.code(cuCtxPushCurrent, 777) != 0 || f.lib.Call(fakeCurrent) != 777 {
		t.Fatal("cannot push")
	}
	if m, err := b.Devices()[1].Alloc(64); err != nil || m.Close() != nil {
		t.Error(err)
	}
	f.fail("cuMemAlloc_v2", 0, 2)
	if _, err := b.Devices()[1].Alloc(64); err == nil {
		t.Error("no error")
	}
	if c := f.lib.Call(fakeCurrent); c != 777 {
		t.Errorf("the caller's context became %d", c)
	}
	fr := dl.NewFrame()
	defer fr.Done()
	b.code(cuCtxPopCurrent, fr.Word(0).Addr)
	if c := f.lib.Call(fakeCurrent); c != 0 {
		t.Errorf("context %d is left", c)
	}
}

func TestAttributes(t *testing.T) {
	f := newFake(t)
	b := f.open()
	m, h, _ := use(t, b.Devices()[1], 65536)
	managed := gpu.Ptr(f.lib.Call(fakeAlloc, 4096, 3, 0))
	plain := gpu.Ptr(f.lib.Call(fakeAlloc, 4096, 2, 0))
	for _, c := range []struct {
		p    gpu.Ptr
		want gpu.Attributes
	}{
		{m.Ptr() + 77, gpu.Attributes{Kind: gpu.KindDevice, Device: 1, Base: m.Ptr(), Size: 65536, Exportable: true}},
		{h.Ptr(), gpu.Attributes{Kind: gpu.KindHost, Device: -1, Base: h.Ptr(), Size: 65536}},
		{managed, gpu.Attributes{Kind: gpu.KindManaged, Base: managed, Size: 4096}},
		{plain, gpu.Attributes{Kind: gpu.KindDevice, Base: plain, Size: 4096}},
		{4096, gpu.Attributes{Device: -1}},
	} {
		a, err := b.Attributes(c.p)
		if again, _ := b.Attributes(c.p); again != a { // D-04: managed memory stays that, wherever its page is
			t.Errorf("%s: %+v, then %+v", c.p, a, again)
		}
		if (a.BufferID == 0) != (c.want.Kind == gpu.KindUnknown) {
			t.Errorf("%s: buffer %d", c.p, a.BufferID)
		}
		a.BufferID = 0
		if err != nil || a != c.want {
			t.Errorf("%s: %+v, %v", c.p, a, err)
		}
	}
	for _, p := range []gpu.Ptr{managed, plain} {
		if err := b.devs[0].(*device).use(func() error { return b.do("free", "", cuMemFree, uintptr(p)) }); err != nil {
			t.Error(err)
		}
	}
}

func TestExportSyncFlush(t *testing.T) {
	f := newFake(t)
	b := f.open()
	d := b.Devices()[0]
	m, h, _ := use(t, d, 65536)
	fd, err := d.Export(m.Ptr()+4096, 8192)
	if err != nil {
		t.Fatal(err)
	}
	unix.NewFD(fd, "dma-buf").Close()
	for _, c := range []struct {
		p    gpu.Ptr
		n    int64
		want error
	}{
		{m.Ptr() + 1, 4096, base.ErrMisaligned}, {m.Ptr(), 4097, base.ErrMisaligned}, {m.Ptr(), 69632, base.ErrOutOfRange},
		{h.Ptr(), 4096, base.ErrNotSupported}, {4096, 4096, base.ErrNotSupported},
	} {
		if _, err := d.Export(c.p, c.n); !errors.Is(err, c.want) {
			t.Errorf("%s, %d: %v, want %v", c.p, c.n, err, c.want)
		}
	}
	if err := errors.Join(d.SyncMemOps(m.Ptr()), d.FlushWrites()); err != nil {
		t.Error(err)
	}
	if !strings.Contains(f.calls(), "cuPointerSetAttribute cuCtxPushCurrent_v2 cuFlushGPUDirectRDMAWrites") {
		t.Error("calls are missing")
	}
	tab := gpu.NewTable(b, gpu.TableOptions{Export: true})
	r, err := tab.Register(m.Ptr(), 65536)
	if err != nil {
		t.Fatal(err)
	}
	if fd, why := r.Direct(); fd < 0 || why != "" || r.Check() != nil {
		t.Error(fd, why)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestWriteOrderings: what the driver says about visibility arrives unchanged.
func TestWriteOrderings(t *testing.T) {
	f := newFake(t)
	for _, c := range []struct {
		ordering uintptr
		flush    uintptr
	}{{0, 1}, {100, 1}, {200, 0}, {0, 0}} {
		f.set(kOrdering, c.ordering)
		f.set(kFlush, c.flush)
		d := f.open().Devices()[0]
		in := d.Info()
		if in.Ordering != gpu.WriteOrdering(c.ordering) || in.CanFlush != (c.flush == 1) {
			t.Errorf("%+v: %+v", c, in)
		}
		if err := d.FlushWrites(); (err == nil) != in.CanFlush {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestEventsCallsAndForeignStreams(t *testing.T) {
	f := newFake(t)
	b := f.open()
	d := b.Devices()[1]
	_, h, s := use(t, d, 4096)
	ev, err := d.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	done, err := ev.Done()
	if err := errors.Join(err, s.Record(ev), s.Await(ev), s.WriteCell(h.Ptr()+8, 9), s.AwaitCell(h.Ptr()+8, 9), ev.Close(), ev.Close()); err != nil || !done {
		t.Error(err, done)
	}
	var ran atomic.Int64
	for range 500 {
		if err := s.Call(func() { ran.Add(1) }); err != nil {
			t.Fatal(err)
		}
	}
	if ran.Load() != 500 || dl.Cell(h.Bytes(), 8).Load() != 9 {
		t.Errorf("%d calls", ran.Load())
	}
	f.fail("cuLaunchHostFunc", 0, 801)
	if err := s.Call(func() { ran.Add(1) }); !errors.Is(err, base.ErrNotSupported) || ran.Load() != 500 {
		t.Error(err, ran.Load())
	}
	for handle, ctx := range map[uintptr]uintptr{0: 101, 2: 101, 1100: 100} { // D-19: the very number arrives
		w, err := d.WrapStream(handle)
		if err != nil || w.Handle() != handle || w.(*stream).ctx != ctx {
			t.Errorf("%d: %+v, %v", handle, w, err)
			continue
		}
		f.set(kCapturing, 1)
		on, err := w.Capturing()
		f.set(kCapturing, 0)
		off, err2 := w.Capturing()
		if errors.Join(err, err2, w.Close()) != nil || !on || off {
			t.Error(on, off, err, err2)
		}
	}
	if strings.Contains(f.calls(), "cuStreamDestroy") {
		t.Error("a stream of the caller was ended")
	}
}

func TestPinHostAndIPC(t *testing.T) {
	f := newFake(t)
	d := f.open().Devices()[0]
	m, _, s := use(t, d, 4096)
	mem, err := dma.Alloc(4096, "cuda test")
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Free()
	h, err := d.PinHost(mem.Bytes(), true)
	if err != nil {
		t.Fatal(err)
	}
	mem.Bytes()[9] = 42
	if err := errors.Join(s.Copy(gpu.Copy{Dev: m.Ptr(), Host: mem.Bytes()}), finish(t, s), h.Close()); err != nil {
		t.Error(err)
	}
	if _, err := d.PinHost(nil, false); !errors.Is(err, base.ErrInvalid) {
		t.Error(err)
	}
	handle, err := d.IPCHandle(m.Ptr())
	if err != nil {
		t.Fatal(err)
	}
	o, err := d.OpenIPC(handle)
	if err != nil || o.Ptr() != m.Ptr() || o.Size() != 4096 {
		t.Fatalf("%+v, %v", o, err)
	}
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	if _, err := d.IPCHandle(m.Ptr() + 1); !errors.Is(err, base.ErrInvalid) {
		t.Error(err)
	}
	handle[63]++
	if _, err := d.OpenIPC(handle); !errors.Is(err, base.ErrInvalid) {
		t.Errorf("a damaged handle: %v", err)
	}
}

// TestOldDriver: a driver that lacks the newer functions still copies, ticks by
// host function, and says by name what is missing.
func TestOldDriver(t *testing.T) {
	f := newFake(t, "-DFAKE_OLD")
	d := f.open().Devices()[0]
	m, h, s := use(t, d, 4096)
	if in := d.Info(); in.MemOps || in.DMABuf || in.CanFlush || in.Mover {
		t.Errorf("%+v", in)
	}
	h.Bytes()[0] = 7
	if err := errors.Join(s.Copy(gpu.Copy{Dev: m.Ptr(), Host: h.Bytes()}), finish(t, s)); err != nil {
		t.Fatal(err)
	}
	_, e1 := d.Export(m.Ptr(), 4096)
	_, e2 := d.IPCHandle(m.Ptr())
	_, e3 := d.OpenIPC([64]byte{})
	_, e4 := s.Capturing()
	for want, err := range map[string]error{"cuMemGetHandleForAddressRange": e1, "cuIpcGetMemHandle": e2, "cuIpcOpenMemHandle_v2": e3,
		"cuStreamIsCapturing": e4, "cuStreamWriteValue64_v2": s.WriteCell(h.Ptr(), 1), "cuStreamWaitValue64_v2": s.AwaitCell(h.Ptr(), 1),
		"cuPointerSetAttribute": d.SyncMemOps(m.Ptr()), "capability": s.Move(h.Ptr(), 1), "7.5": s.Sum(h.Ptr(), 1), "flush": d.FlushWrites()} {
		if !errors.Is(err, base.ErrNotSupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestOpenLoadsOnlyWhenAsked: importing the package loads nothing.
func TestOpenLoadsOnlyWhenAsked(t *testing.T) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	if !*realGPU && bytes.Contains(maps, []byte("libcuda.so")) {
		t.Error("libcuda.so is mapped")
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
