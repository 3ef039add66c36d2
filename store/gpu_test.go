package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/host"
	gpuxfer "github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/store"
)

// gpuBox is a store with simulated GPUs, and memory on the first of them.
type gpuBox struct {
	*box
	g   *host.Backend
	mem gpu.Memory
}

const gpuBoxBytes = 32 << 20

func newGPUBox(t *testing.T, h host.Options, tune func(*store.Options)) *gpuBox {
	t.Helper()
	return newGPUBoxOn(t, files, h, tune)
}

func newGPUBoxOn(t *testing.T, k kind, h host.Options, tune func(*store.Options)) *gpuBox {
	t.Helper()
	g, err := host.Open(h)
	if err != nil {
		t.Fatal(err)
	}
	b := &gpuBox{g: g}
	if b.mem, err = g.Devices()[0].Alloc(gpuBoxBytes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the store was closed
		if err := errors.Join(b.mem.Close(), g.Close()); err != nil {
			t.Error(err)
		}
	})
	b.box = k.newBox(t, box{sizes: []int64{128 << 20, 64 << 20}, tune: func(o *store.Options) {
		o.GPU = store.GPUOptions{Backend: g}
		if tune != nil {
			tune(o)
		}
	}})
	return b
}

// copyGPU moves b to or from GPU memory by a stream of its own.
func (b *gpuBox) copyGPU(p gpu.Ptr, data []byte, toHost bool) []byte {
	b.t.Helper()
	if len(data) == 0 {
		return data
	}
	d := b.g.Devices()[0]
	h, err := d.AllocHost(int64(len(data)))
	if err != nil {
		b.t.Fatal(err)
	}
	defer h.Close()
	s, err := d.NewStream()
	if err != nil {
		b.t.Fatal(err)
	}
	defer s.Close()
	copy(h.Bytes(), data)
	err = s.Copy(gpu.Copy{Dev: p, Host: h.Bytes(), ToHost: toHost})
	if err == nil {
		var n uint64
		if n, err = s.Tick(); err == nil {
			err = s.WaitTick(bg, n)
		}
	}
	if err != nil {
		b.t.Fatal(err)
	}
	copy(data, h.Bytes())
	return data
}

func (b *gpuBox) poke(p gpu.Ptr, data []byte)  { b.copyGPU(p, bytes.Clone(data), false) }
func (b *gpuBox) peek(p gpu.Ptr, n int) []byte { return b.copyGPU(p, make([]byte, n), true) }
func (b *gpuBox) at(off int) gpu.Ptr           { return b.mem.Ptr() + gpu.Ptr(off) }
func (b *gpuBox) put(key string, p gpu.Ptr, n int64) error {
	return b.ns.Put(bg, []byte(key), store.OnGPU(p, n), store.PutOptions{Replace: true})
}

// TestGPUValues: values of every size go from GPU memory to the store and back,
// whole and in parts, alone and in batches, beside host memory and regions in one
// list, and nothing beside them changes.
func TestGPUValues(t *testing.T) {
	for name, f := range map[string]host.Faults{"kernel": {}, "copies": {NoMover: true}} {
		t.Run(name, func(t *testing.T) {
			b := newGPUBox(t, host.Options{Faults: f}, nil)
			rng := testenv.Seed(t)
			sizes := append([]int{0, 1, 100, 4095, 4096, 4097, 16 << 10, 70_001, 1<<20 - 1, 1 << 20, 1<<20 + 1, 3<<20 + 17}, borderSizes...)
			for i, n := range sizes {
				want := fill(uint64(i), n)
				from, to := b.at(1+i), b.at(16<<20+3*i)
				b.poke(from, want)
				key := []byte(fmt.Sprint("v", i))
				o := store.PutOptions{Durability: store.Durability(i % 2)}
				if err := b.ns.Put(bg, key, store.OnGPU(from, int64(n)), o); err != nil {
					t.Fatalf("put %d: %v", n, err)
				}
				info, err := b.ns.Stat(bg, key)
				if err != nil || !info.HasCRC || info.CRC32C != crc32.Checksum(want, crc32.MakeTable(crc32.Castagnoli)) {
					t.Fatalf("%d bytes: %+v, %v", n, info, err)
				}
				guard := bytes.Repeat([]byte{0xee}, n+128)
				b.poke(to-64, guard)
				if got, err := b.ns.Get(bg, key, store.OnGPU(to, int64(n)), store.GetOptions{}); got != int64(n) || err != nil {
					t.Fatalf("get %d: %d, %v", n, got, err)
				}
				copy(guard[64:], want)
				if !bytes.Equal(b.peek(to-64, n+128), guard) {
					t.Fatalf("%d bytes: others arrived, or beside them", n)
				}
				if got, err := b.ns.GetBytes(bg, key, store.GetOptions{}); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("%d bytes to host memory: %v", n, err)
				}
				for range 3 {
					off := rng.IntN(n + 1)
					k := rng.IntN(n - off + 1)
					o := store.GetOptions{Off: int64(off), Len: int64(k), Exact: true, NoVerify: rng.IntN(2) == 0}
					if got, err := b.ns.Get(bg, key, store.OnGPU(to, int64(k)), o); got != int64(k) || err != nil {
						t.Fatalf("range %d+%d of %d: %d, %v", off, k, n, got, err)
					}
					if !bytes.Equal(b.peek(to, k), want[off:off+k]) {
						t.Fatalf("range %d+%d of %d: other bytes", off, k, n)
					}
				}
			}
			for i, err := range b.ns.Verify(bg, [][]byte{[]byte("v7"), []byte("v11")}) {
				if err != nil {
					t.Errorf("verify %d: %v", i, err)
				}
			}
			b.equal()
			b.reopen()
			if got, err := b.ns.GetBytes(bg, []byte("v11"), store.GetOptions{}); err != nil || !bytes.Equal(got, fill(11, sizes[11])) {
				t.Errorf("after reopening: %v", err)
			}
		})
	}
}

