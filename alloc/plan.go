package alloc

import (
	"math"

	"github.com/ugds-store/ugds/internal/base"
)

const (
	// maxTail is the most slots that the tail of a value is split into while
	// slabs are free.
	maxTail = 3
	// maxComposed is the most slots of one value when slabs are short.
	maxComposed = 64
	// manySlots is from where one larger slot is better than full ones.
	manySlots = 4
	// wholePiece stands for a whole slab among the pieces of a plan.
	wholePiece = math.MaxUint8
	// oneExtentBytes: up to here a value above half a slab stays in one
	// extent if that wastes at most one part in oneExtentDiv of it.
	oneExtentBytes = base.MiB
	oneExtentDiv   = 4
)

// plan is a shape: whole slabs, then slots. All but the last extent are full.
type plan struct {
	slabs uint64 // whole slabs
	n     int    // pieces used
	piece [maxComposed]uint8
}

func (p *plan) add(c uint8) bool {
	if p.n == len(p.piece) {
		return false
	}
	p.piece[p.n] = c
	p.n++
	return true
}

// blocksOf is the number of blocks that hold so many bytes, without overflow.
func blocksOf(bytes int64) uint64 {
	if bytes <= 0 {
		return 0
	}
	return uint64(bytes-1)/base.StoreBlock + 1
}

// shape plans a value as if every class had a free slot.
func (t *table) shape(blocks uint64, p *plan) {
	if blocks <= uint64(t.slab/2) {
		if blocks > 0 {
			p.add(t.fit[blocks])
		}
		return
	}
	p.slabs = blocks >> t.shift
	tail := uint32(blocks) & (t.slab - 1)
	if tail == 0 {
		return
	}
	div := uint32(wasteDiv)
	if p.slabs == 0 && blocks <= oneExtentBytes/base.StoreBlock {
		div = oneExtentDiv
	}
	t.shapeTail(tail, div, p)
}

// shapeTail plans the last tail blocks, fewer than a slab: the fewest slots
// that waste at most one part in div, or else the split that wastes least.
func (t *table) shapeTail(tail, div uint32, p *plan) {
	single, size := uint8(wholePiece), t.slab
	if tail <= t.slab/2 {
		single = t.fit[tail]
		size = t.classes[single].blocks
	}
	if (size-tail)*div <= size {
		p.addTail(single)
		return
	}
	best, sum := t.split2(tail)
	if (sum-tail)*div > sum {
		if three, s := t.split3(tail); s < sum {
			best, sum = three, s
		}
	}
	if sum >= size {
		p.addTail(single)
		return
	}
	for _, c := range best {
		if c != wholePiece {
			p.add(c)
		}
	}
}

func (p *plan) addTail(c uint8) {
	if c == wholePiece {
		p.slabs++
		return
	}
	p.add(c)
}

// split2 finds the two slots that hold tail with the least waste, the first
// one full. The largest first slot wins among equals.
func (t *table) split2(tail uint32) (best [maxTail]uint8, sum uint32) {
	best, sum = [maxTail]uint8{wholePiece, wholePiece, wholePiece}, math.MaxUint32
	for c := len(t.classes) - 1; c >= 0; c-- {
		a := t.classes[c].blocks
		if a >= tail {
			continue
		}
		if tail-a > a {
			break
		}
		last := t.fit[tail-a]
		if s := a + t.classes[last].blocks; s < sum {
			best[0], best[1], sum = uint8(c), last, s
		}
	}
	return best, sum
}

// split3 finds three slots that hold tail with the least waste, the first two
// full and in descending order.
func (t *table) split3(tail uint32) (best [maxTail]uint8, sum uint32) {
	sum = math.MaxUint32
	for c := len(t.classes) - 1; c >= 0; c-- {
		a := t.classes[c].blocks
		if a >= tail {
			continue
		}
		rest, s := t.split2(tail - a)
		if s < math.MaxUint32 && rest[0] <= uint8(c) && a+s < sum {
			best, sum = [maxTail]uint8{uint8(c), rest[0], rest[1]}, a+s
		}
	}
	return best, sum
}

// blocks is the device space of the plan.
func (t *table) blocks(p *plan) uint64 {
	n := p.slabs << t.shift
	for _, c := range p.piece[:p.n] {
		if c == wholePiece {
			n += uint64(t.slab)
		} else {
			n += uint64(t.classes[c].blocks)
		}
	}
	return n
}

// fits tells whether the free slabs and slots carry the plan.
func (p *Pool) fits(pl *plan) bool {
	if pl.slabs > p.free {
		return false
	}
	free := p.free - pl.slabs
	var taken [maxTail]uint8 // the plan of shape has few pieces
	for i, c := range pl.piece[:pl.n] {
		taken[i] = c
		want := uint64(1)
		for _, before := range taken[:i] {
			if before == c {
				want++
			}
		}
		if p.class[c].free >= want {
			continue
		}
		// A slab opened for an equal piece before has room for this one too,
		// since every class has at least two slots.
		if want > p.class[c].free+1 {
			continue
		}
		if free == 0 {
			return false
		}
		free--
	}
	return true
}

// larger finds the smallest class above c, up to twice its size, that has a
// free slot.
func (p *Pool) larger(c uint8) (uint8, bool) {
	most := 2 * p.t.classes[c].blocks
	for k := int(c) + 1; k < len(p.t.classes) && p.t.classes[k].blocks <= most; k++ {
		if p.class[k].free > 0 {
			return uint8(k), true
		}
	}
	return 0, false
}

// compose plans a value of more than half a slab from what is free, when its
// shape does not fit: slabs, then slots from the largest down, then one that
// takes the rest. It fails only if the free slabs and the maxComposed largest
// free slots do not suffice.
func (p *Pool) compose(blocks uint64, pl *plan) bool {
	t := p.t
	*pl = plan{slabs: min(p.free, blocks>>t.shift)}
	free := stock{slabs: p.free - pl.slabs}
	for c := range t.classes {
		free.slots[c] = p.class[c].free
	}
	rest := blocks - pl.slabs<<t.shift
	for c := len(t.classes) - 1; c >= 0; c-- {
		b := uint64(t.classes[c].blocks)
		for ; rest >= b && free.slots[c] > 0; free.slots[c]-- {
			if k, size := t.closing(rest, &free); size > 0 &&
				((size-rest)*wasteDiv <= size || rest/b >= manySlots || pl.n == maxComposed-1) {
				return pl.add(k)
			}
			if !pl.add(uint8(c)) {
				return false
			}
			if rest -= b; rest == 0 {
				return true
			}
		}
	}
	if rest == 0 {
		return true
	}
	k, size := t.closing(rest, &free)
	return size > 0 && pl.add(k)
}

// stock is what compose may still take.
type stock struct {
	slabs uint64
	slots [maxClasses]uint64
}

// closing finds the smallest free slot or slab that holds rest blocks, and its
// size; a size of zero tells that there is none.
func (t *table) closing(rest uint64, free *stock) (uint8, uint64) {
	if rest <= uint64(t.slab/2) {
		for k := int(t.fit[rest]); k < len(t.classes); k++ {
			if free.slots[k] > 0 {
				return uint8(k), uint64(t.classes[k].blocks)
			}
		}
	}
	if rest <= uint64(t.slab) && free.slabs > 0 {
		return wholePiece, uint64(t.slab)
	}
	return 0, 0
}
