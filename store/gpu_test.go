package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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

// TestT10Strict: a strict store refuses what it would stage and says why; a partial
// last block may pass.
func TestT10Strict(t *testing.T) {
	b := newGPUBox(t, host.Options{}, func(o *store.Options) { o.Strict = true })
	check := func(what string, err error, reason string) {
		t.Helper()
		if !errors.Is(err, store.ErrNotSupported) || !strings.Contains(err.Error(), "strict") || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v", what, err)
		}
	}
	check("put", b.put("a", b.at(0), 4096), gpuxfer.ReasonUnregistered)
	check("put of plain bytes", b.ns.Put(bg, []byte("a"), store.Bytes(fill(1, 9000)), store.PutOptions{}), "plain memory")
	if there, err := b.ns.Exists(bg, []byte("a")); there || err != nil {
		t.Error(there, err)
	}
	want := fill(2, 100)
	b.poke(b.at(0), want)
	if err := b.put("small", b.at(0), 100); err != nil {
		t.Errorf("a partial last block: %v", err)
	}
	if _, err := b.ns.Get(bg, []byte("small"), store.OnGPU(b.at(4096), 100), store.GetOptions{}); err != nil || !bytes.Equal(b.peek(b.at(4096), 100), want) {
		t.Errorf("a partial last block: %v", err)
	}
	reg, err := driver.AllocRegion(8192, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer reg.Close()
	copy(reg.CPU(), fill(3, 8192))
	if err := b.ns.Put(bg, []byte("direct"), store.InRegion(reg, 0, 8192), store.PutOptions{}); err != nil {
		t.Errorf("what goes direct: %v", err)
	}
	_, err = b.ns.Get(bg, []byte("direct"), store.OnGPU(b.at(0), 8192), store.GetOptions{})
	check("get", err, gpuxfer.ReasonUnregistered)
	if errs := b.ns.Verify(bg, [][]byte{[]byte("direct")}); errs[0] != nil {
		t.Errorf("verifying moves no value: %v", errs[0])
	}
}

// TestI3GPUHeld: memory cannot be unregistered while a call uses it, for reads and
// writes, and can afterwards.
func TestI3GPUHeld(t *testing.T) {
	gate, on := make(chan struct{}), atomic.Bool{}
	b := newGPUBox(t, host.Options{Faults: host.Faults{Run: func(gpu.Copy) error {
		if on.Load() {
			<-gate
		}
		return nil
	}}}, nil)
	const n = 300_000
	want := fill(4, n)
	b.poke(b.at(0), want)
	r, err := b.s.RegisterGPU(b.at(0), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func() error{
		"put": func() error { return b.put("a", b.at(0), n) },
		"get": func() error {
			_, err := b.ns.Get(bg, []byte("b"), store.OnGPU(b.at(0), n), store.GetOptions{})
			return err
		},
	} {
		if err := b.put("b", b.at(0), n); err != nil {
			t.Fatal(err)
		}
		on.Store(true)
		done := make(chan error, 1)
		go func() { done <- call() }()
		for end := time.Now().Add(time.Minute); r.InFlight() == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s holds nothing", name)
			}
		}
		if err := r.Close(); !errors.Is(err, store.ErrBusy) {
			t.Errorf("%s: closed while in flight: %v", name, err)
		}
		on.Store(false)
		close(gate)
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if r.InFlight() != 0 {
			t.Errorf("%s: %d holds are left", name, r.InFlight())
		}
		gate = make(chan struct{})
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := b.ns.Get(bg, []byte("b"), store.OnGPU(b.at(0), n), store.GetOptions{}); err != nil || !bytes.Equal(b.peek(b.at(0), n), want) {
		t.Error(err)
	}
}

