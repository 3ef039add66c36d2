package alloc

import (
	"testing"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// newPool makes a pool of one device of so many bytes, from block 0 on.
func newPool(t testing.TB, bytes int64, slabBlocks uint32) *Pool {
	t.Helper()
	slabs := uint32(bytes / base.StoreBlock / int64(slabBlocks))
	return mustNew(t, Geometry{slabBlocks, []Span{{0, slabs}}})
}

func mustNew(t testing.TB, g Geometry) *Pool {
	t.Helper()
	p, err := New(g)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// mustAlloc allocates so many blocks.
func mustAlloc(t testing.TB, p *Pool, blocks int64) []Extent {
	t.Helper()
	es, err := p.Alloc(nil, blocks*base.StoreBlock)
	if err != nil {
		t.Fatal(err)
	}
	return es
}

// checkPool derives every counter, list and summary again from the slabs.
func checkPool(t testing.TB, p *Pool) {
	t.Helper()
	var class [maxClasses]classState
	var free, whole, linked uint64
	run := uint32(0)
	for g := range p.slabs {
		s := &p.slabs[g]
		d := &p.devs[s.dev]
		i := uint32(g) - d.base
		if (s.kind == slabFree) != d.free.Has(i) || d.dirty.Has(i) && s.kind != slabFree {
			t.Fatalf("slab %d of kind %d: free %v, dirty %v", g, s.kind, d.free.Has(i), d.dirty.Has(i))
		}
		if (run > 0) != (s.kind == slabRunOn) {
			t.Fatalf("slab %d of kind %d with %d slabs of a run to come", g, s.kind, run)
		}
		switch s.kind {
		case slabFree:
			free++
		case slabRun:
			run, whole = s.used, whole+1
		case slabRunOn:
			whole++
		case slabSlots:
			checkSlots(t, p, uint32(g))
			c := &p.t.classes[s.class]
			class[s.class].slabs++
			class[s.class].used += uint64(s.used)
			class[s.class].free += uint64(c.slots - s.used)
			if s.used < c.slots {
				linked++
			}
		}
		run = max(run, 1) - 1
	}
	if free != p.free || whole != p.whole {
		t.Fatalf("free %d, whole %d; counted %d, %d", p.free, p.whole, free, whole)
	}
	for c := range p.t.classes {
		st := p.class[c]
		if class[c].slabs != st.slabs || class[c].used != st.used || class[c].free != st.free {
			t.Fatalf("class %d: %+v, counted %+v", c, st, class[c])
		}
		prev := uint32(none)
		for g := st.head; g != none && p.sealed; prev, g = g, p.slabs[g].next {
			if s := &p.slabs[g]; s.prev != prev || s.kind != slabSlots || int(s.class) != c || linked == 0 {
				t.Fatalf("class %d: list broken at slab %d", c, g)
			}
			linked--
		}
		if p.sealed && st.tail != prev {
			t.Fatalf("class %d: the list ends at %d, not %d", c, prev, st.tail)
		}
	}
	if p.sealed && linked != 0 {
		t.Fatalf("%d slabs with free slots are on no list", linked)
	}
}

// checkSlots counts the bits of a cut slab.
func checkSlots(t testing.TB, p *Pool, g uint32) {
	t.Helper()
	s := &p.slabs[g]
	c := &p.t.classes[s.class]
	free := uint32(0)
	var sum uint64
	for i := range c.slots {
		if p.slotFree(s, c, i) {
			free++
			if c.slots > 64 {
				sum |= 1 << (i / 64 >> c.group)
			} else {
				sum |= 1 << i
			}
		}
	}
	if free != c.slots-s.used || sum != s.bits || s.used == 0 {
		t.Fatalf("slab %d: %d of %d slots used, %d free, bits %x and %x", g, s.used, c.slots, free, s.bits, sum)
	}
	if free > 0 {
		if i := p.firstSlot(s, c); !p.slotFree(s, c, i) {
			t.Fatalf("slab %d: first slot %d is not free", g, i)
		}
	}
}
