package nvme

// PRPTable is the PRP entries of a stretch of memory, one for each memory page that
// it touches. It is made once, where memory becomes reachable for a controller, so
// that a command copies its entries instead of computing them. It does not change;
// the zero value holds no memory.
type PRPTable struct {
	entries []Le64
	skip    uint64 // bytes of the first page before the stretch
	shift   uint   // of the size of a page
}

// MakePRPTable lists the pages of 1<<pageShift bytes of segs. ok is false when PRP
// entries cannot name all of it in one command, however large (PRPSpan), and when
// there are more than most pages.
func MakePRPTable(segs []Seg, pageShift uint, most uint64) (t PRPTable, ok bool) {
	page := uint64(1) << pageShift
	mask := page - 1
	var total uint64
	for _, s := range segs {
		total += s.Len
	}
	if total == 0 || PRPSpan(segs, total, 1, pageShift) != total {
		return t, false
	}
	for _, s := range segs {
		if s.Len == 0 {
			continue
		}
		at := s.Addr &^ mask
		switch {
		case t.entries == nil:
			t.skip, t.shift = s.Addr&mask, pageShift
			n := PRPEntries(t.skip, total, pageShift)
			if n > most {
				return PRPTable{}, false
			}
			t.entries = make([]Le64, 0, n)
		case s.Addr&mask != 0: // it goes on in the page of the one before
			at += page
		}
		for ; at < s.Addr+s.Len; at += page {
			var e Le64
			e.Set(at)
			t.entries = append(t.entries, e)
		}
	}
	return t, true
}

// Point makes the data pointer of c, which names no memory yet, name n bytes from
// off on. list is memory of the command for a list in one page. ok is false when
// the list is too small for the entries; then c is undefined. n is not 0, and the
// bytes are inside the stretch. It allocates nothing.
func (t *PRPTable) Point(c *Command, off, n uint64, list *ListPage) (ok bool) {
	first, room := t.First(off)
	c.PRP1.Set(first)
	return n <= room || t.Rest(c, off, n, list)
}

// First is PRP entry 1 for bytes from off on, and how many of them it names at most.
func (t *PRPTable) First(off uint64) (entry, room uint64) {
	off += t.skip
	page := uint64(1) << (t.shift & 63)
	in := off & (page - 1)
	return t.entries[off>>(t.shift&63)].Get() + in, page - in
}

// Rest is the part of Point for more than one page: it sets PRP entry 2.
//
//go:noinline
func (t *PRPTable) Rest(c *Command, off, n uint64, list *ListPage) (ok bool) {
	off += t.skip
	entries := t.entries[off>>t.shift+1 : (off+n-1)>>t.shift+1]
	if len(entries) == 1 {
		c.PRP2 = entries[0]
		return true
	}
	if len(entries) > len(list.Entries) {
		return false
	}
	copy(list.Entries, entries)
	c.PRP2.Set(list.Addr)
	return true
}

// Pages is how many pages there are.
func (t *PRPTable) Pages() int { return len(t.entries) }
