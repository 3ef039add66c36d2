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
	"github.com/ugds-store/ugds/driver/ctrl"
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

// effects are what bridges do to bytes between devices, each of which a self-test has
// to notice.
var effects = []sim.PeerEffect{sim.PeerDrop, sim.PeerZeros, sim.PeerOnes, sim.PeerTail}

// TestD18SelfTest: a platform that loses bytes between a device and a GPU, in either
// direction and in each of the ways in which it can, is found out before a value
// moves; there is one event, the verdict stays, and values arrive by staging.
func TestD18SelfTest(t *testing.T) {
	for _, e := range effects {
		for dir, set := range map[string]func(s *sim.Sim, e sim.PeerEffect){
			"to the GPU":   func(s *sim.Sim, e sim.PeerEffect) { s.Peers(e, sim.PeerRight) },
			"from the GPU": func(s *sim.Sim, e sim.PeerEffect) { s.Peers(sim.PeerRight, e) },
		} {
			t.Run(fmt.Sprint(dir, "/", e), func(t *testing.T) {
				b := newGPUBoxOn(t, sims, host.Options{}, nil)
				set(b.sims[0], e)
				set(b.sims[1], e)
				sub := b.s.Subscribe(100)
				defer sub.Close()
				b.register()
				const n = 300_000
				want := fill(1, n)
				b.poke(b.at(0), want)
				if err := b.put("a", b.at(0), n); err != nil {
					t.Fatal(err)
				}
				b.poke(b.at(0), make([]byte, n))
				if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), n), store.GetOptions{}); err != nil || !bytes.Equal(b.peek(b.at(0), n), want) {
					t.Fatalf("%v, or other bytes", err)
				}
				for k, got := range b.ways() {
					if strings.Contains(k, "direct") && got != 0 || strings.Contains(k, "staged") && !strings.HasSuffix(k, gpuxfer.ReasonTest) {
						t.Errorf("%d bytes %s", got, k)
					}
				}
				for _, p := range b.s.Stats().Pairs {
					if p.Direct || !p.Tested || p.Reason != gpuxfer.ReasonTest || p.Err == nil {
						t.Errorf("%+v", p)
					}
				}
				for range b.sims { // one each
					if ev := next(t, sub, store.EventPair); !errors.Is(ev.Err, store.ErrNotSupported) {
						t.Errorf("%+v", ev)
					}
				}
				b.s.Subscribe(1).Close()
				if r, err := b.s.RegisterGPU(b.mem.Ptr(), gpuBoxBytes); err != nil {
					t.Error(err)
				} else if err := r.Close(); err != nil {
					t.Error(err)
				}
				ctx, cancel := context.WithTimeout(bg, 10*time.Millisecond)
				defer cancel()
				for {
					ev, err := sub.Next(ctx)
					if err != nil {
						break
					}
					if ev.Kind == store.EventPair {
						t.Errorf("a second event: %+v", ev)
					}
				}
				b.equal()
			})
		}
	}
}

// TestD18OnePairOfTwo: one device of a pool that does not reach the GPU costs the
// others nothing.
func TestD18OnePairOfTwo(t *testing.T) {
	b := newGPUBoxOn(t, sims, host.Options{}, nil)
	b.sims[1].Peers(sim.PeerDrop, sim.PeerRight)
	b.register()
	b.poke(b.at(0), fill(1, 4<<20))
	const n = 4 << 20
	var total int64
	for i := 0; total == 0 || b.ways()["write staged "+gpuxfer.ReasonTest] == 0; i++ { // until the first device is full
		total += n
		o := store.PutOptions{Durability: store.Relaxed}
		if err := b.ns.Put(bg, fmt.Append(nil, i), store.OnGPU(b.at(0), n), o); err != nil {
			t.Fatal(err)
		}
		if _, err := b.ns.Get(bg, fmt.Append(nil, i), store.OnGPU(b.at(n), n), store.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b.peek(b.at(n), n), fill(1, n)) {
			t.Fatal("other bytes")
		}
	}
	w := b.ways()
	if w["read direct"] == 0 || w["write direct"] == 0 || w["read staged "+gpuxfer.ReasonTest] == 0 || w["read direct"]+w["read staged "+gpuxfer.ReasonTest] != total {
		t.Errorf("%v", w)
	}
	if p := b.s.Stats().Pairs; len(p) != 2 || !p[0].Direct || p[1].Direct {
		t.Errorf("%+v", p)
	}
	b.equal()
}

