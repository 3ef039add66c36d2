package xfer_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/host"
	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

// TestScatterAndGather moves many values of all sizes between every kind of
// endpoint and scattered places, by the kernel and without one.
func TestScatterAndGather(t *testing.T) {
	for name, o := range map[string]struct {
		h host.Faults
		x bool
	}{"kernel": {}, "copies": {x: true}, "no kernel": {h: host.Faults{NoMover: true}}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, host.Options{Faults: o.h}, xfer.Options{ChunkBytes: xfer.MinChunk, Depth: 2, Lanes: 3, NoKernel: o.x})
			data := noise(t, 2<<20)
			var ends []xfer.Endpoint
			for _, e := range endpoints(t, r, data) {
				ends = append(ends, e)
			}
			reg, err := r.tab.Register(r.mem.Ptr(), 3<<20) // the rest is not registered
			if err != nil {
				t.Fatal(err)
			}
			rng := testenv.Seed(t)
			const slot = 40_000
			r.poke(r.mem.Ptr(), bytes.Repeat([]byte{0xee}, rigBytes))
			want := bytes.Repeat([]byte{0xee}, rigBytes)
			var items []xfer.Item
			for i := range rigBytes / slot {
				n := rng.Int64N(5000)
				if i%7 == 0 {
					n = rng.Int64N(39_000) // some are too large to share
				}
				at, off := int64(i*slot)+rng.Int64N(slot-n), rng.Int64N(2<<20-n)
				items = append(items, xfer.Item{End: ends[rng.IntN(len(ends))], Off: off, Ptr: r.mem.Ptr() + gpu.Ptr(at), Len: n})
				copy(want[at:at+n], data[off:off+n])
			}
			if err := r.m.ReadMany(ctx(t), items); err != nil {
				t.Fatal(err)
			}
			for i, it := range items {
				if it.N != it.Len || it.Err != nil {
					t.Fatalf("item %d: %d of %d, %v", i, it.N, it.Len, it.Err)
				}
			}
			if !bytes.Equal(r.peek(r.mem.Ptr(), rigBytes), want) {
				t.Error("other bytes arrived, or beside the places")
			}
			if reg.InFlight() != 0 || reg.Close() != nil {
				t.Errorf("%d holds left", reg.InFlight())
			}
			gather(t, r, want)
		})
	}
}

// gather writes values to places of their own in each endpoint, and looks.
func gather(t *testing.T, r *rig, mem []byte) {
	t.Helper()
	for name, e := range endpoints(t, r, make([]byte, 2<<20)) {
		var items []xfer.Item
		for i := range int64(64) {
			n := 100 + 37*i
			if name == "device" {
				n = 4096 * (1 + i%4)
			}
			items = append(items, xfer.Item{End: e, Off: i * 16384, Ptr: r.mem.Ptr() + gpu.Ptr(i*100_003), Len: n})
		}
		if err := r.m.WriteMany(ctx(t), items); err != nil {
			t.Fatal(err)
		}
		back := r.mem.Ptr() + 7<<20
		for i, it := range items {
			if it.N != it.Len || it.Err != nil {
				t.Fatalf("%s %d: %d of %d, %v", name, i, it.N, it.Len, it.Err)
			}
			if _, err := r.m.Read(ctx(t), e, it.Off, back, it.Len); err != nil {
				t.Fatal(err)
			}
			at := int64(i) * 100_003
			if !bytes.Equal(r.peek(back, it.Len), mem[at:at+it.Len]) {
				t.Errorf("%s %d: other bytes", name, i)
			}
		}
	}
}