// TestT34GPULists: one value in pieces of the memory of two GPUs, host memory and
// regions; each GPU counts what was its own.
func TestT34GPULists(t *testing.T) {
	b := newGPUBox(t, host.Options{Devices: 2}, nil)
	other, err := b.g.Devices()[1].Alloc(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	reg, err := driver.AllocRegion(4<<20, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer reg.Close()
	want := fill(3, 2<<20+999)
	plain := bytes.Clone(want[:5000])
	b.poke(b.at(7), want[5000:1_000_000])
	copy(reg.CPU(), want[1_000_000:1_300_000])
	b.poke(b.at(8<<20), want[1_300_000:2<<20])
	v := store.Buffers{{Bytes: plain}, {GPU: b.mem.Ptr(), Off: 7, Len: 995_000}, {Region: reg, Len: 300_000},
		{GPU: b.at(8 << 20), Len: 2<<20 - 1_300_000}, {GPU: b.at(0), Len: 0}, {Bytes: want[2<<20:]}}
	if err := b.ns.Put(bg, []byte("list"), v, store.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := b.ns.GetBytes(bg, []byte("list"), store.GetOptions{}); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("to host memory: %v", err)
	}
	clear(plain)
	clear(reg.CPU())
	tail := make([]byte, 999)
	// The second GPU takes a part too.
	v[1] = store.Range{GPU: other.Ptr(), Len: 995_000}
	v[5].Bytes = tail
	if n, err := b.ns.Get(bg, []byte("list"), v, store.GetOptions{}); n != int64(len(want)) || err != nil {
		t.Fatal(n, err)
	}
	got := append(bytes.Clone(plain), b.peekAny(other.Ptr(), 995_000)...)
	got = append(append(append(got, reg.CPU()[:300_000]...), b.peek(b.at(8<<20), 2<<20-1_300_000)...), tail...)
	if !bytes.Equal(got, want) {
		t.Error("a list gets other bytes")
	}
	st := b.s.Stats().GPUs
	if len(st) != 2 || st[0].Index != 0 || st[1].Index != 1 || bytesOf(st[1], false) != 995_000 || bytesOf(st[0], true) != int64(2<<20-1_300_000+995_000) {
		t.Errorf("%+v", st)
	}
	b.equal()
}

// peekAny reads memory of any GPU of the backend: its streams reach all of them.
func (b *gpuBox) peekAny(p gpu.Ptr, n int) []byte { return b.peek(p, n) }

func bytesOf(g store.GPUStat, write bool) (n int64) {
	for _, p := range g.Paths {
		if p.Write == write {
			n += p.Bytes
		}
	}
	return n
}

// TestGPUBatches: many values in one call, small and large, some of them not there.
func TestGPUBatches(t *testing.T) {
	b := newGPUBox(t, host.Options{}, nil)
	const n, stride = 500, 20_000
	image := fill(9, n*stride)
	b.poke(b.at(0), image)
	rng := testenv.Seed(t)
	puts, gets := make([]store.PutItem, n), make([]store.GetItem, n+1)
	for i := range puts {
		size := rng.IntN(stride)
		if i%3 == 0 {
			size = rng.IntN(500)
		}
		key := []byte(fmt.Sprint(i))
		puts[i] = store.PutItem{Key: key, Value: store.OnGPU(b.at(i*stride), int64(size)),
			PutOptions: store.PutOptions{Durability: store.Durability(i % 2)}}
		gets[i] = store.GetItem{Key: key, Dst: store.OnGPU(b.at(12<<20+i*stride+5), int64(size))}
	}
	gets[n] = store.GetItem{Key: []byte("none"), Dst: store.OnGPU(b.at(0), 1)}
	b.ns.PutBatch(bg, puts)
	b.ns.GetBatch(bg, gets)
	for i := range puts {
		size := int(puts[i].Value.Size())
		if puts[i].Err != nil || gets[i].Err != nil || gets[i].N != int64(size) {
			t.Fatalf("%d: put %v, get %d, %v", i, puts[i].Err, gets[i].N, gets[i].Err)
		}
		if !bytes.Equal(b.peek(b.at(12<<20+i*stride+5), size), image[i*stride:i*stride+size]) {
			t.Fatalf("value %d has other bytes", i)
		}
	}
	if !errors.Is(gets[n].Err, store.ErrNotFound) {
		t.Error(gets[n].Err)
	}
	l, err := b.ns.Lookup(bg, [][]byte{[]byte("3")}, store.LookupOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	size := puts[3].Value.Size()
	if got, err := l.Get(bg, 0, store.OnGPU(b.at(31<<20), size), store.GetOptions{}); got != size || err != nil ||
		!bytes.Equal(b.peek(b.at(31<<20), int(size)), image[3*stride:3*stride+int(size)]) {
		t.Errorf("by a lease: %d, %v", got, err)
	}
	b.equal()
}

// TestT08T28NoDirectPath: without a direct path every byte of a value is
// staged, and the statistics say why: the memory is not registered; or it is, and no
// transport takes it.
func TestT08T28NoDirectPath(t *testing.T) {
	b := newGPUBox(t, host.Options{}, nil)
	const n = 4 << 20
	reasons := func() map[string]int64 {
		out := map[string]int64{}
		for _, p := range b.s.Stats().Paths {
			if p.Path == driver.PathStaged {
				out[fmt.Sprint(p.Write, " ", p.Reason)] = p.Bytes
			}
		}
		return out
	}
	if err := b.put("a", b.at(0), n); err != nil {
		t.Fatal(err)
	}
	r, err := b.s.RegisterGPU(b.at(0), n)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), n), store.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	got := reasons()
	if got["true "+gpuxfer.ReasonUnregistered] != n || got["false "+gpu.ReasonNotAsked] != n || len(got) != 2 {
		t.Errorf("%v", got)
	}
	for _, p := range b.s.Stats().Paths {
		if p.Path == driver.PathDirect && !p.Write {
			t.Errorf("T08: %d bytes went direct", p.Bytes)
		}
	}
	if err := r.Close(); err != nil { // T28: and the next read is that of unregistered memory again
		t.Fatal(err)
	}
	if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), n), store.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := reasons(); got["false "+gpuxfer.ReasonUnregistered] != n {
		t.Errorf("T28: %v", got)
	}
}