// TestD18WaitingWork: ten thousand times, work of the GPU that already waits sees the
// last bytes of what a device brings, and all that came before them: a kernel, or, where
// there is none, a stream. Where nothing makes them visible, the pair is not used.
func TestD18WaitingWork(t *testing.T) {
	waits := 10_000
	if testenv.Race { // the order of two threads shows in fewer
		waits = 1000
	}
	test := func(t *testing.T, f host.Faults, waits int, e sim.PeerEffect) gpuxfer.Pair {
		g, err := host.Open(host.Options{Faults: f})
		if err != nil {
			t.Fatal(err)
		}
		b := newBox(t, box{kind: sims, sizes: []int64{64 << 20}})
		if e != sim.PeerRight { // the patterns arrive, the waiting stream's last bytes do not
			seen := 0
			b.sims[0].Observe(func(s sim.Seen) {
				if s.Moment == sim.Fetched && s.Command.OPC == nvme.OpRead && s.Command.SLBA()<<9 == 512<<10 && s.Command.Blocks() == 8 {
					seen++
				}
				if seen == 1 {
					go b.sims[0].Peers(e, sim.PeerRight)
				}
			})
		}
		ps := gpuxfer.NewPairs(g, gpuxfer.PairsOptions{Devices: b.devs, Waits: waits, Scratch: func(int) (int64, error) { return 512 << 10, nil }})
		p := ps.Test(0, 0)
		if err := errors.Join(ps.Close(), g.Close()); err != nil {
			t.Error(err)
		}
		if e == sim.PeerRight && g.Flushes() < int64(waits) {
			t.Errorf("%d flushes", g.Flushes())
		}
		return p
	}
	for name, f := range map[string]host.Faults{"kernel": {}, "stream": {NoMover: true}, "only the kernel": {NoMemOps: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of it waits
			n := waits
			if name != "kernel" {
				n /= 20
			}
			if p := test(t, f, n, sim.PeerRight); !p.Direct || p.Err != nil {
				t.Errorf("%+v", p)
			}
			if p := test(t, f, n, sim.PeerTail); p.Direct || !p.Tested || !strings.Contains(p.Err.Error(), "waited") {
				t.Errorf("%+v", p)
			}
		})
	}
}

// TestDirectVisible: below write ordering OWNER the host flushes what devices wrote to
// the GPU, once for a burst, after it arrived and before the get returns; from OWNER
// on it does not; and where it cannot, reads are staged. Writes need none.
func TestDirectVisible(t *testing.T) {
	const n = 64 << 10
	want := fill(5, n)
	get := func(t *testing.T, b *gpuBox) (flushes int64) {
		t.Helper()
		b.poke(b.at(0), want)
		if err := b.put("a", b.at(0), n); err != nil {
			t.Fatal(err)
		}
		b.poke(b.at(0), make([]byte, n))
		before := b.g.Flushes()
		if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), n), store.GetOptions{}); err != nil || !bytes.Equal(b.peek(b.at(0), n), want) {
			t.Fatalf("%v, or other bytes", err)
		}
		return b.g.Flushes() - before
	}
	t.Run("NONE", func(t *testing.T) {
		var b *gpuBox
		var on, late atomic.Bool
		b, _ = newDirectBox(t, host.Options{Faults: host.Faults{Flush: func() error {
			if on.Load() && !bytes.Equal(b.peek(b.at(0), n), want) {
				late.Store(true)
			}
			return nil
		}}}, sims, nil)
		on.Store(true)
		if k := get(t, b); k != 1 || late.Load() {
			t.Errorf("%d flushes, before the bytes arrived: %v", k, late.Load())
		}
		wantWays(t, "NONE", nil, b.ways(), map[string]int64{"read direct": n, "write direct": n})
	})
	t.Run("OWNER", func(t *testing.T) {
		b, _ := newDirectBox(t, host.Options{Faults: host.Faults{Ordering: gpu.OrderingOwner, NoFlush: true}}, sims, nil)
		if k := get(t, b); k != 0 {
			t.Errorf("%d flushes", k)
		}
		wantWays(t, "OWNER", nil, b.ways(), map[string]int64{"read direct": n, "write direct": n})
	})
	t.Run("no flush", func(t *testing.T) {
		b, _ := newDirectBox(t, host.Options{Faults: host.Faults{NoFlush: true}}, sims, nil)
		if k := get(t, b); k != 0 {
			t.Errorf("%d flushes", k)
		}
		wantWays(t, "no flush", nil, b.ways(), map[string]int64{"read staged " + gpuxfer.ReasonNoFlush: n, "write direct": n})
	})
	t.Run("a flush that fails", func(t *testing.T) {
		var on atomic.Bool
		b, _ := newDirectBox(t, host.Options{Faults: host.Faults{Flush: func() error {
			if on.Load() {
				return errors.New("boom")
			}
			return nil
		}}}, sims, nil)
		on.Store(true)
		get(t, b)
		if w := b.ways(); w["read staged "+gpuxfer.ReasonRetried] != n {
			t.Errorf("%v", w)
		}
		b.equal()
	})
}

