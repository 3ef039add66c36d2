package alloc

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
)

// fuzzPool is small enough for a map of all blocks, and large enough for
// bitmaps of several words.
func fuzzPool(t testing.TB, kind byte) *Pool {
	slab := []uint32{16, 128, 8192}[kind%3]
	return mustNew(t, Geometry{slab, []Span{{3, 5}, {1 << 20, 2}}})
}

// FuzzRestore feeds arbitrary extents: one byte chooses the pool, then 13 bytes
// an extent. Restore never panics, takes nothing twice and nothing that
// lies outside, and what it took can be freed.
func FuzzRestore(f *testing.F) {
	add := func(kind byte, es ...Extent) {
		b := []byte{kind}
		for _, e := range es {
			b = append(b, e.Dev)
			b = binary.LittleEndian.AppendUint64(b, e.Start)
			b = binary.LittleEndian.AppendUint32(b, e.Blocks)
		}
		f.Add(b)
	}
	add(0, Extent{0, 3, 1}, Extent{0, 4, 1}, Extent{0, 19, 32}, Extent{1, 1 << 20, 8})
	add(0, Extent{0, 3, 16}, Extent{0, 3, 1}, Extent{0, 3, 80}, Extent{0, 83, 16})
	add(1, Extent{0, 3, 128}, Extent{0, 130, 1}, Extent{1, 1<<20 + 128, 64}, Extent{1, 1<<20 + 192, 64})
	add(2, Extent{0, 3, 1}, Extent{0, 8194, 1}, Extent{0, 8195, 8192 * 4}, Extent{1, 1 << 20, 2})
	add(2, Extent{0, 0, 1}, Extent{255, 3, 1}, Extent{0, 1<<64 - 1, 1<<32 - 1}, Extent{1, 1 << 20, 1 << 20})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		p := fuzzPool(t, b[0])
		owned := map[Extent]bool{} // single blocks
		var taken []Extent
		for b = b[1:]; len(b) >= 13; b = b[13:] {
			e := Extent{b[0], binary.LittleEndian.Uint64(b[1:]), binary.LittleEndian.Uint32(b[9:])}
			if err := p.Restore(e); err != nil {
				if !errors.Is(err, base.ErrCorrupt) {
					t.Fatal(err)
				}
				continue
			}
			d := &p.devs[e.Dev]
			if last := e.Start + uint64(e.Blocks); e.Start < d.first || last > d.first+uint64(d.slabs)<<p.t.shift {
				t.Fatalf("took %v, which lies outside", e)
			}
			for i := range uint64(e.Blocks) {
				one := Extent{e.Dev, e.Start + i, 1}
				if owned[one] {
					t.Fatalf("took %v, which overlaps", e)
				}
				owned[one] = true
			}
			taken = append(taken, e)
		}
		checkPool(t, p)
		for _, e := range taken {
			p.Free(e)
		}
		checkPool(t, p)
		if s := p.Stats(); s.FreeSlab != s.Capacity {
			t.Fatalf("%d of %d bytes are free slabs after all was freed", s.FreeSlab, s.Capacity)
		}
	})
}

// TestRestoreLate: once the pool is in use, Restore is refused.
func TestRestoreLate(t *testing.T) {
	for name, use := range map[string]func(*Pool){
		"Alloc":       func(p *Pool) { mustAlloc(t, p, 1) },
		"AllocSlab":   func(p *Pool) { _, _ = p.AllocSlab(nil) },
		"Free":        func(p *Pool) { p.Free(Extent{0, 3, 1}) },
		"TakeDiscard": func(p *Pool) { p.TakeDiscard() },
	} {
		p := fuzzPool(t, 0)
		if err := p.Restore(Extent{0, 3, 1}); err != nil {
			t.Fatal(err)
		}
		_ = p.Stats()
		if err := p.Restore(Extent{0, 4, 1}); err != nil {
			t.Errorf("after Stats: %v", err)
		}
		use(p)
		if err := p.Restore(Extent{0, 5, 1}); !errors.Is(err, base.ErrInvalid) {
			t.Errorf("after %s: %v", name, err)
		}
	}
}

// TestRestoreOrder: partly used slabs are filled in address order after a
// rebuild, whatever the order of the records.
func TestRestoreOrder(t *testing.T) {
	p := fuzzPool(t, 0)
	for _, e := range []Extent{{0, 3 + 48, 8}, {0, 3, 8}, {1, 1 << 20, 8}, {0, 3 + 16, 8}} {
		if err := p.Restore(e); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []Extent{{0, 11, 8}, {0, 27, 8}, {0, 59, 8}, {1, 1<<20 + 8, 8}} {
		if got := mustAlloc(t, p, 8); got[0] != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}
