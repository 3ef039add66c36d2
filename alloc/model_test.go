package alloc

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

// model is the naive picture of a pool: who owns each block, which slabs are
// being discarded, and which became empty since. It knows the class table
// and nothing else of the implementation.
type model struct {
	t      testing.TB
	g      Geometry
	tb     *table
	owned  [][]bool // by device and block of its slab area
	live   []Extent
	flight []Extent
	dirty  map[Extent]bool // as whole slabs
}

func newModel(t testing.TB, g Geometry) *model {
	m := &model{t: t, g: g, tb: newTable(g.SlabBlocks), dirty: map[Extent]bool{}}
	for _, s := range g.Devices {
		m.owned = append(m.owned, make([]bool, uint64(s.Slabs)*uint64(g.SlabBlocks)))
	}
	return m
}

// slabOf is the slab with the first block of e.
func (m *model) slabOf(e Extent) Extent {
	first, n := m.g.Devices[e.Dev].FirstBlock, uint64(m.g.SlabBlocks)
	return Extent{e.Dev, first + (e.Start-first)/n*n, m.g.SlabBlocks}
}

// blocks are the blocks of e.
func (m *model) blocks(e Extent) []bool {
	off := e.Start - m.g.Devices[e.Dev].FirstBlock
	return m.owned[e.Dev][off : off+uint64(e.Blocks)]
}

// take records that e was handed out, and checks that it could be.
func (m *model) take(e Extent) {
	for i := range m.blocks(e) {
		if m.blocks(e)[i] {
			m.t.Fatalf("%v handed out although block %d is in use", e, i)
		}
		m.blocks(e)[i] = true
	}
	for s := m.slabOf(e); s.Start < e.Start+uint64(e.Blocks); s.Start += uint64(s.Blocks) {
		if slices.Contains(m.flight, s) {
			m.t.Fatalf("%v handed out although slab %v is being discarded", e, s)
		}
		delete(m.dirty, s)
	}
	m.live = append(m.live, e)
}

// free records that live[i] was freed.
func (m *model) free(i int) {
	e := m.live[i]
	m.live[i] = m.live[len(m.live)-1]
	m.live = m.live[:len(m.live)-1]
	clear(m.blocks(e))
	for s := m.slabOf(e); s.Start < e.Start+uint64(e.Blocks); s.Start += uint64(s.Blocks) {
		if !slices.Contains(m.blocks(s), true) {
			m.dirty[s] = true
		}
	}
}

// usage is what the model says about the free space.
type usage struct {
	freeSlabs int64
	slots     []int64 // free, by class
	rest      int64   // blocks
	devices   []int64 // blocks in use
}

func (m *model) usage() usage {
	u := usage{slots: make([]int64, len(m.tb.classes)), devices: make([]int64, len(m.owned))}
	cut := map[Extent]uint32{} // slab → length of its slots
	for _, e := range m.live {
		u.devices[e.Dev] += int64(e.Blocks)
		if e.Blocks < m.g.SlabBlocks {
			s := m.slabOf(e)
			if old, ok := cut[s]; ok && old != e.Blocks {
				m.t.Fatalf("slab %v has slots of %d and %d blocks", s, old, e.Blocks)
			}
			cut[s] = e.Blocks
		}
	}
	for dev, span := range m.g.Devices {
		for i := range uint64(span.Slabs) {
			s := Extent{uint8(dev), span.FirstBlock + i*uint64(m.g.SlabBlocks), m.g.SlabBlocks}
			if slices.Contains(m.flight, s) {
				continue
			}
			b := m.blocks(s)
			size, isCut := cut[s]
			if !isCut {
				if !b[0] {
					u.freeSlabs++
				}
				continue
			}
			c, _ := m.tb.byBlocks(size)
			for len(b) >= int(size) {
				if !b[0] {
					u.slots[c]++
				}
				b = b[size:]
			}
			u.rest += int64(len(b))
		}
	}
	return u
}

