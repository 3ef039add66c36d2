//go:build !nogpu

package cuda

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
)

// realGPU makes the tests of this file run; they need a GPU and its driver.
var realGPU = flag.Bool("gpu", false, "run the tests that need an NVIDIA GPU")

// realDevice gives the first GPU, or nil, with a printed line, when the tests
// were not asked to use one. With the flag, a machine without a GPU fails.
func realDevice(t *testing.T) (*Backend, gpu.Device) {
	t.Helper()
	if !*realGPU {
		fmt.Printf("%s: not run, it needs a GPU and the flag -gpu\n", t.Name())
		return nil, nil
	}
	b, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b, b.Devices()[0]
}

// extra are driver functions that only tests need.
type extra struct {
	t *testing.T
	b *Backend
	l *dl.Library
}

const (
	xAllocManaged = iota
	xCreate
	xReserve
	xMap
	xSetAccess
	xUnmap
	xRelease
	xAddressFree
	xBeginCapture
	xEndCapture
)

func newExtra(t *testing.T, b *Backend) *extra {
	t.Helper()
	var table []dl.Symbol
	for _, s := range []string{"cuMemAllocManaged", "cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
		"cuMemUnmap", "cuMemRelease", "cuMemAddressFree", "cuStreamBeginCapture_v2", "cuStreamEndCapture"} {
		table = append(table, dl.Symbol{Name: s})
	}
	l, err := dl.Open(b.link, table, b.lib.Name())
	if err != nil {
		t.Fatal(err)
	}
	return &extra{t, b, l}
}

func (x *extra) must(i int, args ...uintptr) {
	x.t.Helper()
	err := x.b.devs[0].(*device).use(func() error {
		if r := int32(x.l.Call(i, args...)); r != 0 {
			return fmt.Errorf("%s: %d", x.l.Symbol(i), r)
		}
		return nil
	})
	if err != nil {
		x.t.Fatal(err)
	}
}

const vmmPiece = 2 << 20

// span maps n physical pieces of 2 MiB side by side (CUmemAllocationProp).
func (x *extra) span(n int, rdma byte) (at gpu.Ptr, free func()) {
	f := dl.NewFrame()
	defer f.Done()
	prop, propAddr := f.Bytes(32)
	prop[0], prop[8], prop[25] = 1, 1, rdma // pinned, on a device
	access, accessAddr := f.Bytes(12)
	access[0], access[8] = 1, 3 // the device reads and writes
	base := f.Word(0)
	x.must(xReserve, base.Addr, uintptr(n*vmmPiece), 0, 0, 0)
	at = gpu.Ptr(base.Uint64())
	var handles []uintptr
	for i := range n {
		h := f.Word(0)
		x.must(xCreate, h.Addr, vmmPiece, propAddr, 0)
		handles = append(handles, uintptr(h.Uint64()))
		x.must(xMap, uintptr(at)+uintptr(i*vmmPiece), vmmPiece, 0, handles[i], 0)
	}
	x.must(xSetAccess, uintptr(at), uintptr(n*vmmPiece), accessAddr, 1)
	return at, func() {
		for i, h := range handles {
			x.must(xUnmap, uintptr(at)+uintptr(i*vmmPiece), vmmPiece)
			x.must(xRelease, h)
		}
		x.must(xAddressFree, uintptr(at), uintptr(n*vmmPiece))
	}
}

func TestRealFacts(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	began := time.Now()
	if err := d.Warm(); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("driver %d, %+v, context and kernels in %v\n", b.Version(), d.Info(), time.Since(began))
	if err := d.(*device).none; err != nil {
		t.Errorf("no kernels: %v", err)
	}
}