// TestT35HostValuesAreNoGPUs: bytes of host memory count for the store and for no GPU.
func TestT35HostValuesAreNoGPUs(t *testing.T) {
	b := newGPUBox(t, host.Options{}, nil)
	if err := b.put("a", b.at(0), 10_000); err != nil {
		t.Fatal(err)
	}
	before := b.s.Stats()
	if _, err := b.ns.GetBytes(bg, []byte("a"), store.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	after := b.s.Stats()
	if bytesOf(after.GPUs[0], false) != 0 || bytesOf(after.GPUs[0], true) != 10_000 {
		t.Errorf("%+v", after.GPUs)
	}
	if len(after.Paths) <= len(before.Paths) {
		t.Errorf("the read is not counted: %+v", after.Paths)
	}
}

// TestGPUManyCallers: callers share movers and staging memory.
func TestGPUManyCallers(t *testing.T) {
	b := newGPUBox(t, host.Options{}, nil)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			base0 := g * 2 << 20
			for i := range 12 {
				n := []int{100, 5000, 60_000, 1<<20 + 3}[(g+i)%4]
				want := fill(uint64(g*100+i), n)
				b.poke(b.at(base0), want)
				key := fmt.Sprint(g, " ", i)
				if err := b.put(key, b.at(base0), int64(n)); err != nil {
					t.Error(err)
					return
				}
				b.poke(b.at(base0), make([]byte, n))
				if _, err := b.ns.Get(bg, []byte(key), store.OnGPU(b.at(base0), int64(n)), store.GetOptions{}); err != nil {
					t.Error(err)
					return
				}
				if !bytes.Equal(b.peek(b.at(base0), n), want) {
					t.Errorf("%s: other bytes", key)
				}
			}
		})
	}
	wg.Wait()
	b.equal()
	if st := b.s.Stats(); st.LostBuffers != 0 || st.GPUs[0].PinnedBytes > 8*base.MiB {
		t.Errorf("%+v", st.GPUs)
	}
}