// checkStats compares Stats with the model.
func (m *model) checkStats(p *Pool) {
	m.t.Helper()
	u, s := m.usage(), p.Stats()
	slab := int64(m.g.SlabBlocks) * base.StoreBlock
	var slots, used, capacity int64
	for c, n := range u.slots {
		slots += n * int64(m.tb.classes[c].blocks) * base.StoreBlock
		if s.Classes[c].Free != n {
			m.t.Fatalf("class %d: %d free, the model has %d", c, s.Classes[c].Free, n)
		}
	}
	for d, n := range u.devices {
		used += n * base.StoreBlock
		capacity += int64(m.g.Devices[d].Slabs) * slab
		if s.Devices[d].Allocated != n*base.StoreBlock {
			m.t.Fatalf("device %d: %d bytes in use, the model has %d blocks", d, s.Devices[d].Allocated, n)
		}
	}
	want := []int64{capacity, used, u.freeSlabs * slab, slots, u.rest * base.StoreBlock,
		int64(len(m.flight)) * slab, int64(len(m.flight)), int64(len(m.dirty))}
	got := []int64{s.Capacity, s.Allocated, s.FreeSlab, s.FreeSlot, s.Rest,
		s.Discarding, int64(s.DiscardsInFlight), int64(s.DiscardCandidates)}
	if !slices.Equal(got, want) {
		m.t.Fatalf("stats %v, the model says %v", got, want)
	}
	if sum := s.Allocated + s.FreeSlab + s.FreeSlot + s.Rest + s.Discarding; sum != s.Capacity {
		m.t.Fatalf("the parts add up to %d, the capacity is %d", sum, s.Capacity)
	}
}

// checkNoSpace tells whether ErrNoSpace for so many blocks was right.
func (m *model) checkNoSpace(blocks uint64) {
	u, half := m.usage(), uint64(m.g.SlabBlocks/2)
	if blocks <= half {
		most := 2 * m.tb.classes[m.tb.fit[blocks]].blocks
		for c, n := range u.slots {
			if b := m.tb.classes[c].blocks; u.freeSlabs > 0 || n > 0 && uint64(b) >= blocks && b <= most {
				m.t.Fatalf("no space for %d blocks; %d slots of %d, %d slabs", blocks, n, b, u.freeSlabs)
			}
		}
		return
	}
	sum, pieces := uint64(u.freeSlabs)*uint64(m.g.SlabBlocks), int64(maxComposed)
	for c := len(u.slots) - 1; c >= 0; c-- {
		n := min(u.slots[c], pieces)
		sum, pieces = sum+uint64(n)*uint64(m.tb.classes[c].blocks), pieces-n
	}
	if sum >= blocks {
		m.t.Fatalf("no space for %d blocks although %d could be composed", blocks, sum)
	}
}

// alloc allocates so many bytes in both.
func (m *model) alloc(p *Pool, bytes int64) {
	m.t.Helper()
	blocks := blocksOf(bytes)
	mark := Extent{7, 7, 7}
	es, err := p.Alloc([]Extent{mark}, bytes)
	if es[0] != mark {
		m.t.Fatalf("Alloc changed dst")
	}
	if es = es[1:]; err != nil {
		if !errors.Is(err, base.ErrNoSpace) || len(es) != 0 {
			m.t.Fatalf("Alloc gave %v and %v", es, err)
		}
		m.checkNoSpace(blocks)
		return
	}
	sum := uint64(0)
	for _, e := range es {
		if sum >= blocks {
			m.t.Fatalf("%d blocks: %v has an extent too many", blocks, es)
		}
		sum += uint64(e.Blocks)
		m.take(e)
	}
	if sum < blocks || blocks <= uint64(m.g.SlabBlocks/2) && len(es) > 1 {
		m.t.Fatalf("%d blocks: got %v", blocks, es)
	}
}