// TestGPUMemoryReplaced: registered memory that was freed and allocated again at the
// same address is noticed.
func TestGPUMemoryReplaced(t *testing.T) {
	b := newGPUBox(t, host.Options{}, nil)
	if err := b.put("a", b.at(0), 5000); err != nil {
		t.Fatal(err)
	}
	r, err := b.s.RegisterGPU(b.mem.Ptr(), gpuBoxBytes)
	if err != nil {
		t.Fatal(err)
	}
	if b.mem, err = b.g.Replace(b.mem); err != nil {
		t.Fatal(err)
	}
	if err := b.put("b", b.at(0), 5000); !errors.Is(err, store.ErrMismatch) {
		t.Errorf("put: %v", err)
	}
	if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), 5000), store.GetOptions{}); !errors.Is(err, store.ErrMismatch) {
		t.Errorf("get: %v", err)
	}
	if there, _ := b.ns.Exists(bg, []byte("b")); there {
		t.Error("the refused put left an object")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := b.put("b", b.at(0), 5000); err != nil {
		t.Errorf("after it was closed: %v", err)
	}
}

// TestGPURefusals: what is no GPU memory, and stores without a GPU.
func TestGPURefusals(t *testing.T) {
	b := newGPUBox(t, host.Options{}, nil)
	for name, c := range map[string]struct {
		v    store.Range
		want error
	}{
		"host memory":  {store.Range{GPU: 4096, Len: 10}, store.ErrInvalid},
		"past the end": {store.Range{GPU: b.at(gpuBoxBytes - 10), Len: 11}, store.ErrOutOfRange},
		"two memories": {store.Range{GPU: b.at(0), Len: 1, Bytes: []byte("x")}, store.ErrInvalid},
		"negative":     {store.Range{GPU: b.at(0), Len: -1}, store.ErrInvalid},
		"no memory":    {store.Range{Len: 5}, store.ErrInvalid},
	} {
		if err := b.ns.Put(bg, []byte("k"), store.Buffers{c.v}, store.PutOptions{}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if err := b.s.WarmGPU(bg, 0); err != nil {
		t.Error(err)
	}
	if err := b.s.WarmGPU(bg, 1); !errors.Is(err, store.ErrNotFound) {
		t.Error(err)
	}
	if err := b.put("small", b.at(0), 100); err != nil {
		t.Fatal(err)
	}
	if _, err := b.ns.Get(bg, []byte("small"), store.OnGPU(b.at(0), 99), store.GetOptions{}); !errors.Is(err, store.ErrOutOfRange) {
		t.Error(err)
	}
	none := newBox(t, box{})
	_, err := none.s.RegisterGPU(b.at(0), 1)
	for _, err := range []error{none.ns.Put(bg, []byte("k"), store.OnGPU(b.at(0), 1), store.PutOptions{}), err, none.s.WarmGPU(bg, 0)} {
		if !errors.Is(err, store.ErrNotSupported) || !strings.Contains(err.Error(), "without a GPU") {
			t.Errorf("a store without a GPU: %v", err)
		}
	}
}

// TestGPUCorrupt: checksums are verified on the way to a GPU.
func TestGPUCorrupt(t *testing.T) {
	b := newGPUBox(t, host.Options{}, nil)
	const n = 2<<20 + 5
	b.poke(b.at(0), fill(5, n))
	if err := b.put("a", b.at(0), n); err != nil {
		t.Fatal(err)
	}
	b.close()
	data, err := os.ReadFile(b.path(0))
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(data, fill(5, n)[:4096])
	if at < 0 {
		t.Fatal("the value is not on the first device")
	}
	f, err := os.OpenFile(b.path(0), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt([]byte{^data[at+1<<20+7]}, int64(at+1<<20+7))
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	b.openDevices()
	b.open()
	if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), n), store.GetOptions{}); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("a changed byte: %v", err)
	}
	if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), n), store.GetOptions{NoVerify: true}); err != nil {
		t.Error(err)
	}
	if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), 1000), store.GetOptions{Len: 1000}); err != nil {
		t.Errorf("another piece: %v", err)
	}
}

