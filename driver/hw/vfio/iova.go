package vfio

import (
	"slices"
	"sort"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/internal/base"
)

const (
	// lowest is where bus addresses begin, in bytes: what is below looks like an
	// offset, and 0 like nothing.
	lowest = 1 << 20
	// large is the size of the IOMMU's large pages, in bytes: memory of at least
	// one keeps its place within a large page, so that they can be used.
	large = 2 * base.MiB
)

// span is a run of bus addresses, [first, end).
type span struct{ first, end uint64 }

// space hands out bus addresses. One page is left free between two spans, so that
// what runs over the end of one faults; and addresses that were given back come last
// to be taken again, so that what is late faults too. It is not safe for concurrent
// use.
type space struct {
	usable []span
	used   []span // sorted
	next   uint64 // where the search begins
}

// newSpace takes the ranges that the IOMMU can map, first and last address each.
func newSpace(ranges [][2]uint64) *space {
	s := &space{}
	for _, r := range ranges {
		first := max(r[0], lowest)
		end := r[1] &^ (hw.PageSize - 1) // leaves the last page out: end does not overflow
		if first < end {
			s.usable = append(s.usable, span{first, end})
		}
	}
	return s
}

// take gives n free bytes whose address has the given remainder modulo align, a
// power of two; n is a multiple of a page. ok is false when there are none.
func (s *space) take(n, align, remainder uint64) (addr uint64, ok bool) {
	for _, from := range []uint64{s.next, 0} {
		if addr, ok = s.takeFrom(from, n, align, remainder); ok {
			s.next = addr + n + hw.PageSize
			return addr, true
		}
	}
	return 0, false
}

// takeFrom takes the first free bytes that do not begin before from.
func (s *space) takeFrom(from, n, align, remainder uint64) (addr uint64, ok bool) {
	i := sort.Search(len(s.used), func(i int) bool { return s.used[i].end > from })
	for _, u := range s.usable {
		for at := max(u.first, from); at < u.end; i++ {
			if i > 0 {
				at = max(at, s.used[i-1].end+hw.PageSize)
			}
			free := u.end
			if i < len(s.used) {
				free = min(free, s.used[i].first)
			}
			addr = (at-remainder+align-1)&^(align-1) + remainder
			if addr >= at && addr < free && free-addr >= n && free-addr-n >= hw.PageSize {
				s.used = slices.Insert(s.used, i, span{addr, addr + n})
				return addr, true
			}
			if free == u.end {
				break
			}
			at = s.used[i].end
		}
	}
	return 0, false
}

// give takes back what begins at addr.
func (s *space) give(addr uint64) {
	i, ok := slices.BinarySearchFunc(s.used, addr, func(u span, a uint64) int {
		switch {
		case u.first < a:
			return -1
		case u.first > a:
			return 1
		}
		return 0
	})
	if !ok {
		panic("vfio: bus address given back that was not taken")
	}
	s.used = slices.Delete(s.used, i, i+1)
}