// TestDirectNoSums: where a GPU computes no checksums, values with checksums are
// staged, and others go directly.
func TestDirectNoSums(t *testing.T) {
	const n = 64 << 10
	b, _ := newDirectBox(t, host.Options{Faults: host.Faults{NoMover: true}}, sims, nil)
	if err := b.put("a", b.at(0), n); err != nil {
		t.Fatal(err)
	}
	if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), n), store.GetOptions{NoVerify: true}); err != nil {
		t.Fatal(err)
	}
	if err := b.ns.Put(bg, []byte("b"), store.OnGPU(b.at(0), n), store.PutOptions{NoChecksum: true}); err != nil {
		t.Fatal(err)
	}
	wantWays(t, "", nil, b.ways(), map[string]int64{"write staged the GPU computes no checksums": n, "read direct": n, "write direct": n})
}

// TestDirectCorrupt: checksums are verified although no byte passes host memory. Bytes
// that were lost on the way, after the self-test, arrive through host memory, there is
// one event, and the memory is staged from then on; bytes that the device has changed
// are an error.
func TestDirectCorrupt(t *testing.T) {
	const n = 2<<20 + 5
	b, r := newDirectBox(t, host.Options{}, sims, nil)
	sub := b.s.Subscribe(100)
	defer sub.Close()
	want := fill(5, n)
	b.poke(b.at(0), want)
	if err := b.put("a", b.at(0), n); err != nil {
		t.Fatal(err)
	}
	for _, s := range b.sims {
		s.Peers(sim.PeerTail, sim.PeerRight)
	}
	for i, way := range []string{"read staged " + gpuxfer.ReasonRetried, "read staged " + gpuxfer.ReasonBroken} {
		before := b.ways()
		if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(4<<20), n), store.GetOptions{}); err != nil || !bytes.Equal(b.peek(b.at(4<<20), n), want) {
			t.Fatalf("bytes that were lost on the way: %v, or others", err)
		}
		if after := b.ways(); after[way]-before[way] < 1<<20 {
			t.Errorf("%d: %v", i, after)
		}
	}
	if e := next(t, sub, store.EventPair); !strings.Contains(e.Err.Error(), "lost") {
		t.Errorf("%+v", e)
	}
	b.equal()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	b.close()
	damaged := false
	for i := range b.sizes {
		data, err := os.ReadFile(b.path(i))
		if err != nil {
			t.Fatal(err)
		}
		if at := bytes.Index(data, want[:4096]); at >= 0 {
			data[at+7]++
			damaged = true
			if err := os.WriteFile(b.path(i), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !damaged {
		t.Fatal("the value is on no device")
	}
	b.openDevices()
	b.open()
	b.register()
	if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(4<<20), n), store.GetOptions{}); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("a changed byte: %v", err)
	}
	if w := b.ways(); w["read direct"] == 0 {
		t.Errorf("%v", w)
	}
	if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(4<<20), 1<<20), store.GetOptions{Off: 1 << 20, Len: 1 << 20}); err != nil || !bytes.Equal(b.peek(b.at(4<<20), 1<<20), want[1<<20:2<<20]) {
		t.Errorf("another piece: %v, or other bytes", err)
	}
}

