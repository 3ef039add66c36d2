// Package bitset holds sets of small numbers that find their smallest member at once.
package bitset

import "math/bits"

// Set finds its smallest member by walking summaries: level 0 has a bit for each
// number, each level above a bit for each word below. Four levels cover 16 million
// numbers. It is not safe for concurrent use, and its copies share members.
type Set struct {
	level [][]uint64
	n     uint64 // members
}

// New gives an empty set of numbers below size.
func New(size uint32) Set {
	var b Set
	for n := uint64(size); ; n = (n + 63) / 64 {
		b.level = append(b.level, make([]uint64, (n+63)/64))
		if n <= 64 {
			return b
		}
	}
}

// Fill makes every number below size, that of New, a member of an empty set.
func (b *Set) Fill(size uint32) {
	b.n = uint64(size)
	n := b.n
	for _, words := range b.level {
		for i := range words {
			words[i] = Ones(min(64, n-uint64(i)*64))
		}
		n = (n + 63) / 64
	}
}

// Len is the number of members.
func (b *Set) Len() uint64 { return b.n }

// Has tells whether i is a member.
func (b *Set) Has(i uint32) bool { return b.level[0][i/64]>>(i%64)&1 != 0 }

// Add makes i a member; it must not be one.
func (b *Set) Add(i uint32) {
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

// Remove takes the member i out.
func (b *Set) Remove(i uint32) {
	b.n--
	for _, words := range b.level {
		words[i/64] &^= 1 << (i % 64)
		if words[i/64] != 0 {
			return
		}
		i /= 64
	}
}

// First gives the smallest member of a set that is not empty.
func (b *Set) First() uint32 {
	i := uint32(0)
	for l := len(b.level) - 1; l >= 0; l-- {
		i = i*64 + uint32(bits.TrailingZeros64(b.level[l][i]))
	}
	return i
}

// Ones has the lowest n bits set; n is at most 64.
func Ones(n uint64) uint64 { return 1<<n - 1 }
