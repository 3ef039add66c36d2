package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"sync"
	"testing"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/host"
	gpuxfer "github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/store"
)

// directBox is a gpuBox on controller models, which reach the GPUs' memory, with all
// of its memory registered.
func newDirectBox(t *testing.T, h host.Options, k kind, tune func(*store.Options)) (*gpuBox, *gpu.Registration) {
	t.Helper()
	b := newGPUBoxOn(t, k, h, tune)
	return b, b.register()
}

func (b *gpuBox) register() *gpu.Registration {
	b.t.Helper()
	r, err := b.s.RegisterGPU(b.mem.Ptr(), gpuBoxBytes)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := r.Close(); err != nil && !errors.Is(err, store.ErrClosed) {
			b.t.Error(err)
		}
	})
	return r
}

// ways sums what the store counted for values: bytes by direction, way and reason,
// the store's own blocks and self-tests left out.
func (b *gpuBox) ways() map[string]int64 {
	out := map[string]int64{}
	for _, p := range b.s.Stats().Paths {
		if p.Reason != "superblocks and marks" && p.Reason != "self-test" {
			out[way(p.PathKey)] += p.Bytes
		}
	}
	return out
}

func way(k driver.PathKey) string {
	dir := "read"
	if k.Write {
		dir = "write"
	}
	return strings.TrimSpace(fmt.Sprint(dir, " ", k.Path, " ", k.Reason))
}

// wantWays compares what ways gives now with it before, key by key.
func wantWays(t *testing.T, what string, before, after, want map[string]int64) {
	t.Helper()
	for k, n := range after {
		if d := n - before[k]; d != want[k] {
			t.Errorf("%s: %d bytes %s, want %d", what, d, k, want[k])
		}
	}
	for k, n := range want {
		if _, there := after[k]; !there {
			t.Errorf("%s: no bytes %s, want %d", what, k, n)
		}
	}
}

// TestT08T27T28Direct: the whole blocks of registered GPU memory go between it and the
// devices, and no byte of them through host memory; a partial last block is a tail.
// Without the registration they are staged again.
func TestT08T27T28Direct(t *testing.T) {
	const n = 16<<20 + 100
	b, r := newDirectBox(t, host.Options{}, sims, nil)
	want := fill(8, n)
	b.poke(b.at(0), want)
	if err := b.put("a", b.at(0), n); err != nil {
		t.Fatal(err)
	}
	b.poke(b.at(0), make([]byte, n))
	if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), n), store.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.peek(b.at(0), n), want) {
		t.Error("other bytes")
	}
	wantWays(t, "registered", nil, b.ways(), map[string]int64{"read direct": 16 << 20, "write direct": 16 << 20,
		"read tail partial last block": 4096, "write tail partial last block": 4096})
	for _, p := range b.s.Stats().Paths {
		if p.Path == driver.PathDirect && p.Reason == "" && p.Ops != 16 { // one a piece
			t.Errorf("T08: %s in %d transfers, want 16", way(p.PathKey), p.Ops)
		}
	}
	var hostBytes int64
	for _, p := range b.s.Stats().GPUs[0].Paths {
		if p.Path != driver.PathDirect {
			hostBytes += p.Bytes
		}
	}
	if hostBytes != 2*100 {
		t.Errorf("T27: %d bytes between the GPU and host memory, want those of the two tails", hostBytes)
	}
	b.equal()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	before := b.ways()
	if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), n), store.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	wantWays(t, "T28: deregistered", before, b.ways(), map[string]int64{"read staged " + gpuxfer.ReasonUnregistered: 16 << 20,
		"read tail partial last block": 4096})
}

// TestDirectValues: TestGPUValues with registered memory, at places that a device can
// use and that it cannot, on pools of different controllers.
func TestDirectValues(t *testing.T) {
	for _, k := range []kind{sims, {"sim, larger blocks first", []model{usual, odd, tiny}}} {
		t.Run(k.name, func(t *testing.T) {
			b, _ := newDirectBox(t, host.Options{}, k, nil)
			rng := testenv.Seed(t)
			sizes := append([]int{0, 1, 4095, 4096, 4097, 16 << 10, 70_001, 1<<20 - 1, 1 << 20, 1<<20 + 1, 3<<20 + 17}, borderSizes...)
			for i, n := range sizes {
				want := fill(uint64(i), n)
				from, to := b.at(4*(i%3)), b.at(16<<20+i%5*2) // some are no multiple of 4
				b.poke(from, want)
				key := []byte(fmt.Sprint("v", i))
				if err := b.ns.Put(bg, key, store.OnGPU(from, int64(n)), store.PutOptions{Durability: store.Durability(i % 2)}); err != nil {
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
					if rng.IntN(2) == 0 {
						off &^= 4095
					}
					m := rng.IntN(n - off + 1)
					o := store.GetOptions{Off: int64(off), Len: int64(m), Exact: true, NoVerify: rng.IntN(2) == 0}
					if got, err := b.ns.Get(bg, key, store.OnGPU(to, int64(m)), o); got != int64(m) || err != nil {
						t.Fatalf("range %d+%d of %d: %d, %v", off, m, n, got, err)
					}
					if !bytes.Equal(b.peek(to, m), want[off:off+m]) {
						t.Fatalf("range %d+%d of %d: other bytes", off, m, n)
					}
				}
			}
			got := b.ways()
			for _, k := range []string{"read direct", "write direct", "read staged misaligned range", "read tail partial last block"} {
				if got[k] == 0 {
					t.Errorf("nothing went %q: %v", k, got)
				}
			}
			b.equal()
		})
	}
}