// TestT41DirectFails: a direct transfer that fails on a device that works is repeated
// through host memory, with the same bytes; the memory is staged from then on, and
// there is one event.
func TestT41DirectFails(t *testing.T) {
	const n = 1 << 20
	want := fill(6, n)
	status := sim.Rule{Kind: sim.FaultStatus, Ops: []nvme.Opcode{nvme.OpRead, nvme.OpWrite}, Count: 1, Status: nvme.StatusTransferError | nvme.StatusDNR}
	fail := map[string]func(b *gpuBox){
		"status": func(b *gpuBox) {
			for _, s := range b.sims {
				s.Script(status)
			}
		},
		"revoked": func(b *gpuBox) { b.g.Revoke(b.mem) },
	}
	for name, fail := range fail {
		for _, write := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/write=%v", name, write), func(t *testing.T) {
				b, _ := newDirectBox(t, host.Options{}, sims, nil)
				sub := b.s.Subscribe(100)
				defer sub.Close()
				b.poke(b.at(0), want)
				if !write {
					if err := b.put("a", b.at(0), n); err != nil {
						t.Fatal(err)
					}
				}
				before := b.ways()
				fail(b)
				dir := "read"
				if write {
					dir = "write"
					if err := b.put("a", b.at(0), n); err != nil {
						t.Fatal(err)
					}
				} else if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(2<<20), n), store.GetOptions{}); err != nil {
					t.Fatal(err)
				} else if !bytes.Equal(b.peek(b.at(2<<20), n), want) {
					t.Error("other bytes")
				}
				if got, err := b.ns.GetBytes(bg, []byte("a"), store.GetOptions{}); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%v, or other bytes", err)
				}
				w := b.ways()
				if w[dir+" staged "+gpuxfer.ReasonRetried] == before[dir+" staged "+gpuxfer.ReasonRetried] {
					t.Errorf("%v", w)
				}
				if ev := next(t, sub, store.EventPair); ev.Err == nil {
					t.Errorf("%+v", ev)
				}
				if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(4<<20), n), store.GetOptions{}); err != nil || !bytes.Equal(b.peek(b.at(4<<20), n), want) {
					t.Errorf("afterwards: %v, or other bytes", err)
				}
				if w := b.ways(); w["read staged "+gpuxfer.ReasonBroken] != n {
					t.Errorf("afterwards: %v", w)
				}
				if name == "revoked" { // else other commands of the request have moved bytes
					b.equal()
				}
			})
		}
	}
}

