package nvme_test

import (
	"slices"
	"testing"

	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/testenv"
)

// window is the part of segs from off on, of n bytes.
func window(segs []nvme.Seg, off, n uint64) []nvme.Seg {
	if off > 0 {
		_, segs = take(segs, off)
	}
	head, _ := take(segs, n)
	return merge(head)
}

// TestPRPTable: what a command copies from a table names exactly the bytes asked
// for, by the walk of the book, or is refused for want of list entries; nothing
// behind the list is written. There is a table exactly when PRP entries can name
// all of the memory at once.
func TestPRPTable(t *testing.T) {
	const shift, slots = 6, 8
	rnd := testenv.Seed(t)
	l := newLists(1, shift)
	made, full, over := 0, 0, 0
	for range 20000 {
		segs := scattered(rnd, 1<<shift)
		var total uint64
		for _, s := range segs {
			total += s.Len
		}
		table, ok := nvme.MakePRPTable(segs, shift, 1<<20)
		if can := total > 0 && nvme.PRPSpan(segs, total, 1, shift) == total; ok != can {
			t.Fatalf("%v: a table: %t, can be named: %t", segs, ok, can)
		}
		if !ok {
			continue
		}
		made++
		if _, ok := nvme.MakePRPTable(segs, shift, uint64(table.Pages()-1)); ok {
			t.Fatalf("%v: a table of more than %d pages", segs, table.Pages()-1)
		}
		if _, ok := nvme.MakePRPTable(segs, shift, uint64(table.Pages())); !ok {
			t.Fatalf("%v: no table of %d pages", segs, table.Pages())
		}
		for range 8 {
			off := rnd.Uint64N(total) / 4 * 4
			n := rnd.Uint64N(total-off) + 1
			want := window(segs, off, n)
			entries := nvme.PRPEntries(want[0].Addr, n, shift)
			l.wipe()
			var c nvme.Command
			c.SetRead(1, 0, 1)
			if ok := table.Point(&c, off, n, &l.pages[0]); ok != (entries <= slots+1) {
				t.Fatalf("%v, %d bytes at %d: %d entries, pointed: %t", segs, n, off, entries, ok)
			} else if !ok {
				over++
				continue
			}
			got, pages, err := walkPRP(&c, n, shift, l)
			if err != nil || !slices.Equal(got, want) || !l.intact(pages) {
				t.Fatalf("%v, %d bytes at %d: names %v, not %v; %v", segs, n, off, got, want, err)
			}
			if entries == slots+1 {
				full++
			}
		}
	}
	if made < 2000 || full < 100 || over < 100 {
		t.Errorf("%d tables, %d full lists, %d too long: the test does not test much", made, full, over)
	}
}
