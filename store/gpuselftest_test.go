package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/host"
	gpuxfer "github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/store"
)

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
