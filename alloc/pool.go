package alloc

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/bitset"
)

// MaxSlabs is the most slabs of a pool. A slab costs 32 bytes of memory plus a
// bitmap if it is cut into more than 64 slots.
const MaxSlabs = 1 << 26

// Geometry says where the slabs of a pool lie. SlabBlocks is a power of two
// from MinSlabBlocks to MaxSlabBlocks; Devices has 1 to MaxDevices entries.
type Geometry struct {
	SlabBlocks uint32 // length of a slab, in 4 KiB blocks
	Devices    []Span // by Extent.Dev
}

// Span is the slab area of one device: Slabs slabs from FirstBlock on. It ends
// at MaxStartBlock at the latest and is not empty.
type Span struct {
	FirstBlock uint64
	Slabs      uint32
}

// Pool is the space of one or several devices. It is safe for concurrent use;
// one mutex guards it, held for well under a microsecond.
type Pool struct {
	t *table // does not change

	mu     sync.Mutex
	devs   []device
	slabs  []slab // those of device 0, then of device 1, …
	class  [maxClasses]classState
	words  wordPool
	free   uint64 // slabs in state slabFree
	whole  uint64 // slabs in slabRun and slabRunOn
	sealed bool   // Restore is over
}

// device is the state of one device.
type device struct {
	first    uint64 // first block of slab 0
	base     uint32 // number of slab 0 in Pool.slabs
	slabs    uint32
	used     uint64       // blocks handed out
	inFlight atomic.Int32 // discards; changed under mu
	free     bitset.Set   // slabs in state slabFree
	dirty    bitset.Set   // those of free that wait for a discard
}

// classState is what the slabs of one class have together.
type classState struct {
	head, tail uint32 // slabs with free slots; the head is filled first
	slabs      uint32
	used       uint64 // slots
	free       uint64 // slots
}

// New makes a pool in which everything is free. It returns ErrInvalid or
// ErrOutOfRange for a geometry outside the limits.
func New(g Geometry) (*Pool, error) {
	total, err := g.check()
	if err != nil {
		return nil, err
	}
	p := &Pool{
		t:     newTable(g.SlabBlocks),
		devs:  make([]device, len(g.Devices)),
		slabs: make([]slab, total),
		words: wordPool{unit: max(g.SlabBlocks/64, 1), free: none},
		free:  total,
	}
	for c := range p.class {
		p.class[c].head, p.class[c].tail = none, none
	}
	next := uint32(0)
	for i, s := range g.Devices {
		d := &p.devs[i]
		*d = device{first: s.FirstBlock, base: next, slabs: s.Slabs,
			free: bitset.New(s.Slabs), dirty: bitset.New(s.Slabs)}
		d.free.Fill(s.Slabs)
		for g := next; g < next+s.Slabs; g++ {
			p.slabs[g].dev = uint8(i)
		}
		next += s.Slabs
	}
	return p, nil
}

// check validates the geometry and counts the slabs.
func (g *Geometry) check() (uint64, error) {
	const op, obj = "make", "pool"
	n := g.SlabBlocks
	if n < MinSlabBlocks || n > MaxSlabBlocks || n&(n-1) != 0 {
		return 0, base.Errorf(op, obj, base.ErrInvalid,
			"slabs of %d blocks: want a power of two from %d to %d", n, MinSlabBlocks, MaxSlabBlocks)
	}
	if len(g.Devices) == 0 || len(g.Devices) > MaxDevices {
		return 0, base.Errorf(op, obj, base.ErrInvalid,
			"%d devices: want 1 to %d", len(g.Devices), MaxDevices)
	}
	total := uint64(0)
	for i, s := range g.Devices {
		if s.Slabs == 0 {
			return 0, base.Errorf(op, obj, base.ErrInvalid, "device %d has no slab", i)
		}
		blocks := uint64(s.Slabs) * uint64(n)
		if s.FirstBlock > MaxStartBlock+1 || blocks > MaxStartBlock+1-s.FirstBlock {
			return 0, base.Errorf(op, obj, base.ErrOutOfRange,
				"device %d: %d blocks from block %d on pass the limit of %d", i, blocks, s.FirstBlock,
				uint64(MaxStartBlock+1))
		}
		total += uint64(s.Slabs)
	}
	if total > MaxSlabs {
		return 0, base.Errorf(op, obj, base.ErrOutOfRange, "%d slabs: at most %d", total, MaxSlabs)
	}
	return total, nil
}