// TestGPUCopyFails: a copy that cannot be queued fails its value and nothing else; a
// GPU that breaks costs buffers, and the store goes on for host memory.
func TestGPUCopyFails(t *testing.T) {
	boom := errors.New("boom")
	var queue, run atomic.Bool
	b := newGPUBox(t, host.Options{Faults: host.Faults{
		NoMover: true,
		Queue: func(c gpu.Copy) error {
			if queue.Load() {
				return boom
			}
			return nil
		},
		Run: func(c gpu.Copy) error {
			if run.Load() {
				return boom
			}
			return nil
		},
	}}, nil)
	if err := b.put("a", b.at(0), 200_000); err != nil {
		t.Fatal(err)
	}
	used := b.ns.Usage()
	run.Store(true)
	items := []store.PutItem{{Key: []byte("bad"), Value: store.OnGPU(b.at(0), 9000)}, {Key: []byte("good"), Value: store.Bytes(fill(1, 9000))}}
	b.ns.PutBatch(bg, items)
	run.Store(false)
	if !errors.Is(items[0].Err, boom) || items[1].Err != nil {
		t.Errorf("%v, %v", items[0].Err, items[1].Err)
	}
	if st := b.s.Stats(); st.LostBuffers == 0 {
		t.Error("the buffer of a copy in doubt is used again")
	}
	if err := b.put("b", b.at(0), 9000); err != nil {
		t.Errorf("another lane: %v", err)
	}
	lost := b.s.Stats().LostBuffers
	queue.Store(true)
	for range 20 { // more often than there are lanes
		if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), 200_000), store.GetOptions{}); !errors.Is(err, boom) {
			t.Fatalf("a copy that was refused: %v", err)
		}
	}
	queue.Store(false)
	if now := b.s.Stats().LostBuffers; now != lost {
		t.Errorf("copies that never began cost %d buffers", now-lost)
	}
	if got, err := b.ns.GetBytes(bg, []byte("good"), store.GetOptions{}); err != nil || !bytes.Equal(got, fill(1, 9000)) {
		t.Errorf("host memory: %v", err)
	}
	if now := b.ns.Usage(); now.Objects != used.Objects+2 {
		t.Errorf("%+v, before %+v", now, used)
	}
	// The GPU breaks for good: it is given up before it has all of the memory.
	run.Store(true)
	var err error
	for i := 0; i < 20 && !errors.Is(err, store.ErrIsolated); i++ {
		_, err = b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), 200_000), store.GetOptions{})
	}
	if !errors.Is(err, store.ErrIsolated) || !errors.Is(err, boom) {
		t.Errorf("a GPU that fails all the time: %v", err)
	}
	for i := range 4 {
		key := []byte(fmt.Sprint("host", i))
		if err := b.ns.Put(bg, key, store.Bytes(fill(1, 3<<20)), store.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		if got, err := b.ns.GetBytes(bg, key, store.GetOptions{}); err != nil || !bytes.Equal(got, fill(1, 3<<20)) {
			t.Fatalf("host memory beside a broken GPU: %v", err)
		}
	}
}

// TestI4GPUTimeout: a caller that gives up leaves nothing behind that lands later in
// its memory.
func TestI4GPUTimeout(t *testing.T) {
	b := newGPUBox(t, host.Options{}, nil)
	want := fill(6, 4<<20)
	b.poke(b.at(0), want)
	if err := b.put("a", b.at(0), 4<<20); err != nil {
		t.Fatal(err)
	}
	b.poke(b.at(0), make([]byte, 4<<20))
	r, err := b.s.RegisterGPU(b.at(0), 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(bg)
	cancel()
	if _, err := b.ns.Get(ctx, []byte("a"), store.OnGPU(b.at(0), 4<<20), store.GetOptions{}); !errors.Is(err, store.ErrTimeout) {
		t.Errorf("an ended context: %v", err)
	}
	if err := r.Close(); err != nil { // nothing holds it
		t.Error(err)
	}
	seen := b.peek(b.at(0), 4<<20)
	b.reopen() // waits for what is still under way
	if !bytes.Equal(b.peek(b.at(0), 4<<20), seen) {
		t.Error("bytes landed after the call returned")
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
	sums := func() (paths, devices int64) {
		// The mover counts when a command has ended, so what it has the device has too.
		for _, d := range b.s.Stats().Devices {
			devices += d.ReadBytes + d.WriteBytes
		}
		for _, p := range b.s.Stats().Paths {
			paths += p.Bytes
		}
		return paths, devices - b.base[0] - b.base[1]
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
		paths, devices := sums()
		if devices-paths > staging {
			t.Errorf("the devices moved %d bytes, the mover has counted %d", devices, paths)
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
