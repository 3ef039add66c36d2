package alloc

import (
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
)

// spans makes n devices of one slab.
func spans(n int) []Span {
	s := make([]Span, n)
	for i := range s {
		s[i].Slabs = 1
	}
	return s
}

// TestGeometryLimits checks each limit of Geometry on both sides.
func TestGeometryLimits(t *testing.T) {
	const end = MaxStartBlock + 1
	for _, tc := range []struct {
		name string
		g    Geometry
		want error
	}{
		{"no slab size", Geometry{0, spans(1)}, base.ErrInvalid},
		{"slab of 8", Geometry{MinSlabBlocks / 2, spans(1)}, base.ErrInvalid},
		{"slab of 16", Geometry{MinSlabBlocks, spans(1)}, nil},
		{"slab of 24", Geometry{24, spans(1)}, base.ErrInvalid},
		{"slab of 16384", Geometry{MaxSlabBlocks, spans(1)}, nil},
		{"slab of 32768", Geometry{MaxSlabBlocks * 2, spans(1)}, base.ErrInvalid},
		{"no device", Geometry{16, nil}, base.ErrInvalid},
		{"255 devices", Geometry{16, spans(255)}, nil},
		{"256 devices", Geometry{16, spans(256)}, nil},
		{"257 devices", Geometry{16, spans(257)}, base.ErrInvalid},
		{"empty device", Geometry{16, []Span{{0, 1}, {0, 0}}}, base.ErrInvalid},
		{"last block", Geometry{16, []Span{{end - 32, 2}}}, nil},
		{"past the last block", Geometry{16, []Span{{end - 31, 2}}}, base.ErrOutOfRange},
		{"start at the end", Geometry{16, []Span{{end, 1}}}, base.ErrOutOfRange},
		{"start past the end", Geometry{16, []Span{{math.MaxUint64, 1}}}, base.ErrOutOfRange},
		{"too long a device", Geometry{64, []Span{{0, math.MaxUint32}}}, base.ErrOutOfRange},
	} {
		if _, err := New(tc.g); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
	}
	// The largest pool is only checked: it would take gigabytes.
	for slabs, want := range map[uint32]error{MaxSlabs / 2: nil, MaxSlabs/2 + 1: base.ErrOutOfRange} {
		g := Geometry{64, []Span{{0, MaxSlabs / 2}, {0, slabs}}}
		if _, err := g.check(); !errors.Is(err, want) {
			t.Errorf("%d slabs: %v, want %v", MaxSlabs/2+uint64(slabs), err, want)
		}
	}
}

// TestLastBlock uses the last slab that an Extent can name, on the last device.
func TestLastBlock(t *testing.T) {
	g := Geometry{16, spans(256)}
	g.Devices[255].FirstBlock = MaxStartBlock + 1 - 16
	p := mustNew(t, g)
	var es []Extent
	for range 256 * 16 {
		e := mustAlloc(t, p, 1)[0]
		if !e.Valid() || Unpack(e.Pack()) != e {
			t.Fatalf("%v does not survive packing", e)
		}
		es = append(es, e)
	}
	if e := es[len(es)-1]; e != (Extent{255, MaxStartBlock, 1}) {
		t.Errorf("the last block is %v", e)
	}
	if _, err := p.Alloc(nil, 1); !errors.Is(err, base.ErrNoSpace) {
		t.Errorf("full pool: %v", err)
	}
	for _, e := range es {
		p.Free(e)
	}
	checkPool(t, p)
}

// TestLongestExtent: a run of slabs ends before the limit of Extent.
func TestLongestExtent(t *testing.T) {
	for _, slab := range []uint32{MinSlabBlocks, MaxSlabBlocks} {
		most := MaxExtentBlock / slab // slabs
		p := mustNew(t, Geometry{slab, []Span{{0, most + 3}}})
		all := func(slabs uint32) []Extent { return mustAlloc(t, p, int64(slabs)*int64(slab)) }
		for over := range uint32(3) {
			es := all(most + over)
			if es[0].Blocks != most*slab || len(es) != int(min(over, 1))+1 {
				t.Errorf("slab %d: %d slabs are %v", slab, most+over, es)
			}
			checkPool(t, p)
			for _, e := range es {
				p.Free(e)
			}
		}
		fresh := mustNew(t, Geometry{slab, []Span{{0, most + 3}}})
		if err := fresh.Restore(Extent{0, 0, most * slab}); err != nil {
			t.Error(err)
		}
		long := Extent{0, uint64(most) * uint64(slab), (most + 1) * slab}
		if err := fresh.Restore(long); !errors.Is(err, base.ErrCorrupt) {
			t.Errorf("an extent of %d blocks: %v", (most+1)*slab, err)
		}
	}
}