// TestItemsAnswerEach: one bad item does not disturb its neighbours.
func TestItemsAnswerEach(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{Lanes: 2})
	data := noise(t, 100_000)
	f := xfer.File(tempFile(t, data))
	boom := errors.New("boom")
	h := xfer.Reader(&holes{data: data, from: 0, err: boom})
	at := func(i int) gpu.Ptr { return r.mem.Ptr() + gpu.Ptr(i*65536) }
	items := []xfer.Item{
		{End: f, Off: 0, Ptr: at(0), Len: 1000},
		{End: h, Off: 0, Ptr: at(1), Len: 1000},
		{End: f, Off: 99_990, Ptr: at(2), Len: 1000},
		{End: f, Off: 100_000, Ptr: at(3), Len: 1000},
		{End: f, Off: 5, Ptr: 4096, Len: 1000},
		{End: f, Off: -1, Ptr: at(5), Len: 1000},
		{End: f, Off: 7, Ptr: at(6), Len: 0},
		{End: f, Off: 7, Ptr: at(7), Len: 60_000},
		{End: f, Off: 7, Ptr: at(8), Len: 1000, N: 5, Err: boom}, // answers of before are gone
	}
	if err := r.m.ReadMany(ctx(t), items); err != nil {
		t.Fatal(err)
	}
	want := []struct {
		n   int64
		err error
	}{{1000, nil}, {0, boom}, {10, io.EOF}, {0, io.EOF}, {0, base.ErrInvalid}, {0, base.ErrInvalid}, {0, nil}, {60_000, nil}, {1000, nil}}
	for i, it := range items {
		if it.N != want[i].n || !errors.Is(it.Err, want[i].err) {
			t.Errorf("item %d: %d, %v; want %+v", i, it.N, it.Err, want[i])
		}
		if it.N > 0 && !bytes.Equal(r.peek(it.Ptr, it.N), data[it.Off:it.Off+it.N]) {
			t.Errorf("item %d: other bytes", i)
		}
	}
	if err := r.m.ReadMany(ctx(t), make([]xfer.Item, xfer.MaxItems+1)); !errors.Is(err, base.ErrInvalid) {
		t.Error(err)
	}
	if err := r.m.ReadMany(ctx(t), nil); err != nil {
		t.Error(err)
	}
}

// TestManyTimeout: the items keep no answers, and the next call works.
func TestManyTimeout(t *testing.T) {
	r := newRig(t, host.Options{Faults: host.Faults{CopyDelay: 50 * time.Millisecond}}, xfer.Options{Lanes: 1})
	f := xfer.File(tempFile(t, noise(t, 8192)))
	items := []xfer.Item{{End: f, Ptr: r.mem.Ptr(), Len: 100}, {End: f, Ptr: r.mem.Ptr() + 100, Len: 100}}
	c, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := r.m.ReadMany(c, items); !errors.Is(err, base.ErrTimeout) || items[0].N != 0 {
		t.Errorf("%v, %+v", err, items[0])
	}
	if err := r.m.ReadMany(ctx(t), items); err != nil || items[1].N != 100 || items[1].Err != nil {
		t.Errorf("%v, %+v", err, items[1])
	}
}

// TestWarmTogether: those who warm the lanes at the same time do not wait for each
// other's lanes for ever.
func TestWarmTogether(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{ChunkBytes: xfer.MinChunk, Lanes: 4})
	c, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if err := r.m.Warm(c); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestConcurrentMix has readers, writers and batches share a few lanes.