// TestRealRoundTrips: 1 byte to 4 GiB at odd offsets, nothing beside it changed.
func TestRealRoundTrips(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	const guard = 4096
	rng := testenv.Seed(t)
	for _, n := range []int64{1, 511, 4096, 4097, 1<<20 + 3, 64 << 20, 1 << 30, 4 << 30} {
		off := 1 + rng.Int64N(guard-1)
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			m, h, s := use(t, d, n+2*guard)
			all := h.Bytes()
			all[0] = 0xee
			for k := 1; k < len(all); k *= 2 {
				copy(all[k:], all[:k])
			}
			if err := errors.Join(s.Copy(gpu.Copy{Dev: m.Ptr(), Host: all}), finish(t, s)); err != nil {
				t.Fatal(err)
			}
			want := make([]byte, n)
			for i := range want[:min(n, 1<<20)] {
				want[i] = byte(rng.Uint32()) | 1 // never 0xee
			}
			for i := int64(1 << 20); i < n; i += 1<<20 - 1 { // no two pages are alike
				copy(want[i:], want[:1<<20-1])
			}
			copy(all[off:], want)
			if err := errors.Join(s.Copy(gpu.Copy{Dev: m.Ptr() + gpu.Ptr(off), Host: all[off : off+n]}), finish(t, s)); err != nil {
				t.Fatal(err)
			}
			clear(all)
			if err := errors.Join(s.Copy(gpu.Copy{Dev: m.Ptr(), Host: all, ToHost: true}), finish(t, s)); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(all[off:off+n], want) {
				t.Error("other bytes")
			}
			if beside := append(bytes.Clone(all[:off]), all[off+n:]...); bytes.Count(beside, []byte{0xee}) != len(beside) {
				t.Fatal("bytes beside the range have changed")
			}
		})
	}
}

