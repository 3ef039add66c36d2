package xfer_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/host"
	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

// TestT31ReadAnyRange: odd offsets, sizes and places; what lies beside is
// untouched.
func TestT31ReadAnyRange(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{ChunkBytes: xfer.MinChunk, Depth: 3, Lanes: 4})
	data := noise(t, 2<<20)
	rng := testenv.Seed(t)
	ends := endpoints(t, r, data)
	const guard = 64
	for name, e := range ends {
		for _, c := range [][3]int64{{0, 0, 1}, {1, 1, 4097}, {511, 15, 4096}, {4095, 3, 65536}, {0, 0, 65536}, {0, 16, 2 << 20},
			{65535, 1, 65538}, {rng.Int64N(1 << 20), rng.Int64N(4096), rng.Int64N(1 << 20)}} {
			off, to, n := c[0], c[1], c[2]
			r.poke(r.mem.Ptr(), bytes.Repeat([]byte{0xee}, int(n+to+2*guard)))
			got, err := r.m.Read(ctx(t), e, off, r.mem.Ptr()+gpu.Ptr(guard+to), n)
			if got != n || err != nil {
				t.Fatalf("%s %v: %d, %v", name, c, got, err)
			}
			all := r.peek(r.mem.Ptr(), n+to+2*guard)
			if !bytes.Equal(all[guard+to:guard+to+n], data[off:off+n]) {
				t.Errorf("%s %v: other bytes", name, c)
			}
			if bytes.Count(all[:guard+to], []byte{0xee}) != int(guard+to) || bytes.Count(all[guard+to+n:], []byte{0xee}) != guard {
				t.Errorf("%s %v: bytes beside it changed", name, c)
			}
		}
		if n, err := r.m.Read(ctx(t), e, 5, r.mem.Ptr(), 0); n != 0 || err != nil {
			t.Errorf("%s: nothing: %d, %v", name, n, err)
		}
	}
}

func TestWriteAndReadBack(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{ChunkBytes: xfer.MinChunk, Depth: 2, Lanes: 3})
	ends := endpoints(t, r, make([]byte, 2<<20))
	want := noise(t, 1<<20)
	r.poke(r.mem.Ptr()+5, want)
	for name, e := range ends {
		for _, c := range [][2]int64{{0, 1 << 20}, {4096, 69632}, {8192, 4096}} {
			if n, err := r.m.Write(ctx(t), e, c[0], r.mem.Ptr()+5, c[1]); n != c[1] || err != nil {
				t.Fatalf("%s: %d, %v", name, n, err)
			}
			back := r.mem.Ptr() + 4<<20
			if n, err := r.m.Read(ctx(t), e, c[0], back, c[1]); n != c[1] || err != nil {
				t.Fatalf("%s: %d, %v", name, n, err)
			}
			if !bytes.Equal(r.peek(back, c[1]), want[:c[1]]) {
				t.Errorf("%s %v: other bytes", name, c)
			}
		}
	}
	for _, c := range [][2]int64{{1, 4096}, {0, 4095}} {
		if _, err := r.m.Write(ctx(t), ends["device"], c[0], r.mem.Ptr(), c[1]); !errors.Is(err, base.ErrMisaligned) {
			t.Errorf("%v: %v", c, err)
		}
	}
	if _, err := r.m.Write(ctx(t), ends["device"], 2<<20, r.mem.Ptr(), 4096); !errors.Is(err, base.ErrOutOfRange) {
		t.Error(err)
	}
}

func TestEndOfData(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{ChunkBytes: xfer.MinChunk, Lanes: 4})
	data := noise(t, 200_704)
	ends := endpoints(t, r, data)
	for _, name := range []string{"file", "device", "any file"} {
		for off, want := range map[int64]int64{0: 200_704, 70_001: 130_703, 200_703: 1, 200_704: 0, 500_000: 0} {
			n, err := r.m.Read(ctx(t), ends[name], off, r.mem.Ptr(), 1<<20)
			if n != want || err != io.EOF {
				t.Errorf("%s at %d: %d, %v; want %d", name, off, n, err, want)
			}
			if want > 0 && !bytes.Equal(r.peek(r.mem.Ptr(), want), data[off:]) {
				t.Errorf("%s at %d: other bytes", name, off)
			}
		}
	}
	if _, err := r.m.Read(ctx(t), ends["pinned"], 1, r.mem.Ptr(), 200_704); !errors.Is(err, base.ErrOutOfRange) {
		t.Error(err)
	}
}

