package alloc

import (
	"math/bits"

	"github.com/ugds-store/ugds/internal/bitset"
)

// Kinds of slabs.
const (
	slabFree       = iota // in free of its device
	slabSlots             // cut into slots of one class
	slabRun               // the first slab of an extent of whole slabs
	slabRunOn             // a further slab of such an extent
	slabDiscarding        // empty, a discard of it is in flight
)

// none ends a list of slabs and stands for "no words".
const none = 1<<32 - 1

// slab is the state of one slab. It has no pointers, so that the collector
// does not look at the array of slabs.
type slab struct {
	// bits tells the free slots: one bit a slot if the class has at most 64 of
	// them, else one bit for each group of words with a free slot.
	bits       uint64
	used       uint32 // slots in use; in slabRun the length of the run
	prev, next uint32 // list of the class's slabs with free slots
	words      uint32 // unit in Pool.words, if the class has more than 64 slots
	dev        uint8
	kind       uint8
	class      uint8
	leaked     uint8 // in flight discards of a slab that stayed free (mutant only)
}

// wordPool hands out bitmaps of equal size for slabs of many slots. It grows in
// chunks and keeps what it has; memory follows the number of such slabs.
type wordPool struct {
	unit   uint32 // words in a bitmap
	chunks [][]uint64
	free   uint32 // list of free units through their first word
	n      uint32 // units cut from chunks so far
}

const chunkUnits = 64

func (w *wordPool) at(u uint32) []uint64 {
	off := u % chunkUnits * w.unit
	return w.chunks[u/chunkUnits][off : off+w.unit]
}

func (w *wordPool) get() uint32 {
	if u := w.free; u != none {
		w.free = uint32(w.at(u)[0])
		return u
	}
	if w.n%chunkUnits == 0 {
		w.chunks = append(w.chunks, make([]uint64, chunkUnits*w.unit))
	}
	w.n++
	return w.n - 1
}

func (w *wordPool) put(u uint32) {
	w.at(u)[0] = uint64(w.free)
	w.free = u
}

// openBits makes all slots of s free.
func (p *Pool) openBits(s *slab, c *class) {
	if c.slots <= 64 {
		s.bits = bitset.Ones(uint64(c.slots))
		return
	}
	s.words = p.words.get()
	n := (c.slots + 63) / 64
	w := p.words.at(s.words)
	for i := range w[:n] {
		w[i] = ^uint64(0)
	}
	if r := c.slots % 64; r != 0 {
		w[n-1] = bitset.Ones(uint64(r))
	}
	clear(w[n:]) // the last group may reach into them
	s.bits = bitset.Ones(uint64((n + 1<<c.group - 1) >> c.group))
}

// closeBits gives the bitmap of s back.
func (p *Pool) closeBits(s *slab, c *class) {
	if c.slots > 64 {
		p.words.put(s.words)
	}
	s.bits = 0
}

// firstSlot finds the free slot of s with the lowest address; there is one.
func (p *Pool) firstSlot(s *slab, c *class) uint32 {
	i := uint32(bits.TrailingZeros64(s.bits))
	if c.slots <= 64 {
		return i
	}
	w := p.words.at(s.words)
	for i <<= c.group; w[i] == 0; i++ {
	}
	return i*64 + uint32(bits.TrailingZeros64(w[i]))
}

// slotFree tells whether slot i of s is free.
func (p *Pool) slotFree(s *slab, c *class, i uint32) bool {
	if c.slots <= 64 {
		return s.bits>>i&1 != 0
	}
	return p.words.at(s.words)[i/64]>>(i%64)&1 != 0
}

// markUsed takes the free slot i of s.
func (p *Pool) markUsed(s *slab, c *class, i uint32) {
	if c.slots <= 64 {
		s.bits &^= 1 << i
		return
	}
	w := p.words.at(s.words)
	w[i/64] &^= 1 << (i % 64)
	g := i / 64 >> c.group
	for _, v := range w[g<<c.group : min((g+1)<<c.group, uint32(len(w)))] {
		if v != 0 {
			return
		}
	}
	s.bits &^= 1 << g
}

// markFree frees the used slot i of s.
func (p *Pool) markFree(s *slab, c *class, i uint32) {
	if c.slots <= 64 {
		s.bits |= 1 << i
		return
	}
	p.words.at(s.words)[i/64] |= 1 << (i % 64)
	s.bits |= 1 << (i / 64 >> c.group)
}
