package nvme

import "errors"

// Seg is a piece of memory as the controller sees it: a bus address and a length
// in bytes. It is never a virtual address.
type Seg struct {
	Addr uint64
	Len  uint64
}

// Errors of the builders of data pointers. They are made once, because they may
// come up on the data path; the caller wraps them with what it was doing.
var (
	// ErrPRPAlign means that a piece begins or ends where PRP entries cannot: the
	// first may begin at any doubleword, later ones only at a page boundary, and
	// all but the last end at one (Base 4.3.1).
	ErrPRPAlign = errors.New("memory pieces do not fit PRP entries")
	// ErrListSpace means that the list pages given are too few or too small.
	ErrListSpace = errors.New("not enough list pages for the data pointer")
	// ErrNoData means that no byte was to be transferred.
	ErrNoData = errors.New("a data pointer for no data")
	// ErrSGLAlign means that a piece is not aligned as the controller demands.
	ErrSGLAlign = errors.New("memory pieces do not fit SGL data blocks")
	// ErrSGLLength means that a piece is longer than a descriptor can say.
	ErrSGLLength = errors.New("a memory piece is longer than 4 GiB less one byte")
)

// Sizes of data pointers.
const (
	prpSize = 8 // bytes of one PRP entry
	// dwordAlign is the alignment of the offset in PRP entry 1 (Base 4.3.1).
	dwordAlign = 4
)

// ListPage is memory for a PRP list or an SGL segment that belongs to one command:
// as the processor and as the controller see it. A page of a chained PRP list
// must end at a memory page boundary; the last one, or a lone one, must only not
// cross one. So a short list can share its page with those of other commands.
type ListPage struct {
	Addr    uint64 // bus address, a multiple of 8, for SGLs of 16
	Entries []Le64
}

// PRPEntries is how many PRP entries a transfer of length bytes needs, of which
// the first has the given offset in its memory page of 1<<pageShift bytes.
func PRPEntries(offset, length uint64, pageShift uint) uint64 {
	page := uint64(1) << pageShift
	return (offset&(page-1) + length + page - 1) >> pageShift
}

// PRPListPages is the smallest number of whole list pages for a transfer that
// needs n PRP entries. The first entry stands in the command, and so does the
// second when there are just two. A list page whose last slot links to the next
// page holds one entry less; the last page links nowhere (C-06).
func PRPListPages(n uint64, pageShift uint) uint64 {
	if n <= 2 {
		return 0
	}
	slots := uint64(1) << pageShift / prpSize
	if n--; n <= slots {
		return 1
	}
	return (n - 1 + slots - 2) / (slots - 1) // ceil((n-1)/(slots-1))
}

// PRPSpan is how many of the first limit bytes of segs one command's PRP entries
// can name: a multiple of block (a power of two), 0 when not even one block fits.
// The caller sends the rest in further commands (C-09), or copies.
func PRPSpan(segs []Seg, limit, block uint64, pageShift uint) uint64 {
	mask := uint64(1)<<pageShift - 1
	var n uint64
	end := uint64(0) // bus address after the pieces so far
	for _, s := range segs {
		switch {
		case s.Len == 0:
			continue
		case s.Addr+s.Len < s.Addr:
			return n &^ (block - 1)
		case n == 0:
			if s.Addr%dwordAlign != 0 {
				return 0
			}
		case s.Addr != end && (s.Addr&mask != 0 || end&mask != 0):
			return n &^ (block - 1)
		}
		end = s.Addr + s.Len
		if n += s.Len; n >= limit {
			n = limit
			break
		}
	}
	return n &^ (block - 1)
}

// prpWriter puts entries into list pages, linking each full page to the next.
type prpWriter struct {
	list []ListPage
	page int    // the page being filled
	slot int    // its next free slot
	left int    // entries still to come
	size uint64 // of a memory page
}