func TestConcurrentMix(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{ChunkBytes: xfer.MinChunk, Depth: 2, Lanes: 3})
	if err := r.m.Warm(ctx(t)); err != nil {
		t.Fatal(err)
	}
	data := noise(t, 1<<20)
	ends := endpoints(t, r, data)
	var wg sync.WaitGroup
	for g := range 8 {
		p := r.mem.Ptr() + gpu.Ptr(g<<20)
		e := ends[[]string{"file", "device", "pinned"}[g%3]]
		wg.Go(func() {
			for i := range 10 {
				off := int64(i*1000 + g)
				if n, err := r.m.Read(ctx(t), e, off, p, 300_000); n != 300_000 || err != nil {
					t.Error(n, err)
				}
				items := make([]xfer.Item, 50)
				for k := range items {
					items[k] = xfer.Item{End: e, Off: off + int64(k)*3000, Ptr: p + gpu.Ptr(400_000+k*3000), Len: 2999}
				}
				if err := r.m.ReadMany(ctx(t), items); err != nil {
					t.Error(err)
				}
				for k := range items {
					if items[k].Err != nil {
						t.Error(items[k].Err)
					}
				}
			}
		})
	}
	wg.Wait()
	for g := range int64(8) {
		p, off := r.mem.Ptr()+gpu.Ptr(g<<20), 9000+g
		if !bytes.Equal(r.peek(p, 300_000), data[off:off+300_000]) || !bytes.Equal(r.peek(p+403_000, 2999), data[off+3000:off+5999]) {
			t.Errorf("worker %d: other bytes", g)
		}
	}
}

// BenchmarkReadManyPinned shows what a thousand values cost besides the moves.
func BenchmarkReadManyPinned(b *testing.B) {
	back, err := host.Open(host.Options{})
	if err != nil {
		b.Fatal(err)
	}
	d := back.Devices()[0]
	mem, err := d.Alloc(8 << 20)
	if err != nil {
		b.Fatal(err)
	}
	h, err := d.AllocHost(8 << 20)
	if err != nil {
		b.Fatal(err)
	}
	m, err := xfer.New(back, d, nil, xfer.Options{Lanes: 1})
	if err != nil {
		b.Fatal(err)
	}
	items := make([]xfer.Item, 1024)
	e := xfer.Pinned(h)
	for i := range items {
		items[i] = xfer.Item{End: e, Off: int64(i) * 4096, Ptr: mem.Ptr() + gpu.Ptr(i*4096), Len: 16}
	}
	for b.Loop() {
		if err := m.ReadMany(context.Background(), items); err != nil {
			b.Fatal(err)
		}
	}
	if err := errors.Join(m.Close(context.Background()), mem.Close(), h.Close(), back.Close()); err != nil {
		b.Fatal(err)
	}
}

// TestStagingTogether: values of all sizes between staging memory and the GPU move
// in one call, are counted as staged for the reason given, and are refused when
// strict.
func TestStagingTogether(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{ChunkBytes: xfer.MinChunk, Lanes: 2})
	h, err := r.d.AllocHost(4 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	data := noise(t, 4<<20)
	copy(h.Bytes(), data)
	e := xfer.Staging(h, "the reason")
	var items []xfer.Item
	var at, total int64
	for i := range int64(600) {
		n := 1 + i*17%4096
		if i%50 == 0 {
			n = 200_001
		}
		if at+n > 4<<20 {
			break
		}
		items = append(items, xfer.Item{End: e, Off: at, Ptr: r.mem.Ptr() + gpu.Ptr(2*i+at), Len: n})
		at, total = at+n, total+n
	}
	if err := r.m.ReadMany(ctx(t), items); err != nil {
		t.Fatal(err)
	}
	clear(h.Bytes())
	if err := r.m.WriteMany(ctx(t), items); err != nil {
		t.Fatal(err)
	}
	for i, it := range items {
		if it.N != it.Len || it.Err != nil {
			t.Fatalf("%d: %+v", i, it)
		}
	}
	if !bytes.Equal(h.Bytes()[:at], data[:at]) {
		t.Error("other bytes after there and back")
	}
	for _, c := range r.m.Paths() {
		if c.Path != driver.PathStaged || c.Reason != "the reason" || c.Bytes != total {
			t.Errorf("%+v, want %d bytes staged", c, total)
		}
	}
	strict, err := xfer.New(r.b, r.d, nil, xfer.Options{Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	defer strict.Close(ctx(t))
	if _, err := strict.Read(ctx(t), e, 0, r.mem.Ptr(), 1); !errors.Is(err, base.ErrNotSupported) {
		t.Error(err)
	}
}
