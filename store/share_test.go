package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/host"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/store"
)

// shareRanges draws ranges of values, crowded so that many overlap, lie near each
// other or cross pieces; some are refused, some are alone.
func shareRanges(rng *rand.Rand, sizes []int, n int) []store.GetItem {
	gets := make([]store.GetItem, n)
	for i := range gets {
		k := rng.IntN(len(sizes))
		off := rng.IntN(sizes[k])
		if rng.IntN(4) == 0 && sizes[k] > 1<<20 {
			off = 1<<20 - rng.IntN(5000)
		}
		if rng.IntN(3) == 0 {
			off &^= base.StoreBlock - 1
		}
		size := min(1+rng.IntN(4096), sizes[k]-off)
		if rng.IntN(10) == 0 {
			size = min(rng.IntN(65_537), sizes[k]-off) // the longest that may share
		}
		gets[i] = store.GetItem{Key: fmt.Append(nil, "v", k), GetOptions: store.GetOptions{
			Off: int64(off), Len: int64(size), Exact: true, NoVerify: rng.IntN(2) == 0}}
		switch rng.IntN(50) {
		case 0:
			gets[i].Off = int64(sizes[k]) // refused
			gets[i].Len = 1
		case 1:
			gets[i].Key = []byte("none")
		}
	}
	return gets
}

// TestSharedRanges: thousands of ranges in one call, to plain memory, to regions and
// to lists of both, give each its own bytes and answer, and read the device no more
// than the values hold.
func TestSharedRanges(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		b := k.newBox(t, box{sizes: []int64{128 << 20, 64 << 20}})
		rng := testenv.Seed(t)
		sizes := []int{5000, 64 << 10, 300_001, 1<<20 + 9000, 3<<20 + 17}
		values := make([][]byte, len(sizes))
		for i, n := range sizes {
			values[i] = fill(uint64(i), n)
			err := b.ns.Put(bg, fmt.Append(nil, "v", i), store.Bytes(values[i]), store.PutOptions{NoChecksum: i == 1})
			if err != nil {
				t.Fatal(err)
			}
		}
		reg, err := driver.AllocRegion(64<<20, "test")
		if err != nil {
			t.Fatal(err)
		}
		defer reg.Close()
		for _, d := range b.devs {
			if err := d.Attach(reg); err != nil {
				t.Fatal(err)
			}
		}
		gets := shareRanges(rng, sizes, 2000)
		plain := make([]byte, 64<<20)
		var at int64
		for i := range gets {
			g := &gets[i]
			half := g.Len / 2
			switch rng.IntN(3) {
			case 0:
				g.Dst = store.Bytes(plain[at : at+g.Len])
			case 1:
				at = base.AlignUp(at, int64(1)<<uint(rng.IntN(14)))
				g.Dst = store.InRegion(reg, at, g.Len)
			default:
				g.Dst = store.Buffers{{Bytes: plain[at : at+half]}, {Region: reg, Off: at + half, Len: g.Len - half}}
			}
			at += g.Len
		}
		before := b.s.Stats()
		b.ns.GetBatch(bg, gets)
		for i := range gets {
			checkShared(t, &gets[i], values, func(g *store.GetItem) (got []byte) {
				for _, r := range g.Dst {
					if r.Region != nil {
						got = append(got, r.Region.Bytes(r.Off, r.Len)...)
					} else {
						got = append(got, r.Bytes...)
					}
				}
				return got
			})
		}
		var read int64
		for i, d := range b.s.Stats().Devices {
			read += d.ReadBytes - before.Devices[i].ReadBytes
		}
		// Each value twice, verified and not, and the ranges that went without a buffer.
		if limit := int64(10 << 20); read > limit || read == 0 {
			t.Errorf("the devices read %d bytes, the limit is %d", read, limit)
		}
	})
}

// checkShared compares one answer.
func checkShared(t *testing.T, g *store.GetItem, values [][]byte, bytesOf func(*store.GetItem) []byte) {
	t.Helper()
	k := 0
	if _, err := fmt.Sscanf(string(g.Key), "v%d", &k); err != nil {
		if !errors.Is(g.Err, store.ErrNotFound) {
			t.Errorf("no such key: %v", g.Err)
		}
		return
	}
	v := values[k]
	if g.Off == int64(len(v)) && g.Len > 0 {
		if !errors.Is(g.Err, store.ErrOutOfRange) || g.N != 0 {
			t.Errorf("past the end: %d, %v", g.N, g.Err)
		}
		return
	}
	if g.Err != nil || g.N != g.Len || g.Size != int64(len(v)) || !bytes.Equal(bytesOf(g), v[g.Off:g.Off+g.Len]) {
		t.Errorf("%s %d+%d: %d, %v, or other bytes", g.Key, g.Off, g.Len, g.N, g.Err)
	}
}

