package alloc

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/ugds-store/ugds/internal/base"
)

// TestClassesGolden pins the class tables: extents on disk depend on them.
func TestClassesGolden(t *testing.T) {
	datadriven.RunTest(t, "testdata/classes", func(t *testing.T, d *datadriven.TestData) string {
		var blocks int
		d.ScanArgs(t, "slab", &blocks)
		tb := newTable(uint32(blocks))
		var out strings.Builder
		for i, c := range tb.classes {
			if sep := "  "; i > 0 {
				if i%10 == 0 {
					sep = "\n"
				}
				out.WriteString(sep)
			}
			fmt.Fprintf(&out, "%dx%d", c.slots, c.blocks)
		}
		fmt.Fprintf(&out, "\n%d classes\n", len(tb.classes))
		return out.String()
	})
}

// TestClassRules checks what the package comment says about the classes.
func TestClassRules(t *testing.T) {
	for s := uint32(MinSlabBlocks); s <= MaxSlabBlocks; s *= 2 {
		tb := newTable(s)
		if len(tb.classes) > maxClasses {
			t.Fatalf("slab %d: %d classes", s, len(tb.classes))
		}
		last := uint32(0)
		for i, c := range tb.classes {
			rest := s - c.slots*c.blocks
			if c.blocks <= last || c.slots < 2 || rest >= c.slots || s/c.slots != c.blocks {
				t.Errorf("slab %d: class %d: %d slots of %d, rest %d", s, i, c.slots, c.blocks, rest)
			}
			if k, ok := tb.byBlocks(c.blocks); !ok || int(k) != i {
				t.Errorf("slab %d: class %d is not found by its %d blocks", s, i, c.blocks)
			}
			last = c.blocks
		}
		if last != s/2 {
			t.Errorf("slab %d: largest class %d", s, last)
		}
		for b := uint32(1); b <= s/2; b++ {
			checkFit(t, tb, b)
		}
	}
}

// checkFit checks the class of a value of b blocks.
func checkFit(t *testing.T, tb *table, b uint32) {
	c := tb.classes[tb.fit[b]]
	if c.blocks < b || tb.fit[b] > 0 && tb.classes[tb.fit[b]-1].blocks >= b {
		t.Fatalf("slab %d: %d blocks fall into class %d", tb.slab, b, c.blocks)
	}
	// A value that could have one slot more in a slab must not waste 1/8.
	if best := tb.slab / (tb.slab / b); (c.blocks-best)*8 >= c.blocks {
		t.Errorf("slab %d: %d blocks waste %d of %d", tb.slab, b, c.blocks-b, c.blocks)
	}
	pow := b&(b-1) == 0
	if pow && c.blocks != b {
		t.Errorf("slab %d: the power of two %d has class %d", tb.slab, b, c.blocks)
	}
}

func TestSlabBlocksFor(t *testing.T) {
	for _, tc := range []struct {
		pool, forced int64
		want         int64 // bytes
	}{
		{0, 0, base.MiB},
		{64 * base.MiB, 0, base.MiB},
		{2*base.GiB - 1, 0, base.MiB},
		{2 * base.GiB, 0, 2 * base.MiB},
		{4 * base.GiB, 0, 4 * base.MiB},
		{64*base.GiB - 1, 0, 32 * base.MiB},
		{64 * base.GiB, 0, 64 * base.MiB},
		{30 * base.TiB, 0, 64 * base.MiB},
		{1<<63 - 1, 0, 64 * base.MiB},
		{64 * base.MiB, 64 * base.KiB, 64 * base.KiB},
		{64 * base.MiB, 64*base.KiB - 1, 64 * base.KiB},
		{64 * base.MiB, 1, 64 * base.KiB},
		{64 * base.MiB, 300 * base.KiB, 256 * base.KiB},
		{64 * base.MiB, 1 << 40, 64 * base.MiB},
		{4 * base.GiB, -1, 4 * base.MiB},
	} {
		if got := int64(SlabBlocksFor(tc.pool, tc.forced)) * base.StoreBlock; got != tc.want {
			t.Errorf("SlabBlocksFor(%d, %d) = %s, want %s", tc.pool, tc.forced,
				base.FormatBytes(got), base.FormatBytes(tc.want))
		}
	}
}