// TestDirectLists: one value in pieces of the memory of two GPUs, of host memory and
// regions: blocks that lie in one of them go directly.
func TestDirectLists(t *testing.T) {
	b, _ := newDirectBox(t, host.Options{Devices: 2}, sims, nil)
	other, err := b.g.Devices()[1].Alloc(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	r2, err := b.s.RegisterGPU(other.Ptr(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer r2.Close()
	want := fill(3, 700_000)
	plain := bytes.Clone(want[:8192])
	reg, err := driver.AllocRegion(1<<20, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer reg.Close()
	b.poke(b.at(4096), want[8192:200_000])
	copy(reg.CPU(), want[200_000:300_000])
	b.poke(other.Ptr(), want[300_000:])
	v := store.Buffers{{Bytes: plain}, {GPU: b.mem.Ptr(), Off: 4096, Len: 200_000 - 8192}, {Region: reg, Len: 100_000}, {GPU: other.Ptr(), Len: 400_000}}
	if err := b.ns.Put(bg, []byte("list"), v, store.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := b.ns.GetBytes(bg, []byte("list"), store.GetOptions{}); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("to host memory: %v", err)
	}
	clear(plain)
	clear(reg.CPU())
	b.poke(b.at(4096), make([]byte, 200_000))
	b.poke(other.Ptr(), make([]byte, 400_000))
	if _, err := b.ns.Get(bg, []byte("list"), v, store.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	got := append(bytes.Clone(plain), b.peek(b.at(4096), 200_000-8192)...)
	got = append(append(got, reg.CPU()[:100_000]...), b.peekAny(other.Ptr(), 400_000)...)
	if !bytes.Equal(got, want) {
		t.Error("a list gets other bytes")
	}
	if w := b.ways(); w["read direct"] == 0 || w["write direct"] == 0 {
		t.Errorf("%v", w)
	}
	b.equal()
}

// TestT10StrictDirect: a strict store takes what goes directly, tails included, and
// refuses what would be staged, with the reason.
func TestT10StrictDirect(t *testing.T) {
	b, r := newDirectBox(t, host.Options{}, sims, func(o *store.Options) { o.Strict = true })
	want := fill(2, 50_000)
	b.poke(b.at(0), want)
	if err := b.put("a", b.at(0), 50_000); err != nil {
		t.Fatal(err)
	}
	if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(1<<20), 50_000), store.GetOptions{}); err != nil || !bytes.Equal(b.peek(b.at(1<<20), 50_000), want) {
		t.Fatalf("%v, or other bytes", err)
	}
	refused := func(what, reason string, err error) {
		t.Helper()
		if !errors.Is(err, store.ErrNotSupported) || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("misaligned", "misaligned range", b.put("b", b.at(1), 50_000))
	_, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), 8192), store.GetOptions{Off: 4096, Len: 8192})
	refused("part of a piece", "verify", err)
	b.sims[0].Script(sim.Rule{Kind: sim.FaultStatus, Ops: []nvme.Opcode{nvme.OpRead}, Count: 1, Status: nvme.StatusTransferError | nvme.StatusDNR})
	b.sims[1].Script(sim.Rule{Kind: sim.FaultStatus, Ops: []nvme.Opcode{nvme.OpRead}, Count: 1, Status: nvme.StatusTransferError | nvme.StatusDNR})
	_, err = b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), 50_000), store.GetOptions{})
	refused("T41: a direct transfer that fails", gpuxfer.ReasonRetried, err)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	refused("not registered", gpuxfer.ReasonUnregistered, b.put("c", b.at(0), 50_000))
}

// TestDirectManyCallers: registrations come and go while callers of both ways share
// the devices.
func TestDirectManyCallers(t *testing.T) {
	b := newGPUBoxOn(t, sims, host.Options{}, func(o *store.Options) { o.GPU.DirectBytes = 5 << 20 })
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			base0 := g * 2 << 20
			for i := range 12 {
				n := []int{100, 5000, 60_000, 1<<20 + 3}[(g+i)%4]
				want := fill(uint64(g*100+i), n)
				var r *gpu.Registration
				if i%3 > 0 {
					var err error
					if r, err = b.s.RegisterGPU(b.at(base0), 2<<20); err != nil {
						t.Error(err)
						return
					}
				}
				b.poke(b.at(base0), want)
				key := fmt.Sprint(g, " ", i)
				err := b.put(key, b.at(base0), int64(n))
				b.poke(b.at(base0), make([]byte, n))
				if err == nil {
					_, err = b.ns.Get(bg, []byte(key), store.OnGPU(b.at(base0), int64(n)), store.GetOptions{})
				}
				if err != nil || !bytes.Equal(b.peek(b.at(base0), n), want) {
					t.Errorf("%s: %v, or other bytes", key, err)
				}
				if r != nil {
					if err := r.Close(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	b.equal()
}