// holes fails reads from some offset on.
type holes struct {
	data []byte
	from int64
	err  error
	mu   sync.Mutex
	busy int
	most int
	all  int
	meet chan struct{} // if there is one, the first read waits here for another
}

func (h *holes) ReadAt(b []byte, off int64) (int, error) {
	h.mu.Lock()
	h.busy++
	h.most = max(h.most, h.busy)
	if h.meet != nil && h.busy == 2 {
		close(h.meet)
		h.meet = nil
	}
	meet := h.meet
	h.all++
	wait := meet != nil && h.all == 1
	h.mu.Unlock()
	if wait {
		select {
		case <-meet:
		case <-time.After(20 * time.Second): // none came
		}
	}
	time.Sleep(time.Millisecond)
	h.mu.Lock()
	h.busy--
	h.mu.Unlock()
	if off+int64(len(b)) > h.from {
		return 0, h.err
	}
	return copy(b, h.data[off:]), nil
}

// TestT26LowestError: the answer is the contiguous beginning and the error of
// the lowest offset.
func TestT26LowestError(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{ChunkBytes: xfer.MinChunk, Lanes: 8})
	boom := errors.New("boom")
	h := &holes{data: noise(t, 4<<20), from: 40 * xfer.MinChunk, err: boom}
	n, err := r.m.Read(ctx(t), xfer.Reader(h), 0, r.mem.Ptr(), 4<<20)
	if n != 40*xfer.MinChunk || err != boom {
		t.Errorf("%d chunks, %v", n/xfer.MinChunk, err)
	}
	if !bytes.Equal(r.peek(r.mem.Ptr(), n), h.data[:n]) {
		t.Error("other bytes")
	}
	if _, err := r.m.Write(ctx(t), xfer.Reader(h), 0, r.mem.Ptr(), 1); !errors.Is(err, base.ErrInvalid) {
		t.Errorf("a write into a reader: %v", err)
	}
}

// TestT30BoundedPool: 64 requests share the lanes and all of them end.
func TestT30BoundedPool(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{ChunkBytes: xfer.MinChunk, Depth: 2, Lanes: 3})
	h := &holes{data: noise(t, 1<<20), from: 1 << 40}
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			if n, err := r.m.Read(ctx(t), xfer.Reader(h), int64(i), r.mem.Ptr()+gpu.Ptr(i*(100<<10)), 100<<10); n != 100<<10 || err != nil {
				t.Error(n, err)
			}
		})
	}
	wg.Wait()
	if h.most > 3 || h.most < 2 {
		t.Errorf("%d reads at once with 3 lanes", h.most)
	}
	for i := range int64(64) {
		if !bytes.Equal(r.peek(r.mem.Ptr()+gpu.Ptr(i*(100<<10)), 100<<10), h.data[i:i+100<<10]) {
			t.Fatalf("request %d: other bytes", i)
		}
	}
	if want := int64(3 * 2 * (xfer.MinChunk + 8192)); r.m.PinnedBytes() != want {
		t.Errorf("%d bytes pinned, want %d", r.m.PinnedBytes(), want)
	}
}