// Alloc appends to dst the extents for a value of so many bytes and returns
// it. The value's bytes fill them in order; all but the last are full. Zero
// bytes need no extent. When the space does not suffice it returns dst as it
// was and ErrNoSpace; nothing is taken. A negative size is ErrInvalid.
func (p *Pool) Alloc(dst []Extent, bytes int64) ([]Extent, error) {
	if bytes < 0 {
		return dst, base.Errorf("allocate", "extents", base.ErrInvalid, "%d bytes", bytes)
	}
	blocks := blocksOf(bytes)
	var pl plan
	p.t.shape(blocks, &pl)
	p.mu.Lock()
	p.seal()
	if !p.fits(&pl) && !p.squeeze(blocks, &pl) {
		sp := p.space()
		p.mu.Unlock()
		return dst, sp.noSpace(bytes)
	}
	dst = p.take(dst, &pl)
	p.mu.Unlock()
	return dst, nil
}

// AllocSlab appends one whole slab to dst, for a value of unknown length. It
// returns ErrNoSpace when no slab is free.
func (p *Pool) AllocSlab(dst []Extent) ([]Extent, error) {
	p.mu.Lock()
	p.seal()
	if p.free == 0 {
		sp := p.space()
		p.mu.Unlock()
		return dst, sp.noSpace(int64(p.t.slab) * base.StoreBlock)
	}
	dst = p.take(dst, &plan{slabs: 1})
	p.mu.Unlock()
	return dst, nil
}

// Free gives back an extent that Alloc, AllocSlab or Restore took. An extent
// that is not allocated as it stands is the caller's mistake: Free panics and
// changes nothing.
func (p *Pool) Free(e Extent) {
	p.mu.Lock()
	p.seal()
	why := p.release(e)
	p.mu.Unlock()
	if why != "" {
		panic(fmt.Sprintf("alloc: free of %v: %s", e, why))
	}
}

// SlotBytes is the device space that a value of so many bytes takes while
// slabs are free; with slabs short it may take up to twice the size.
func (p *Pool) SlotBytes(bytes int64) int64 {
	var pl plan
	p.t.shape(blocksOf(bytes), &pl)
	return int64(min(p.t.blocks(&pl), math.MaxInt64/base.StoreBlock)) * base.StoreBlock
}

// squeeze replaces a plan that does not fit by one that uses what is free.
func (p *Pool) squeeze(blocks uint64, pl *plan) bool {
	if blocks > uint64(p.t.slab/2) {
		return p.compose(blocks, pl)
	}
	c, ok := p.larger(pl.piece[0])
	pl.piece[0] = c
	return ok
}

// take carries out a plan that fits.
func (p *Pool) take(dst []Extent, pl *plan) []Extent {
	old := len(dst)
	for range pl.slabs {
		dst = p.takeSlab(dst, old)
	}
	for _, c := range pl.piece[:pl.n] {
		if c == wholePiece {
			dst = p.takeSlab(dst, len(dst))
		} else {
			dst = append(dst, p.takeSlot(c))
		}
	}
	return dst
}

// takeSlab appends a whole slab, or makes the last extent longer if the slab
// follows it and that extent is one of dst[from:].
func (p *Pool) takeSlab(dst []Extent, from int) []Extent {
	g := p.openSlab()
	s := &p.slabs[g]
	p.whole++
	d := &p.devs[s.dev]
	d.used += uint64(p.t.slab)
	start := d.first + uint64(g-d.base)<<p.t.shift
	if len(dst) > from {
		e := &dst[len(dst)-1]
		if e.Dev == s.dev && e.Start+uint64(e.Blocks) == start && e.Blocks+p.t.slab <= MaxExtentBlock {
			s.kind = slabRunOn
			p.slabs[g-e.Blocks>>p.t.shift].used++
			e.Blocks += p.t.slab
			return dst
		}
	}
	s.kind, s.used = slabRun, 1
	return append(dst, Extent{s.dev, start, p.t.slab})
}

// takeSlot takes a slot of class c.
func (p *Pool) takeSlot(c uint8) Extent {
	st, cl := &p.class[c], &p.t.classes[c]
	g := st.head
	if g == none {
		g = p.openSlab()
		p.cut(g, c)
		p.link(g)
	}
	s := &p.slabs[g]
	i := p.firstSlot(s, cl)
	p.useSlot(s, cl, i)
	if s.used == cl.slots {
		p.unlink(g)
	}
	d := &p.devs[s.dev]
	return Extent{s.dev, d.first + uint64(g-d.base)<<p.t.shift + uint64(i*cl.blocks), cl.blocks}
}

// useSlot marks the free slot i used and counts it.
func (p *Pool) useSlot(s *slab, c *class, i uint32) {
	p.markUsed(s, c, i)
	s.used++
	p.class[s.class].free--
	p.class[s.class].used++
	p.devs[s.dev].used += uint64(c.blocks)
}

// openSlab takes the free slab with the lowest address of the device with the
// most free slabs; there is one. Low slabs are used again and again, so that
// the upper part of a device stays as erased as it was.
func (p *Pool) openSlab() uint32 {
	d := &p.devs[0]
	for i := range p.devs[1:] {
		if o := &p.devs[1+i]; o.free.Len() > d.free.Len() {
			d = o
		}
	}
	i := d.free.First()
	p.claim(d, i)
	return d.base + i
}