// TestRealMoves compares the kernel with the processor, source in pinned memory
// and on the GPU, every remainder by 16.
func TestRealMoves(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	const size, slot = 64 << 20, 40 << 10
	m, h, s := use(t, d, size)
	src, _, _ := use(t, d, size)
	rng := testenv.Seed(t)
	hb := h.Bytes()
	half := hb[:size/2]
	for i := range half {
		half[i] = byte(rng.Uint32())
	}
	if err := errors.Join(s.Copy(gpu.Copy{Dev: src.Ptr(), Host: half}), finish(t, s)); err != nil {
		t.Fatal(err)
	}
	table := size / 2
	want := make([]byte, size/2)
	count := size / 2 / slot
	for round := range 2 {
		clear(want)
		from := []gpu.Ptr{h.Ptr(), src.Ptr()}[round]
		for i := range count {
			n := rng.Int64N(33 << 10)
			if i%3 == 0 {
				n = rng.Int64N(40)
			}
			at, to := rng.Int64N(size/2-slot), int64(i*slot)+rng.Int64N(32)
			gpu.PutMove(hb[table:], i, gpu.Move{Src: from + gpu.Ptr(at), Dst: m.Ptr() + gpu.Ptr(to), N: n})
			copy(want[to:to+n], half[at:at+n])
		}
		back, err := d.AllocHost(size / 2)
		if err != nil {
			t.Fatal(err)
		}
		clear(back.Bytes())
		err = errors.Join(s.Copy(gpu.Copy{Dev: m.Ptr(), Host: back.Bytes()}), s.Move(h.Ptr()+gpu.Ptr(table), count),
			s.Copy(gpu.Copy{Dev: m.Ptr(), Host: back.Bytes(), ToHost: true}), finish(t, s))
		if err != nil || !bytes.Equal(back.Bytes(), want) {
			t.Errorf("round %d: %v, or other bytes", round, err)
		}
		if err := back.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestRealRegistration(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	x := newExtra(t, b)
	m, h, s := use(t, d, 64<<20)
	tab := gpu.NewTable(b, gpu.TableOptions{Export: true})
	f := dl.NewFrame()
	defer f.Done()
	managed := f.Word(0)
	x.must(xAllocManaged, managed.Addr, 1<<20, 1)
	defer x.b.do("free", "managed", cuMemFree, uintptr(managed.Uint64()))
	capable, freeCapable := x.span(3, 1)
	defer freeCapable()
	plain, freePlain := x.span(1, 0)
	defer freePlain()
	for _, c := range []struct {
		name   string
		p      gpu.Ptr
		n      int64
		reason string
	}{
		{"allocation", m.Ptr(), 64 << 20, ""},
		{"page in the middle", m.Ptr() + 4096, 8192, ""},
		{"odd address", m.Ptr() + 1, 4096, gpu.ReasonUnaligned},
		{"odd size", m.Ptr(), 4097, gpu.ReasonUnaligned},
		{"managed", gpu.Ptr(managed.Uint64()), 1 << 20, gpu.ReasonManaged},
		// Its driver refuses SYNC_MEMOPS for virtual mappings (801).
		{"one mapping", capable, vmmPiece, gpu.ReasonNoSync},
		{"three mappings", capable, 3 * vmmPiece, gpu.ReasonSeam},
		{"over a seam", capable + vmmPiece - 4096, 8192, gpu.ReasonSeam},
		{"without RDMA", plain, vmmPiece, gpu.ReasonNoRDMA},
	} {
		r, err := tab.Register(c.p, c.n)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		a, _ := b.Attributes(c.p)
		fd, why := r.Direct()
		fmt.Printf("register %s: fd %d %q %v, %+v\n", c.name, fd, why, r.Err(), a)
		if why != c.reason {
			t.Errorf("%s: reason %q, want %q", c.name, why, c.reason)
		}
		if fd >= 0 {
			info, _ := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
			fmt.Printf("  %s\n", strings.ReplaceAll(string(info), "\n", "; "))
			if !strings.Contains(string(info), "flags:\t02") && !strings.Contains(string(info), "flags:\t012") {
				t.Errorf("%s: the descriptor is not close-on-exec: %s", c.name, info)
			}
		}
		h.Bytes()[0] = 0x77
		if err := errors.Join(s.Copy(gpu.Copy{Dev: c.p, Host: h.Bytes()[:4096]}), finish(t, s)); err != nil {
			t.Errorf("%s: staged copy: %v", c.name, err)
		}
		if err := errors.Join(r.Check(), r.Close()); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := tab.Register(h.Ptr(), 4096); !errors.Is(err, base.ErrInvalid) {
		t.Errorf("host memory: %v", err)
	}
	if _, err := tab.Register(m.Ptr(), 1<<40); !errors.Is(err, base.ErrOutOfRange) {
		t.Errorf("too long: %v", err)
	}
	fd, err := d.Export(m.Ptr(), 4096)
	if err == nil {
		unix.NewFD(fd, "dma-buf").Close()
	}
	if err := errors.Join(err, d.SyncMemOps(m.Ptr()), d.FlushWrites()); err != nil {
		t.Error(err)
	}
}

// TestRealFreeAndReallocate: the driver gives the same address again and the
// registration notices.
func TestRealFreeAndReallocate(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	tab := gpu.NewTable(b, gpu.TableOptions{})
	same := 0
	for range 50 {
		m, err := d.Alloc(32 << 20)
		if err != nil {
			t.Fatal(err)
		}
		r, err := tab.Register(m.Ptr(), m.Size())
		if err != nil {
			t.Fatal(err)
		}
		m.Close()
		n, err := d.Alloc(32 << 20)
		if err != nil {
			t.Fatal(err)
		}
		if n.Ptr() == m.Ptr() {
			same++
		}
		if err := r.Check(); !errors.Is(err, base.ErrMismatch) {
			t.Fatalf("not noticed at %s, now %s: %v", m.Ptr(), n.Ptr(), err)
		}
		if err := errors.Join(r.Close(), n.Close()); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Printf("free and reallocate: the same address in %d of 50 rounds\n", same)
}

// TestRealWaitingStreams: hundreds of streams wait for cells while others
// allocate, register, export and copy; then all go on.
func TestRealWaitingStreams(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	const streams = 512
	_, h, s := use(t, d, 1<<20)
	cell := dl.Cell(h.Bytes(), 0)
	cell.Store(0)
	var waiting []gpu.Stream
	var ticks []uint64
	for range streams { // all of them before the first waits
		w, err := d.NewStream()
		if err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, w)
	}
	for _, w := range waiting {
		if err := w.AwaitCell(h.Ptr(), 1); err != nil {
			t.Fatal(err)
		}
		n, err := w.Tick()
		if err != nil {
			t.Fatal(err)
		}
		ticks = append(ticks, n)
	}
	began := time.Now()
	tab := gpu.NewTable(b, gpu.TableOptions{Export: true})
	var held []gpu.Memory
	for range 20 {
		n, err := d.Alloc(2 << 20)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, n)
		r, err := tab.Register(n.Ptr(), n.Size())
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Copy(gpu.Copy{Dev: n.Ptr(), Host: h.Bytes()[64:]}), finish(t, s), r.Close()); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Printf("%d streams wait: 20 rounds of allocate, register, copy, unregister in %v\n", streams, time.Since(began))
	for i, w := range waiting {
		if w.Ticked() >= ticks[i] {
			t.Fatalf("stream %d did not wait", i)
		}
	}
	began = time.Now()
	cell.Store(1)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i, w := range waiting {
		if err := w.WaitTick(ctx, ticks[i]); err != nil {
			t.Fatal(i, err)
		}
	}
	fmt.Printf("all %d went on in %v\n", streams, time.Since(began))
	for _, w := range waiting {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, n := range held {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestRealCaptureEventsCalls(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	x := newExtra(t, b)
	_, h, s := use(t, d, 1<<20)
	_, _, s2 := use(t, d, 4096)
	x.must(xBeginCapture, s.Handle(), 2)
	on, err := s.Capturing()
	f := dl.NewFrame()
	defer f.Done()
	x.must(xEndCapture, s.Handle(), f.Word(0).Addr)
	off, err2 := s.Capturing()
	if err := errors.Join(err, err2); err != nil || !on || off {
		t.Error(err, on, off)
	}
	zero, err := d.WrapStream(0)
	if err != nil {
		t.Fatal(err)
	}
	ev, err := d.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	called := make(chan struct{}, 1)
	err = errors.Join(s.AwaitCell(h.Ptr(), 5), s.Record(ev), s2.Await(ev), s2.WriteCell(h.Ptr()+8, 6),
		s2.Call(func() { called <- struct{}{} }))
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	if done, err := ev.Done(); done || err != nil || dl.Cell(h.Bytes(), 8).Load() != 0 {
		t.Error("a stream did not wait", err)
	}
	dl.Cell(h.Bytes(), 0).Store(5)
	if err := errors.Join(finish(t, s2), finish(t, zero)); err != nil {
		t.Fatal(err)
	}
	<-called
	done, err := ev.Done()
	if err := errors.Join(err, ev.Close(), zero.Close()); err != nil || !done || dl.Cell(h.Bytes(), 8).Load() != 6 {
		t.Error(err, done)
	}
}

// TestRealD24 has goroutines that move between threads use the GPU.
func TestRealD24(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	m, h, _ := use(t, d, 1<<20)
	tab := gpu.NewTable(b, gpu.TableOptions{Export: true})
	var wg sync.WaitGroup
	for g := range 250 {
		wg.Go(func() {
			s, err := d.NewStream()
			if err != nil {
				t.Error(err)
				return
			}
			at := int64(g * 4096)
			for range 4 {
				r, err := tab.Register(m.Ptr()+gpu.Ptr(at), 4096)
				if err != nil {
					t.Error(err)
					return
				}
				if _, why := r.Direct(); why != "" {
					t.Errorf("fell back: %s", why)
				}
				c := gpu.Copy{Dev: m.Ptr() + gpu.Ptr(at), Host: h.Bytes()[at : at+4096]}
				if err := errors.Join(s.Copy(c), finish(t, s), r.Close()); err != nil {
					t.Error(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
