package sim

import (
	"math/rand/v2"
	"reflect"

	"github.com/ugds-store/ugds/driver/hw"
)

// bus is the memory that the controller can reach: bus pages that stand for pages
// of the process, in no order. It belongs to the lock of the Sim.
type bus struct {
	pages  map[uint64]busPage // by bus page number
	rnd    *rand.Rand
	master bool // the controller may reach memory
}

// busPage is the part of one bus page that is mapped: mem are the bytes from
// offset lo.
type busPage struct {
	mem  []byte
	lo   uint64
	peer bool // memory of another device; without mem if that has taken it back
}

// Bus page numbers are drawn from a range in which an address is never also an
// address of this process, and never small enough to pass for an offset.
const (
	busFirst = 1 << 36 // pages: the addresses begin at 2^48
	busSpan  = 1 << 38 // pages
)

// reserve finds n free bus pages in a row whose number has the given remainder
// modulo align, a power of two. It does not take them.
func (b *bus) reserve(n, align, remainder uint64) uint64 {
	for {
		first := (busFirst+b.rnd.Uint64N(busSpan))&^(align-1) + remainder
		free := true
		for i := range n + 1 { // and one behind, so that two runs never touch
			if _, used := b.pages[first+i]; used {
				free = false
				break
			}
		}
		if _, used := b.pages[first-1]; free && !used {
			return first
		}
	}
}

// add maps mem at runs of up to run pages each, and lists the segments. offset is
// where mem begins in its page; peer tells that it is memory of another device.
func (b *bus) add(mem []byte, run uint64, peer bool) []hw.Seg {
	addr := uint64(reflect.ValueOf(mem).Pointer())
	page, offset := addr/hw.PageSize, addr%hw.PageSize
	var segs []hw.Seg
	for len(mem) > 0 {
		in := page % run // the run keeps the place of the page within it
		n := min(run-in, (offset+uint64(len(mem))+hw.PageSize-1)/hw.PageSize)
		first := b.reserve(n, run, in)
		seg := hw.Seg{Addr: first*hw.PageSize + offset}
		for i := range n {
			k := min(hw.PageSize-offset, uint64(len(mem)))
			b.pages[first+i] = busPage{mem[:k:k], offset, peer}
			mem, offset, seg.Len = mem[k:], 0, seg.Len+k
		}
		page += n
		segs = append(segs, seg)
	}
	return segs
}

// remove unmaps segments.
func (b *bus) remove(segs []hw.Seg) {
	for _, s := range segs {
		for p := s.Addr / hw.PageSize; p <= (s.Addr+s.Len-1)/hw.PageSize; p++ {
			delete(b.pages, p)
		}
	}
}

// view is the memory from addr to the end of its bus page, at most n bytes; nil
// when the controller cannot reach it.
func (b *bus) view(addr, n uint64) []byte {
	p, ok := b.pages[addr/hw.PageSize]
	off := addr % hw.PageSize
	if !ok || !b.master || off < p.lo || off-p.lo >= uint64(len(p.mem)) {
		return nil
	}
	m := p.mem[off-p.lo:]
	return m[:min(uint64(len(m)), n)]
}

// copy moves bytes between p and bus memory; false when part of it cannot be
// reached. What could be reached before was moved.
func (b *bus) copy(addr uint64, p []byte, write bool) bool {
	for len(p) > 0 {
		m := b.view(addr, uint64(len(p)))
		if m == nil {
			return false
		}
		if write {
			copy(m, p)
		} else {
			copy(p, m)
		}
		p, addr = p[len(m):], addr+uint64(len(m))
	}
	return true
}