// run stores n entries for n memory pages in a row, the first at addr.
func (w *prpWriter) run(addr uint64, n int) error {
	for n > 0 {
		if w.page >= len(w.list) {
			return ErrListSpace
		}
		e := w.list[w.page].Entries[w.slot:]
		// The last slot before the page boundary holds the link, but only if
		// more entries follow than fit without it.
		link := w.left > len(e)
		if link {
			if !w.chains() {
				return ErrListSpace
			}
			e[len(e)-1].Set(w.list[w.page+1].Addr)
			e = e[:len(e)-1]
		}
		e = e[:min(n, len(e))]
		for i := range e {
			e[i].Set(addr)
			addr += w.size
		}
		n, w.left, w.slot = n-len(e), w.left-len(e), w.slot+len(e)
		if link && w.slot == len(w.list[w.page].Entries)-1 {
			w.page, w.slot = w.page+1, 0
		}
	}
	return nil
}

// chains tells whether the last slot of the page being filled can link to the
// next page: it must be the last of its memory page, and the next must begin one.
func (w *prpWriter) chains() bool {
	p := &w.list[w.page]
	if len(p.Entries) == 0 || (p.Addr+uint64(len(p.Entries))*prpSize)&(w.size-1) != 0 || w.page+1 >= len(w.list) {
		return false
	}
	next := &w.list[w.page+1]
	return next.Addr&(w.size-1) == 0 && len(next.Entries) != 0
}

// BuildPRP makes the data pointer of c name exactly the bytes of segs, in order,
// as PRP entries for memory pages of 1<<pageShift bytes (Base 4.3.1). list is
// memory of the command for PRP lists; the pages that it uses, from the first, are
// returned as a count. Nothing outside their entries is written (C-05).
//
// Adjacent pieces may meet anywhere; others as PRPSpan says. ErrPRPAlign,
// ErrListSpace or ErrNoData; then c and list are undefined. It allocates nothing.
func BuildPRP(c *Command, segs []Seg, pageShift uint, list []ListPage) (pages int, err error) {
	page := uint64(1) << pageShift
	mask := page - 1
	entries, err := countPRP(segs, mask)
	if err != nil {
		return 0, err
	}
	c.Flags &= 0x3f // PSDT: PRP
	c.PRP2.Set(0)
	w := prpWriter{list: list, left: entries - 1, size: page}
	if entries > 2 {
		if len(list) == 0 || list[0].Addr%prpSize != 0 {
			return 0, ErrListSpace
		}
		c.PRP2.Set(list[0].Addr)
	}
	first := true
	var end uint64
	for _, s := range segs {
		if s.Len == 0 {
			continue
		}
		at, stop := s.Addr, s.Addr+s.Len
		switch {
		case first:
			c.PRP1.Set(at)
			first = false
			at = (at + page) &^ mask
		case at == end: // continues in the page of the entry before, if not at its end
			at = (at + mask) &^ mask
		}
		end = stop
		if at >= stop {
			continue
		}
		if entries == 2 {
			c.PRP2.Set(at)
			continue
		}
		if err := w.run(at, int((stop-at+mask)>>pageShift)); err != nil {
			return 0, err
		}
	}
	if entries > 2 {
		pages = w.page + 1
	}
	return pages, nil
}

// countPRP checks that segs fit PRP entries and counts the entries.
func countPRP(segs []Seg, mask uint64) (n int, err error) {
	var end uint64
	for _, s := range segs {
		if s.Len == 0 {
			continue
		}
		at, stop := s.Addr, s.Addr+s.Len
		switch {
		case stop < at:
			return 0, ErrPRPAlign
		case n == 0:
			if at%dwordAlign != 0 {
				return 0, ErrPRPAlign
			}
		case at == end:
			at = (at + mask) &^ mask
		case at&mask != 0 || end&mask != 0:
			return 0, ErrPRPAlign
		}
		if at < stop {
			n += int((stop - at&^mask + mask) / (mask + 1))
		}
		end = stop
	}
	if n == 0 {
		return 0, ErrNoData
	}
	return n, nil
}

// NextCut is how many blocks the next command of a request takes: at most limit
// (what MDTS, MaxBlocks and the lists allow), and not across a multiple of
// boundary (NOIOB; 0 for none) of the namespace, unless the command would begin
// at one. blocks and limit are not 0.
func NextCut(slba, blocks uint64, limit, boundary uint32) uint32 {
	n := min(blocks, uint64(limit))
	if boundary != 0 {
		n = min(n, uint64(boundary)-slba%uint64(boundary))
	}
	return uint32(n)
}