// TestSharedGPURanges: the same into GPU memory, with guards between the ranges.
func TestSharedGPURanges(t *testing.T) {
	b := newGPUBox(t, host.Options{}, nil)
	rng := testenv.Seed(t)
	sizes := []int{5000, 64 << 10, 300_001, 1<<20 + 9000}
	values := make([][]byte, len(sizes))
	for i, n := range sizes {
		values[i] = fill(uint64(i), n)
		b.poke(b.at(0), values[i])
		if err := b.put(fmt.Sprint("v", i), b.at(0), int64(n)); err != nil {
			t.Fatal(err)
		}
	}
	reg, err := b.s.RegisterGPU(b.at(16<<20), 8<<20) // some are registered
	if err != nil {
		t.Fatal(err)
	}
	gets := shareRanges(rng, sizes, 1500)
	const guard = 16
	at := guard
	want := bytes.Repeat([]byte{0xee}, gpuBoxBytes)
	b.poke(b.at(0), want)
	for i := range gets {
		g := &gets[i]
		g.Dst = store.OnGPU(b.at(at), g.Len)
		var k int
		if n, _ := fmt.Sscanf(string(g.Key), "v%d", &k); n == 1 && g.Off < int64(sizes[k]) {
			copy(want[at:], values[k][g.Off:g.Off+g.Len])
		}
		at += int(g.Len) + guard
	}
	if at > gpuBoxBytes {
		t.Fatal("the ranges need more memory")
	}
	b.ns.GetBatch(bg, gets)
	for i := range gets {
		checkShared(t, &gets[i], values, func(g *store.GetItem) []byte {
			at := int(g.Dst[0].GPU - b.mem.Ptr())
			return want[at : at+int(g.Len)]
		})
	}
	if !bytes.Equal(b.peek(b.at(0), gpuBoxBytes), want) {
		t.Error("other bytes on the GPU, or beside the ranges")
	}
	b.equal()
	if err := reg.Close(); err != nil {
		t.Error(err)
	}
}

// TestSharedRangesAnswerEach: of ranges that are read together, each one's own fault is
// its own: a wrong piece, memory that is no GPU's, memory that was freed.
func TestSharedRangesAnswerEach(t *testing.T) {
	b := newGPUBox(t, host.Options{}, nil)
	want := fill(1, 3<<20)
	b.poke(b.at(0), want)
	if err := b.put("v", b.at(0), int64(len(want))); err != nil {
		t.Fatal(err)
	}
	b.close()
	found := 0
	for i := range b.sizes {
		raw, err := os.ReadFile(b.path(i))
		if err != nil {
			t.Fatal(err)
		}
		if at := bytes.Index(raw, want[1<<20+100:1<<20+200]); at >= 0 {
			patch(t, b.path(i), int64(at), []byte{raw[at] ^ 1})
			found++
		}
	}
	if found != 1 {
		t.Fatalf("the value is in %d places", found)
	}
	b.openDevices()
	b.open()
	plain := make([]byte, 100)
	dst := []store.Buffers{store.OnGPU(b.at(8<<20), 100), store.Bytes(plain), store.OnGPU(gpu.Ptr(0x1000), 100)}
	var gets []store.GetItem
	for _, off := range []int64{1<<20 - 200, 1<<20 + 5000, 1<<20 - 50, 2<<20 + 100} {
		for _, d := range dst {
			gets = append(gets, store.GetItem{Key: []byte("v"), Dst: d, GetOptions: store.GetOptions{Off: off, Len: 100}})
		}
	}
	b.ns.GetBatch(bg, gets)
	for i, g := range gets {
		wrong := g.Off+g.Len > 1<<20 && g.Off < 2<<20
		switch {
		case i%3 == 2 && g.Err == nil, i%3 == 2 && errors.Is(g.Err, store.ErrCorrupt):
			t.Errorf("range %d to no GPU: %v", i, g.Err)
		case i%3 < 2 && errors.Is(g.Err, store.ErrCorrupt) != wrong, i%3 < 2 && !wrong && (g.Err != nil || g.N != 100):
			t.Errorf("range %d at %d: %d, %v", i, g.Off, g.N, g.Err)
		}
	}
	if got := b.peek(b.at(8<<20), 100); !bytes.Equal(got, want[2<<20+100:2<<20+200]) || !bytes.Equal(plain, got) {
		t.Error("the last range gave other bytes")
	}
}