// TestT38SumsUnderLoad: at all times the mover has counted what the devices have, but
// for what is under way; and each GPU has what its values had.
func TestT38SumsUnderLoad(t *testing.T) {
	b := newGPUBox(t, host.Options{}, nil)
	const staging, size = 8 << 20, 300_000
	b.poke(b.at(0), fill(1, size))
	moved := func() (n int64) {
		for _, d := range b.s.Stats().Devices {
			n += d.ReadBytes + d.WriteBytes
		}
		return n - b.base[0] - b.base[1]
	}
	counted := func() (n int64) {
		for _, p := range b.s.Stats().Paths {
			n += p.Bytes
		}
		return n
	}
	var wg sync.WaitGroup
	var ends atomic.Int64
	for g := range 4 {
		wg.Go(func() {
			defer ends.Add(1)
			for i := range 60 {
				key := fmt.Sprint(g, " ", i%5)
				o := store.PutOptions{Replace: true, Durability: store.Durability(i % 2)}
				err := b.ns.Put(bg, []byte(key), store.OnGPU(b.at(0), size), o)
				if err == nil {
					_, err = b.ns.Get(bg, []byte(key), store.OnGPU(b.at((2+g)<<20), size), store.GetOptions{})
				}
				if err == nil {
					_, err = b.ns.GetBytes(bg, []byte(key), store.GetOptions{})
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	samples := 0
	for ; ends.Load() < 4; samples++ {
		// The mover counts when a command has ended, so what it has the device has too.
		before := counted()
		devices := moved()
		paths := counted()
		if devices-paths > staging || before > devices {
			t.Errorf("the devices moved %d bytes, the mover has counted %d before and %d after", devices, before, paths)
			break
		}
	}
	wg.Wait()
	b.equal()
	if g := b.s.Stats().GPUs[0]; bytesOf(g, true) != 4*60*size || bytesOf(g, false) != 4*60*size {
		t.Errorf("%+v after %d samples", g, samples)
	}
}

// TestGPUReaderAndWriter: values of unknown length, and readers that keep a version.
func TestGPUReaderAndWriter(t *testing.T) {
	b := newGPUBox(t, host.Options{}, nil)
	want := fill(7, 5<<20+33)
	b.poke(b.at(11), want)
	w, err := b.ns.NewWriter(bg, []byte("w"), store.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	v := store.Buffers{{GPU: b.at(0), Off: 11, Len: 3 << 20}, {Bytes: want[3<<20 : 3<<20+1000]}, {GPU: b.at(11 + 3<<20 + 1000), Len: 2<<20 - 967}}
	if n, err := w.WriteBuffers(v[:1]); n != 3<<20 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := w.WriteBuffers(v[1:]); n != 2<<20+33 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := w.WriteBuffers(store.OnGPU(4096, 5)); n != 0 || !errors.Is(err, store.ErrInvalid) {
		t.Errorf("host memory as GPU memory: %d, %v", n, err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := w.WriteBuffers(v); n != 0 || !errors.Is(err, store.ErrClosed) {
		t.Errorf("after close: %d, %v", n, err)
	}
	r, err := b.ns.NewReader(bg, []byte("w"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := b.ns.Delete(bg, []byte("w"), store.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	to := b.at(16 << 20)
	if err := r.ReadBuffers(bg, store.OnGPU(to, 2<<20), 12345); err != nil || !bytes.Equal(b.peek(to, 2<<20), want[12345:12345+2<<20]) {
		t.Errorf("read of a deleted value that is held: %v, or other bytes", err)
	}
	if err := r.ReadBuffers(bg, store.OnGPU(to, 100), int64(len(want)-99)); !errors.Is(err, store.ErrOutOfRange) {
		t.Error(err)
	}
	p := make([]byte, 100)
	if err := r.ReadRange(bg, p, 5); err != nil || !bytes.Equal(p, want[5:105]) {
		t.Error(err)
	}
}
