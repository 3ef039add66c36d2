package alloc

import "github.com/ugds-store/ugds/internal/base"

// Limits of a slab, in 4 KiB blocks. The store uses 1 MiB to 64 MiB; smaller
// ones exist for the crash laboratory, which wants many slabs in little space.
const (
	MinSlabBlocks = 64 * base.KiB / base.StoreBlock
	MaxSlabBlocks = 64 * base.MiB / base.StoreBlock
)

// slabShare is the least number of slabs that the size rule aims for.
const slabShare = 1024

// stepsPerOctave is the number of sizes from one power of two to the next.
const stepsPerOctave = 8

// maxClasses bounds the class table; the largest slab has 76.
const maxClasses = 96

// wasteDiv bounds the waste of the slots of a tail: one part in wasteDiv.
const wasteDiv = 8

// class is one size of slots.
type class struct {
	blocks uint32 // length of a slot, in blocks
	slots  uint32 // slots in a slab
	group  uint8  // log2 of the bitmap words behind one bit of slab.bits
}

// table is the class table of one slab size. It does not change.
type table struct {
	slab    uint32  // blocks in a slab, a power of two
	shift   uint8   // log2(slab)
	classes []class // ascending
	fit     []uint8 // blocks needed, up to slab/2 → smallest class that holds them
}

// newTable derives the classes from the slab size. See the package comment:
// extents on disk depend on this rule.
func newTable(slab uint32) *table {
	t := &table{slab: slab, fit: make([]uint8, slab/2+1)}
	for 1<<t.shift < slab {
		t.shift++
	}
	need := uint32(0)
	for b, step := uint32(1), uint32(1); b <= slab/2; b += step {
		c := class{blocks: slab / (slab / b), slots: slab / b}
		for ; need <= c.blocks; need++ { // nothing if c repeats the class before
			t.fit[need] = uint8(len(t.classes))
		}
		if n := len(t.classes); n == 0 || t.classes[n-1].blocks < c.blocks {
			for (c.slots+63)/64 > 64<<c.group {
				c.group++
			}
			t.classes = append(t.classes, c)
		}
		if b == step*2*stepsPerOctave {
			step *= 2
		}
	}
	return t
}

// byBlocks finds the class whose slots have exactly this length.
func (t *table) byBlocks(blocks uint32) (uint8, bool) {
	if blocks == 0 || blocks > t.slab/2 {
		return 0, false
	}
	c := t.fit[blocks]
	return c, t.classes[c].blocks == blocks
}

// SlabBlocksFor gives the slab size of a new pool, in blocks: the largest power
// of two that is at most 1/1,024 of poolBytes, but not below 1 MiB nor above
// 64 MiB. A positive forced is a size in bytes that wins over the rule; it is
// rounded down to a power of two and kept within 64 KiB and 64 MiB.
func SlabBlocksFor(poolBytes int64, forced int64) uint32 {
	want, least := poolBytes/slabShare, int64(base.MiB)
	if forced > 0 {
		want, least = forced, MinSlabBlocks*base.StoreBlock
	}
	size := least
	for size*2 <= want && size < MaxSlabBlocks*base.StoreBlock {
		size *= 2
	}
	return uint32(size / base.StoreBlock)
}