// TestI10Paths: the mover counts what the device counts, with the reason.
func TestI10Paths(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{ChunkBytes: xfer.MinChunk, Lanes: 2})
	data := noise(t, 1<<20)
	dev := newDevice(t, data)
	before := dev.Stats()
	e, err := xfer.Extent(dev, 0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	read := func(p gpu.Ptr, off, n int64) {
		if _, err := r.m.Read(ctx(t), e, off, p, n); err != nil {
			t.Fatal(err)
		}
	}
	read(r.mem.Ptr(), 0, 300_000)
	reg, err := r.tab.Register(r.mem.Ptr()+1<<20, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	read(r.mem.Ptr()+1<<20, 10, 5000)
	reg2, err := r.tab.Register(r.mem.Ptr()+2<<20+1, 5000)
	if err != nil {
		t.Fatal(err)
	}
	read(r.mem.Ptr()+2<<20+1, 0, 4096)
	if _, err := r.m.Write(ctx(t), e, 0, r.mem.Ptr(), 8192); err != nil {
		t.Fatal(err)
	}
	var readBytes, writeBytes int64
	reasons := map[string]bool{}
	for _, c := range r.m.Paths() {
		reasons[c.Reason] = true
		if c.Path != driver.PathStaged {
			t.Errorf("%+v", c)
		}
		if c.Write {
			writeBytes += c.Bytes
		} else {
			readBytes += c.Bytes
		}
	}
	after := dev.Stats()
	if readBytes != after.ReadBytes-before.ReadBytes || writeBytes != after.WriteBytes-before.WriteBytes || writeBytes != 8192 {
		t.Errorf("mover %d and %d, device %+v before, %+v after", readBytes, writeBytes, before, after)
	}
	if !reasons[xfer.ReasonUnregistered] || !reasons[gpu.ReasonNotAsked] || !reasons[gpu.ReasonUnaligned] || len(reasons) != 3 {
		t.Errorf("%v", reasons)
	}
	if err := errors.Join(reg.Close(), reg2.Close()); err != nil {
		t.Error(err)
	}
}

func TestStrict(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{Strict: true, Lanes: 1})
	ends := endpoints(t, r, noise(t, 65536))
	for name, reason := range map[string]string{"file": xfer.ReasonFile, "device": xfer.ReasonNoTransport} {
		items := []xfer.Item{{End: ends[name], Ptr: r.mem.Ptr(), Len: 4096}}
		_, err := r.m.Read(ctx(t), ends[name], 0, r.mem.Ptr(), 4096)
		if e := r.m.ReadMany(ctx(t), items); e != nil {
			t.Error(e)
		}
		for _, err := range []error{err, items[0].Err} {
			if !errors.Is(err, base.ErrNotSupported) || !strings.Contains(err.Error(), reason) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if n, err := r.m.Read(ctx(t), ends["pinned"], 0, r.mem.Ptr(), 4096); n != 4096 || err != nil {
		t.Error(n, err)
	}
	paths := r.m.Paths()
	if len(paths) != 1 || paths[0].Path != driver.PathWindow || paths[0].Bytes != 4096 || paths[0].Reason != xfer.ReasonPinned {
		t.Errorf("%+v", paths)
	}
}

// TestI4LateNeverLands: the context ends the wait; the registration stays held
// until the copies ended.
func TestI4LateNeverLands(t *testing.T) {
	gate := make(chan struct{})
	r := newRig(t, host.Options{Faults: host.Faults{Run: func(gpu.Copy) error { <-gate; return nil }}}, xfer.Options{Lanes: 1})
	reg, err := r.tab.Register(r.mem.Ptr(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	f := xfer.File(tempFile(t, noise(t, 1<<20)))
	c, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	n, err := r.m.Read(c, f, 0, r.mem.Ptr(), 4096)
	if n != 0 || !errors.Is(err, base.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%d, %v", n, err)
	}
	if err := reg.Close(); !errors.Is(err, base.ErrBusy) {
		t.Errorf("unregistered in flight: %v", err)
	}
	if _, err := r.m.Read(c, f, 0, r.mem.Ptr(), 4096); !errors.Is(err, base.ErrTimeout) || !strings.Contains(err.Error(), "all 1 are in use") {
		t.Errorf("no lane: %v", err)
	}
	close(gate)
	for end := time.Now().Add(time.Minute); reg.InFlight() > 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	if err := reg.Close(); err != nil {
		t.Error(err)
	}
}

// TestBrokenStream: a stream that failed keeps its lane from further use; the
// others go on, and when none is left the mover says so.
func TestBrokenStream(t *testing.T) {
	boom := errors.New("boom")
	bad := byte(0x13)
	r := newRig(t, host.Options{Faults: host.Faults{Run: func(c gpu.Copy) error {
		if !c.ToHost && len(c.Host) == 4096 && c.Host[0] == bad {
			return boom
		}
		return nil
	}}}, xfer.Options{Lanes: 2})
	good, ill := xfer.File(tempFile(t, make([]byte, 4096))), xfer.File(tempFile(t, bytes.Repeat([]byte{bad}, 4096)))
	read := func(e xfer.Endpoint) error { _, err := r.m.Read(ctx(t), e, 0, r.mem.Ptr(), 4096); return err }
	if err := read(good); err != nil {
		t.Fatal(err)
	}
	if err := read(ill); !errors.Is(err, boom) || !xfer.InDoubt(err) {
		t.Errorf("%v", err)
	}
	if err := read(good); err != nil {
		t.Errorf("after one lane failed: %v", err)
	}
	if err := read(ill); !errors.Is(err, boom) || !xfer.InDoubt(err) {
		t.Errorf("%v", err)
	}
	if err := read(good); !errors.Is(err, base.ErrIsolated) || !errors.Is(err, boom) || xfer.InDoubt(err) {
		t.Errorf("without lanes: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	r := newRig(t, host.Options{Devices: 2}, xfer.Options{Lanes: 1})
	other, err := r.b.Devices()[1].Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	f := xfer.File(tempFile(t, make([]byte, 4096)))
	for _, c := range []struct {
		name   string
		p      gpu.Ptr
		off, n int64
		want   error
	}{
		{"host memory", 4096, 0, 1, base.ErrInvalid}, {"another gpu", other.Ptr(), 0, 1, base.ErrInvalid},
		{"too long", r.mem.Ptr() + 1, 0, rigBytes, base.ErrOutOfRange},
		{"negative offset", r.mem.Ptr(), -1, 1, base.ErrInvalid}, {"negative length", r.mem.Ptr(), 0, -1, base.ErrInvalid},
	} {
		items := []xfer.Item{{End: f, Off: c.off, Ptr: c.p, Len: min(c.n, 32<<10)}}
		if _, err := r.m.Read(ctx(t), f, c.off, c.p, c.n); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.name == "too long" {
			items[0].Ptr += rigBytes - 5
		}
		if err := r.m.ReadMany(ctx(t), items); err != nil || !errors.Is(items[0].Err, c.want) {
			t.Errorf("%s: %v, %v", c.name, err, items[0].Err)
		}
	}
	reg, err := r.tab.Register(r.mem.Ptr(), rigBytes)
	if err != nil {
		t.Fatal(err)
	}
	if r.mem, err = r.b.Replace(r.mem); err != nil {
		t.Fatal(err)
	}
	if _, err := r.m.Read(ctx(t), f, 0, r.mem.Ptr(), 1); !errors.Is(err, base.ErrMismatch) {
		t.Errorf("freed memory: %v", err)
	}
	if err := reg.Close(); err != nil {
		t.Error(err)
	}
	if err := r.m.Close(ctx(t)); err != nil {
		t.Error(err)
	}
	if _, err := r.m.Read(ctx(t), f, 0, r.mem.Ptr(), 1); !errors.Is(err, base.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
	if err := r.m.Warm(ctx(t)); !errors.Is(err, base.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}

func TestOptions(t *testing.T) {
	b, err := host.Open(host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o  xfer.Options
		ok bool
	}{
		{xfer.Options{}, true},
		{xfer.Options{ChunkBytes: xfer.MinChunk}, true}, {xfer.Options{ChunkBytes: xfer.MinChunk - 4096}, false},
		{xfer.Options{ChunkBytes: xfer.MaxChunk}, true}, {xfer.Options{ChunkBytes: xfer.MaxChunk + 4096}, false},
		{xfer.Options{ChunkBytes: base.MiB + 1}, false},
		{xfer.Options{Depth: xfer.MaxDepth}, true}, {xfer.Options{Depth: xfer.MaxDepth + 1}, false}, {xfer.Options{Depth: -1}, false},
		{xfer.Options{Lanes: xfer.MaxLanes}, true}, {xfer.Options{Lanes: xfer.MaxLanes + 1}, false}, {xfer.Options{Lanes: -1}, false},
		{xfer.Options{WindowBytes: xfer.MinWindow}, true}, {xfer.Options{WindowBytes: xfer.MinWindow - 1}, false},
		{xfer.Options{SmallBytes: xfer.MaxSmall}, true}, {xfer.Options{SmallBytes: xfer.MaxSmall + 1}, false},
		{xfer.Options{SmallBytes: -1}, false}, {xfer.Options{Threads: -1}, false}, {xfer.Options{CopyTimeout: -1}, false},
	} {
		m, err := xfer.New(b, b.Devices()[0], nil, c.o)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, base.ErrInvalid) {
			t.Errorf("%+v: %v", c.o, err)
		}
		if m != nil && (m.Options().ChunkBytes == 0 || m.Options().Lanes == 0) {
			t.Errorf("no defaults: %+v", m.Options())
		}
	}
	_, err = xfer.New(b, b.Devices()[0], nil, xfer.Options{Depth: -1, Lanes: -1})
	if err == nil || !strings.Contains(err.Error(), "Depth") || !strings.Contains(err.Error(), "Lanes") {
		t.Errorf("not every fault at once: %v", err)
	}
}

// TestPinnedTimeout: the copy of pinned memory is waited for without the caller
// when its context ends.
func TestPinnedTimeout(t *testing.T) {
	gate := make(chan struct{})
	r := newRig(t, host.Options{Faults: host.Faults{Run: func(gpu.Copy) error { <-gate; return nil }}}, xfer.Options{Lanes: 1})
	e := endpoints(t, r, noise(t, 65536))["pinned"]
	reg, err := r.tab.Register(r.mem.Ptr(), 65536)
	if err != nil {
		t.Fatal(err)
	}
	c, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if n, err := r.m.Read(c, e, 0, r.mem.Ptr(), 65536); n != 0 || !errors.Is(err, base.ErrTimeout) {
		t.Errorf("%d, %v", n, err)
	}
	if err := reg.Close(); !errors.Is(err, base.ErrBusy) {
		t.Errorf("unregistered in flight: %v", err)
	}
	close(gate)
	if n, err := r.m.Read(context.Background(), e, 0, r.mem.Ptr(), 65536); n != 65536 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if err := reg.Close(); err != nil {
		t.Error(err)
	}
}

// TestSmallRequestsAreShared: a request smaller than a chunk a lane is cut, so
// that several lanes work on it.
func TestSmallRequestsAreShared(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{Lanes: 4})
	h := &holes{data: noise(t, 1<<20), from: 1 << 40, meet: make(chan struct{})}
	if n, err := r.m.Read(context.Background(), xfer.Reader(h), 0, r.mem.Ptr(), 1<<20); n != 1<<20 || err != nil {
		t.Fatal(n, err)
	}
	if h.most < 2 || !bytes.Equal(r.peek(r.mem.Ptr(), 1<<20), h.data) {
		t.Errorf("%d reads at once, or other bytes", h.most)
	}
}

// TestI4DoubtKeepsMemory: memory that a copy of a failed stream may still reach stays
// registered until the lanes are closed, for single values and for many.
func TestI4DoubtKeepsMemory(t *testing.T) {
	var broken atomic.Bool
	r := newRig(t, host.Options{Faults: host.Faults{Run: func(gpu.Copy) error {
		if broken.Load() {
			return errors.New("boom")
		}
		return nil
	}}}, xfer.Options{Lanes: 4, NoKernel: true})
	f := xfer.File(tempFile(t, noise(t, 100_000)))
	h, err := r.d.AllocHost(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	var regs []*gpu.Registration
	for i := range 4 {
		reg, err := r.tab.Register(r.mem.Ptr()+gpu.Ptr(i<<20), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		regs = append(regs, reg)
	}
	broken.Store(true)
	_, e0 := r.m.Read(ctx(t), f, 0, regs[0].Ptr(), 100_000)
	_, e1 := r.m.Read(ctx(t), xfer.Pinned(h), 0, regs[1].Ptr(), 4096)
	items := []xfer.Item{{End: f, Ptr: regs[2].Ptr(), Len: 100}}
	if err := r.m.ReadMany(ctx(t), items); err != nil {
		t.Fatal(err)
	}
	broken.Store(false)
	if _, err := r.m.Read(ctx(t), f, 0, regs[3].Ptr(), 100_000); err != nil {
		t.Errorf("a lane that is whole: %v", err)
	}
	for i, err := range []error{e0, e1, items[0].Err} {
		if !xfer.InDoubt(err) {
			t.Errorf("%d: %v", i, err)
		}
		if err := regs[i].Close(); !errors.Is(err, base.ErrBusy) {
			t.Errorf("%d: unregistered although a copy may land: %v", i, err)
		}
	}
	if err := regs[3].Close(); err != nil {
		t.Error(err)
	}
	if err := r.m.Close(ctx(t)); err != nil {
		t.Fatal(err)
	}
	for i, reg := range regs[:3] {
		if err := reg.Close(); err != nil {
			t.Errorf("%d after the mover was closed: %v", i, err)
		}
	}
}
