package alloc

import (
	"testing"

	"github.com/ugds-store/ugds/internal/base"
)

// TestShapes checks every shape of up to three slabs against the rules of the
// package comment.
func TestShapes(t *testing.T) {
	for _, slab := range []uint32{16, 64, 256, 1024, 2048} {
		tb := newTable(slab)
		for b := uint64(1); b <= 3*uint64(slab); b++ {
			var pl plan
			tb.shape(b, &pl)
			checkShape(t, tb, b, &pl)
			if t.Failed() {
				return
			}
		}
	}
}

func checkShape(t *testing.T, tb *table, b uint64, pl *plan) {
	slab, total := uint64(tb.slab), tb.blocks(pl)
	fail := func(text string) {
		t.Errorf("slab %d, %d blocks: %d slabs, classes %v, total %d: %s", slab, b, pl.slabs,
			pl.piece[:pl.n], total, text)
	}
	last := slab
	for i, c := range pl.piece[:pl.n] {
		size := uint64(tb.classes[c].blocks)
		if i > 0 && size > last {
			fail("slots do not descend")
		}
		last = size
	}
	switch {
	case total < b:
		fail("too short")
	case total-last >= b:
		fail("the last extent is not needed")
	case b <= slab/2 && (pl.slabs != 0 || pl.n != 1):
		fail("not one slot")
	case pl.n > maxTail:
		fail("too many slots")
	}
	if b <= slab/2 {
		return
	}
	tail := b % slab
	// A value of up to 1 MiB stays in one extent where that wastes up to 1/4.
	small := b*base.StoreBlock <= base.MiB && b < slab
	if waste := total - b; !small && tail > 0 && waste*wasteDiv > slab {
		fail("wastes more than an eighth of a slab")
	}
	if single := pl.n == 0 && pl.slabs == 1; small && (slab-b)*4 <= slab && !single {
		fail("could be one slab")
	}
}

// TestShapeTails shows that tails are split only where it pays.
func TestShapeTails(t *testing.T) {
	tb := newTable(1024)
	for tail := uint32(1); tail < 1024; tail++ {
		var pl plan
		tb.shapeTail(tail, wasteDiv, &pl)
		total := uint32(tb.blocks(&pl))
		if pl.n > 1 && (total-tail)*wasteDiv > total {
			t.Errorf("tail %d: split into %v, still %d", tail, pl.piece[:pl.n], total)
		}
	}
}

func TestSlotBytes(t *testing.T) {
	p := newPool(t, base.GiB, 1024)
	for _, tc := range []struct{ bytes, want int64 }{
		{-1, 0}, {0, 0}, {1, 4096}, {4096, 4096}, {4097, 8192},
		{512 * base.KiB, 512 * base.KiB}, {base.MiB, base.MiB}, {2 * base.MiB, 2 * base.MiB},
		{2*base.MiB + 1, 2*base.MiB + 4096}, {3 * base.MiB, 3 * base.MiB},
		{4*base.MiB - 1, 4 * base.MiB}, {4 * base.MiB, 4 * base.MiB}, {4*base.MiB + 1, 4*base.MiB + 4096},
		{5 * base.GiB, 5 * base.GiB}, {1<<63 - 1, 1<<63 - 4096},
	} {
		if got := p.SlotBytes(tc.bytes); got != tc.want {
			t.Errorf("SlotBytes(%d) = %d, want %d", tc.bytes, got, tc.want)
		}
	}
	for bytes := int64(1); bytes < 20*base.MiB; bytes += bytes/7 + 1 {
		es, err := p.Alloc(nil, bytes)
		if err != nil {
			t.Fatal(err)
		}
		sum := int64(0)
		for _, e := range es {
			sum += e.Bytes()
			p.Free(e)
		}
		if sum != p.SlotBytes(bytes) {
			t.Errorf("%d bytes take %d, SlotBytes says %d", bytes, sum, p.SlotBytes(bytes))
		}
	}
}