// TestSizes: the ends of the range of sizes.
func TestSizes(t *testing.T) {
	p := newPool(t, 64*base.MiB, 256)
	if es, err := p.Alloc(nil, -1); len(es) != 0 || !errors.Is(err, base.ErrInvalid) {
		t.Errorf("-1 bytes: %v, %v", es, err)
	}
	if es, err := p.Alloc(nil, 0); len(es) != 0 || err != nil {
		t.Errorf("0 bytes: %v, %v", es, err)
	}
	for _, n := range []int64{64*base.MiB + 1, math.MaxInt64} {
		if es, err := p.Alloc(nil, n); len(es) != 0 || !errors.Is(err, base.ErrNoSpace) {
			t.Errorf("%d bytes: %v, %v", n, es, err)
		}
	}
	if es, err := p.Alloc(nil, 64*base.MiB); len(es) != 1 || err != nil {
		t.Errorf("the whole pool: %v, %v", es, err)
	}
}

// TestMaxComposed: a value is composed of 64 slots, not of 65.
func TestMaxComposed(t *testing.T) {
	p := mustNew(t, Geometry{256, spans(2)})
	keep := mustAlloc(t, p, 3)
	if _, err := p.AllocSlab(nil); err != nil {
		t.Fatal(err)
	}
	const most = maxComposed * 3
	if es, err := p.Alloc(nil, (most+1)*base.StoreBlock); !errors.Is(err, base.ErrNoSpace) {
		t.Errorf("%d extents: %v", len(es), err)
	}
	if es := mustAlloc(t, p, most); len(es) != maxComposed {
		t.Errorf("%d extents", len(es))
	}
	p.Free(keep[0])
	checkPool(t, p)
}

// TestComposeFew: one larger slot is better than many small ones.
func TestComposeFew(t *testing.T) {
	p := mustNew(t, Geometry{256, spans(3)})
	small, large := mustAlloc(t, p, 1), mustAlloc(t, p, 128)
	if _, err := p.AllocSlab(nil); err != nil {
		t.Fatal(err)
	}
	mustAlloc(t, p, 128)
	p.Free(large[0])
	// 128 blocks are free in one slot, 255 in slots of one block.
	es := mustAlloc(t, p, 128+3)
	if len(es) != 4 || es[0].Blocks != 128 {
		t.Errorf("131 blocks are %v", es)
	}
	for _, e := range append(es, small...) {
		p.Free(e)
	}
	checkPool(t, p)
}

// TestSpread: slabs of equal devices are used evenly.
func TestSpread(t *testing.T) {
	p := mustNew(t, Geometry{16, []Span{{0, 50}, {0, 50}, {0, 50}}})
	for i := range 150 {
		mustAlloc(t, p, 8)
		mustAlloc(t, p, 8)
		s := p.Stats()
		lo, hi := s.Devices[0].FreeSlabs, s.Devices[0].FreeSlabs
		for _, d := range s.Devices {
			lo, hi = min(lo, d.FreeSlabs), max(hi, d.FreeSlabs)
		}
		if hi-lo > 1 {
			t.Fatalf("after %d slabs: %d to %d free", i+1, lo, hi)
		}
	}
}

// TestExtentLimits: packing keeps every field at its limits.
func TestExtentLimits(t *testing.T) {
	const last = MaxStartBlock
	for _, e := range []Extent{{0, 0, 1}, {255, last, MaxExtentBlock}, {255, 0, 1}, {0, last, 1}} {
		if !e.Valid() || Unpack(e.Pack()) != e {
			t.Errorf("%v becomes %v", e, Unpack(e.Pack()))
		}
	}
	for _, e := range []Extent{{}, {0, MaxStartBlock + 1, 1}, {0, 0, MaxExtentBlock + 1}} {
		if e.Valid() {
			t.Errorf("%v passes for valid", e)
		}
	}
	if e := (Extent{1, 1 << 35, 3}); e.Off() != 1<<47 || e.Bytes() != 12288 || e.String() != "1:34359738368+3" {
		t.Errorf("%v: offset %d, %d bytes", e, e.Off(), e.Bytes())
	}
}

// TestSlabMemory pins the memory of a slab that the documentation states.
func TestSlabMemory(t *testing.T) {
	if n := reflect.TypeFor[slab]().Size(); n != 32 {
		t.Errorf("a slab takes %d bytes", n)
	}
}
