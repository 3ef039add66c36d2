package alloc

import "math/bits"

// bitset is a set of small numbers that finds its smallest member by walking
// summaries: level 0 has a bit for each number, each level above a bit for each
// word below. Four levels cover 16 million members.
type bitset struct {
	level [][]uint64
	n     uint64 // members
}

func newBitset(size uint32) bitset {
	var b bitset
	for n := uint64(size); ; n = (n + 63) / 64 {
		b.level = append(b.level, make([]uint64, (n+63)/64))
		if n <= 64 {
			return b
		}
	}
}

// fill makes every number below size a member of an empty set.
func (b *bitset) fill(size uint32) {
	b.n = uint64(size)
	n := b.n
	for _, words := range b.level {
		for i := range words {
			words[i] = ones(min(64, n-uint64(i)*64))
		}
		n = (n + 63) / 64
	}
}

func (b *bitset) has(i uint32) bool { return b.level[0][i/64]>>(i%64)&1 != 0 }

// add makes i a member; it must not be one.
func (b *bitset) add(i uint32) {
	b.n++
	for _, words := range b.level {
		old := words[i/64]
		words[i/64] = old | 1<<(i%64)
		if old != 0 {
			return
		}
		i /= 64
	}
}

// remove takes the member i out.
func (b *bitset) remove(i uint32) {
	b.n--
	for _, words := range b.level {
		words[i/64] &^= 1 << (i % 64)
		if words[i/64] != 0 {
			return
		}
		i /= 64
	}
}

// first gives the smallest member of a set that is not empty.
func (b *bitset) first() uint32 {
	i := uint32(0)
	for l := len(b.level) - 1; l >= 0; l-- {
		i = i*64 + uint32(bits.TrailingZeros64(b.level[l][i]))
	}
	return i
}

// ones has the lowest n bits set; n is at most 64.
func ones(n uint64) uint64 { return 1<<n - 1 }