// TestI3DirectHeld: memory that a device reads or writes cannot be unregistered, also
// after the caller has given up, until the command has ended (I4).
func TestI3DirectHeld(t *testing.T) {
	const n = 256 << 10
	b, r := newDirectBox(t, host.Options{}, sims, nil)
	want := fill(4, n)
	b.poke(b.at(0), want)
	if err := b.put("a", b.at(0), n); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func(ctx context.Context) error{
		"put": func(ctx context.Context) error {
			return b.ns.Put(ctx, []byte("b"), store.OnGPU(b.at(0), n), store.PutOptions{Replace: true})
		},
		"get": func(ctx context.Context) error {
			_, err := b.ns.Get(ctx, []byte("a"), store.OnGPU(b.at(1<<20), n), store.GetOptions{})
			return err
		},
	} {
		for _, s := range b.sims {
			s.Hold(true)
		}
		ctx, cancel := context.WithTimeout(bg, 50*time.Millisecond)
		err := call(ctx)
		cancel()
		if !errors.Is(err, store.ErrTimeout) {
			t.Errorf("%s: %v", name, err)
		}
		if err := r.Close(); !errors.Is(err, store.ErrBusy) {
			t.Fatalf("%s: unregistered while the device uses it: %v", name, err)
		}
		for _, s := range b.sims {
			s.Hold(false)
		}
		for end := time.Now().Add(20 * time.Second); r.InFlight() != 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: held for ever", name)
			}
		}
	}
	if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(2<<20), n), store.GetOptions{}); err != nil || !bytes.Equal(b.peek(b.at(2<<20), n), want) {
		t.Errorf("%v, or other bytes", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestI4DirectIsolated: a command that never ends isolates its device; the memory it
// names stays registered until the reset is complete, and nothing lands afterwards.
func TestI4DirectIsolated(t *testing.T) {
	const n = 64 << 10
	o := ctrl.Options{Watch: time.Millisecond, Deadline: ctrl.Deadlines{ReadWrite: 300 * time.Millisecond}}
	b, r := newDirectBox(t, host.Options{}, kind{"sim", []model{{"sim:lba=4096", o}}}, nil)
	want := fill(4, n)
	b.poke(b.at(0), want)
	if err := b.put("a", b.at(0), n); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var early []string
	for i, d := range b.devs {
		defer d.Subscribe(func(e driver.Event) {
			if e.State == driver.StateIsolated { // not stopped yet
				if err := r.Close(); !errors.Is(err, store.ErrBusy) {
					mu.Lock()
					early = append(early, fmt.Sprintf("device %d: %v", i, err))
					mu.Unlock()
				}
			}
		})()
		b.sims[i].Hold(true) // the stop cannot confirm either
		b.sims[i].Script(sim.Rule{Kind: sim.FaultLose, Ops: []nvme.Opcode{nvme.OpRead}, Count: 1})
	}
	done := make(chan error, 1)
	go func() {
		_, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(1<<20), n), store.GetOptions{})
		done <- err
	}()
	isolated := func() bool {
		for _, d := range b.devs {
			if d.State() != driver.StateReady {
				return true
			}
		}
		return false
	}
	for end := time.Now().Add(20 * time.Second); !isolated(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no device was isolated")
		}
	}
	if err := r.Close(); !errors.Is(err, store.ErrBusy) {
		t.Fatalf("unregistered before the device has stopped: %v", err)
	}
	for _, s := range b.sims {
		s.Hold(false)
	}
	if err := <-done; !errors.Is(err, store.ErrIsolated) {
		t.Errorf("get: %v", err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		err := r.Close()
		if err == nil {
			break
		}
		if !errors.Is(err, store.ErrBusy) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(early) > 0 {
		t.Errorf("%v", early)
	}
	seen := b.peek(b.at(1<<20), n)
	b.register()
	for end := time.Now().Add(20 * time.Second); isolated() && time.Now().Before(end); time.Sleep(time.Millisecond) {
		continue
	}
	if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(2<<20), n), store.GetOptions{}); err != nil || !bytes.Equal(b.peek(b.at(2<<20), n), want) {
		t.Errorf("after the reset: %v, or other bytes", err)
	}
	if !bytes.Equal(b.peek(b.at(1<<20), n), seen) {
		t.Error("bytes landed after the memory was unregistered")
	}
}

// TestDirectBudget: registrations over the budget make idle ones staged, the least
// recently used first, and are staged themselves when none is idle.
func TestDirectBudget(t *testing.T) {
	const n = 64 << 10
	b := newGPUBoxOn(t, sims, host.Options{}, func(o *store.Options) { o.GPU.DirectBytes = 2 * n })
	if err := b.put("a", b.at(0), n); err != nil {
		t.Fatal(err)
	}
	get := func(i int) string {
		t.Helper()
		before := b.ways()
		if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(i*n), n), store.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		for k, v := range b.ways() {
			if v != before[k] {
				return k
			}
		}
		return ""
	}
	reg := func(i int) *gpu.Registration {
		r, err := b.s.RegisterGPU(b.at(i*n), n)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	var regs []*gpu.Registration
	for i := range 2 {
		regs = append(regs, reg(i))
	}
	for _, i := range []int{1, 0} { // 1 is the older one then
		if got := get(i); got != "read direct" {
			t.Errorf("%d: %s", i, got)
		}
	}
	regs = append(regs, reg(2))
	for i, want := range []string{"read direct", "read staged " + gpu.ReasonEvicted, "read direct"} {
		if got := get(i); got != want {
			t.Errorf("%d: %s, want %s", i, got, want)
		}
	}
	for _, s := range b.sims {
		s.Hold(true)
	}
	done := make(chan error, 2)
	for _, i := range []int{0, 2} {
		go func() {
			_, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(i*n), n), store.GetOptions{})
			done <- err
		}()
		for end := time.Now().Add(20 * time.Second); regs[i].InFlight() < 2; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("nothing is in flight")
			}
		}
	}
	regs = append(regs, reg(3))
	for _, s := range b.sims {
		s.Hold(false)
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if got := get(3); got != "read staged "+gpu.ReasonBudget {
		t.Errorf("with all in use: %s", got)
	}
	for _, r := range regs {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
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