// claim takes slab i of d out of the free ones. A discard that nobody took up
// is dropped.
func (p *Pool) claim(d *device, i uint32) {
	d.free.Remove(i)
	p.free--
	if d.dirty.Has(i) {
		d.dirty.Remove(i)
	}
}

// cut divides slab g, just claimed, into slots of class c.
func (p *Pool) cut(g uint32, c uint8) {
	s, cl, st := &p.slabs[g], &p.t.classes[c], &p.class[c]
	s.kind, s.class, s.used = slabSlots, c, 0
	p.openBits(s, cl)
	st.slabs++
	st.free += uint64(cl.slots)
}

// release frees e or says why that is wrong.
func (p *Pool) release(e Extent) string {
	g, why := p.locate(e)
	if why != "" {
		return why
	}
	s := &p.slabs[g]
	if e.Blocks >= p.t.slab {
		return p.releaseRun(e, g)
	}
	if s.kind != slabSlots || p.t.classes[s.class].blocks != e.Blocks {
		return "not a slot in use"
	}
	cl := &p.t.classes[s.class]
	i := p.slotOf(e)
	if p.slotFree(s, cl, i) {
		return "the slot is free already"
	}
	p.markFree(s, cl, i)
	st := &p.class[s.class]
	st.free++
	st.used--
	p.devs[s.dev].used -= uint64(cl.blocks)
	s.used--
	if s.used == cl.slots-1 {
		p.link(g)
	}
	if s.used == 0 {
		p.unlink(g)
		st.slabs--
		st.free -= uint64(cl.slots)
		p.closeBits(s, cl)
		p.empty(g)
	}
	return ""
}

// releaseRun frees an extent of whole slabs that begins with slab g.
func (p *Pool) releaseRun(e Extent, g uint32) string {
	n := e.Blocks >> p.t.shift
	if s := &p.slabs[g]; s.kind != slabRun || s.used != n {
		return "not whole slabs in use"
	}
	p.slabs[g].used = 0
	for i := range n {
		p.empty(g + i)
	}
	p.whole -= uint64(n)
	p.devs[e.Dev].used -= uint64(e.Blocks)
	return ""
}

// empty makes slab g free and a candidate for a discard.
func (p *Pool) empty(g uint32) {
	s := &p.slabs[g]
	s.kind = slabFree
	d := &p.devs[s.dev]
	d.free.Add(g - d.base)
	d.dirty.Add(g - d.base)
	p.free++
}

// locate finds the slab in which e begins, or says why e cannot be an extent
// of this pool: outside the slabs, or of a length or place that no class has.
func (p *Pool) locate(e Extent) (uint32, string) {
	if int(e.Dev) >= len(p.devs) {
		return 0, "no such device"
	}
	d, slab := &p.devs[e.Dev], uint64(p.t.slab)
	if e.Start < d.first || e.Start-d.first >= uint64(d.slabs)<<p.t.shift {
		return 0, "outside the slabs of the device"
	}
	rel := e.Start - d.first
	i, off := uint32(rel>>p.t.shift), rel&(slab-1)
	switch {
	case e.Blocks == 0 || e.Blocks > MaxExtentBlock:
		return 0, "bad length"
	case uint64(e.Blocks) >= slab:
		n := e.Blocks >> p.t.shift
		if off != 0 || uint64(e.Blocks)&(slab-1) != 0 {
			return 0, "does not match the slabs"
		}
		if n > d.slabs-i {
			return 0, "ends after the last slab"
		}
	default:
		c, ok := p.t.byBlocks(e.Blocks)
		if !ok {
			return 0, "no class has this length"
		}
		cl := &p.t.classes[c]
		if slot := uint32(off) / cl.blocks; uint32(off)%cl.blocks != 0 || slot >= cl.slots {
			return 0, "does not match the slots of its class"
		}
	}
	return d.base + i, ""
}

// slotOf is the number of the slot within its slab.
func (p *Pool) slotOf(e Extent) uint32 {
	off := uint32(e.Start-p.devs[e.Dev].first) & (p.t.slab - 1)
	return off / e.Blocks
}

// link appends slab g to the slabs of its class with free slots. The end is
// where a slab waits longest, and may become empty meanwhile.
func (p *Pool) link(g uint32) {
	s := &p.slabs[g]
	st := &p.class[s.class]
	s.prev, s.next = st.tail, none
	if st.tail == none {
		st.head = g
	} else {
		p.slabs[st.tail].next = g
	}
	st.tail = g
}

// unlink takes slab g off its list.
func (p *Pool) unlink(g uint32) {
	s := &p.slabs[g]
	st := &p.class[s.class]
	if s.prev == none {
		st.head = s.next
	} else {
		p.slabs[s.prev].next = s.next
	}
	if s.next == none {
		st.tail = s.prev
	} else {
		p.slabs[s.next].prev = s.prev
	}
}