// step does one random operation in both.
func (m *model) step(p *Pool, rng *rand.Rand, greed float64) {
	m.t.Helper()
	slab := float64(m.g.SlabBlocks) * base.StoreBlock
	switch r := rng.Float64(); {
	case r < greed:
		m.alloc(p, int64(math.Exp(rng.Float64()*math.Log(3*slab))))
	case r < greed+0.02:
		es, err := p.AllocSlab(nil)
		if free := m.usage().freeSlabs; (err == nil) != (free > 0) {
			m.t.Fatalf("AllocSlab: %v with %d free slabs", err, free)
		}
		for _, e := range es {
			m.take(e)
		}
	case r < greed+0.06:
		e, ok := p.TakeDiscard()
		if ok != (len(m.dirty) > 0) || ok && !m.dirty[e] {
			m.t.Fatalf("TakeDiscard: %v, %v; the model has %v", e, ok, m.dirty)
		}
		if ok {
			delete(m.dirty, e)
			m.flight = append(m.flight, e)
		}
	case r < greed+0.10:
		if n := len(m.flight); n > 0 {
			i := rng.IntN(n)
			p.DoneDiscard(m.flight[i])
			m.flight = slices.Delete(m.flight, i, i+1)
		}
	case len(m.live) > 0:
		i := rng.IntN(len(m.live))
		p.Free(m.live[i])
		m.free(i)
	}
}

// reopen rebuilds the pool from the live extents and checks that it answers as
// the old one does.
func (m *model) reopen(old *Pool, rng *rand.Rand) *Pool {
	m.t.Helper()
	for _, e := range m.flight {
		old.DoneDiscard(e)
	}
	m.flight = nil
	p := mustNew(m.t, m.g)
	for _, i := range rng.Perm(len(m.live)) {
		if err := p.Restore(m.live[i]); err != nil {
			m.t.Fatal(err)
		}
	}
	checkPool(m.t, p)
	for range 20 {
		bytes := int64(math.Exp(rng.Float64() * math.Log(4*float64(m.g.SlabBlocks)*base.StoreBlock)))
		a, errA := old.Alloc(nil, bytes)
		b, errB := p.Alloc(nil, bytes)
		if fmt.Sprint(errA) != fmt.Sprint(errB) || !slices.Equal(lengths(a), lengths(b)) {
			m.t.Fatalf("%d bytes: %v, %v before and %v, %v after the rebuild", bytes, a, errA, b, errB)
		}
		for _, e := range a {
			old.Free(e)
		}
		for _, e := range b {
			p.Free(e)
		}
	}
	m.dirty = map[Extent]bool{}
	for {
		e, ok := p.TakeDiscard()
		if !ok {
			return p
		}
		p.DoneDiscard(e)
	}
}

// lengths are the sizes of extents without their places; a run of slabs counts
// as its slabs, since where slabs lie may differ.
func lengths(es []Extent) (out []uint32) {
	for _, e := range es {
		out = append(out, e.Blocks)
	}
	slices.SortFunc(out, cmp.Compare[uint32])
	return out
}

// TestModel runs random operations against the naive model.
func TestModel(t *testing.T) {
	rng := testenv.Seed(t)
	for _, g := range []Geometry{
		{16, []Span{{0, 40}}},
		{16, []Span{{5, 30}, {1 << 35, 1}, {0, 70}}},
		{64, []Span{{1000, 12}, {3, 12}}},
		{256, []Span{{256, 17}}},
		{1024, []Span{{1, 6}, {77, 3}}},
		{16384, []Span{{9, 2}, {9, 3}}},
	} {
		t.Run(fmt.Sprintf("%d-blocks-%d-devices", g.SlabBlocks, len(g.Devices)), func(t *testing.T) {
			steps := 20000
			if g.SlabBlocks > 1024 || testing.Short() {
				steps = 3000
			}
			runModel(t, g, rng, steps)
		})
	}
}

func runModel(t *testing.T, g Geometry, rng *rand.Rand, steps int) {
	m, p := newModel(t, g), mustNew(t, g)
	for i := range steps {
		greed := 0.6
		if i/(steps/8)%2 == 1 {
			greed = 0.2 // let the pool drain, so that slabs become empty
		}
		m.step(p, rng, greed)
		switch {
		case rng.IntN(steps/15) == 0:
			p = m.reopen(p, rng)
		case rng.IntN(20) == 0:
			m.checkStats(p)
			checkPool(t, p)
		}
	}
	for len(m.live) > 0 {
		p.Free(m.live[0])
		m.free(0)
	}
	for _, e := range m.flight {
		p.DoneDiscard(e)
	}
	m.flight = nil
	m.checkStats(p)
	if s := p.Stats(); s.FreeSlab != s.Capacity {
		t.Errorf("everything freed, but %d of %d bytes are free slabs", s.FreeSlab, s.Capacity)
	}
}
