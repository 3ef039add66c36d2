package ctrl

import (
	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// memory is where the bytes of a command are: in a table, from byte off on, or
// else in pieces on the bus. The zero value is no memory.
type memory struct {
	table *nvme.PRPTable
	off   uint64
	segs  []nvme.Seg
}

// locate finds the memory of the next n bytes of a request, and how many of them
// one command can name, which is 0 for none. The caller holds q.mu.
func (d *Device) locate(q *queue, c *cursor, n int64) (m memory, fits int64) {
	if len(c.segs) == 0 {
		return m, n
	}
	if a, off := c.single(d, n); a != nil && a.table != nil && off%dword == 0 && (!a.long || n <= 1<<d.cc.PageShift()) {
		return memory{table: a.table, off: off}, n
	}
	q.segs = c.gather(d, n, q.segs[:0])
	if n = d.span(q, n); n > 0 {
		q.segs = trim(q.segs, uint64(n))
	}
	return memory{segs: q.segs}, n
}

// trim cuts segs after n bytes.
func trim(segs []nvme.Seg, n uint64) []nvme.Seg {
	for i := range segs {
		if segs[i].Len >= n {
			segs[i].Len = n
			return segs[:i+1]
		}
		n -= segs[i].Len
	}
	return segs
}

// fill makes the command of a slot in the entry at the tail, for its n bytes at off
// of a request. The caller holds q.mu.
func (d *Device) fill(q *queue, s *slot, e *driver.Request, m *memory) error {
	c := &q.sqe[q.tail]
	slba := uint64(e.Off+s.off) >> d.geo.BlockShift
	blocks := uint32(s.n >> d.geo.BlockShift)
	switch e.Op {
	case driver.OpRead:
		c.SetRead(d.nsid, slba, blocks)
	case driver.OpWrite:
		c.SetWrite(d.nsid, slba, blocks, e.FUA)
	case driver.OpFlush:
		c.SetFlush(d.nsid)
		return nil
	case driver.OpDiscard:
		c.SetDSM(d.nsid, 1)
		// The range stands in the slot's list, which such a command does not need,
		// and which has room for it even where MDTS is small. MDTS bounds this data
		// too, but is two pages at least, more than all the ranges of a command take.
		s.list.Entries[0].Set(uint64(blocks) << 32)
		s.list.Entries[1].Set(slba)
		c.PRP1.Set(s.list.Addr)
		return nil
	case driver.OpWriteZeroes:
		if d.info.WriteZeroes {
			c.SetWriteZeroes(d.nsid, slba, blocks, false, e.FUA)
			return nil
		}
		q.segs = d.zeroes(s.n, q.segs[:0])
		c.SetWrite(d.nsid, slba, blocks, e.FUA)
		*m = memory{segs: q.segs}
	}
	if m.table != nil {
		if m.table.Point(c, m.off, uint64(s.n), &s.list) {
			return nil
		}
		return base.Wrap(e.Op.String(), d.info.Target, nvme.ErrListSpace) // lists are made for the largest command
	}
	return base.Wrap(e.Op.String(), d.info.Target, d.point(c, s, m.segs))
}

// refill makes the command of a slot once more, in the entry at the tail.
func (d *Device) refill(q *queue, s *slot) error {
	e := &s.run.b.Reqs[s.i]
	c := cursor{segs: e.Segs}
	if len(c.segs) > 0 {
		c.advance(s.off)
	}
	m, _ := d.locate(q, &c, s.n)
	return d.fill(q, s, e, &m)
}

// point makes the data pointer of a slot's command: an SGL where that is the
// shorter list or the only one, PRP entries elsewhere. One contiguous piece, as of
// huge pages or GPU memory, needs no list at all.
func (d *Device) point(c *nvme.Command, s *slot, segs []nvme.Seg) (err error) {
	list := [1]nvme.ListPage{s.list}
	if d.sgl.Supported {
		descriptors := 0
		if len(segs) > 1 {
			descriptors = len(segs) * nvme.SGLDescriptorSize
		}
		entries := 8 * int(nvme.PRPEntries(segs[0].Addr, uint64(s.n), d.cc.PageShift()))
		if descriptors < entries-16 && descriptors <= len(s.list.Entries)*8 { // two entries need no list
			_, err = nvme.BuildSGL(c, segs, uint64(d.sgl.Align), list[:])
			return err
		}
	}
	if _, err = nvme.BuildPRP(c, segs, d.cc.PageShift(), list[:]); err == nvme.ErrPRPAlign && d.sgl.Supported {
		_, err = nvme.BuildSGL(c, segs, uint64(d.sgl.Align), list[:])
	}
	return err
}

// span is how many of n bytes of memory one command of a queue can name: whole
// blocks, 0 for none.
func (d *Device) span(q *queue, n int64) int64 {
	block := uint64(1) << d.geo.BlockShift
	most := nvme.PRPSpan(q.segs, uint64(n), block, d.cc.PageShift())
	if most < uint64(n) && d.sgl.Supported {
		room := len(q.slots[0].list.Entries) * 8 / nvme.SGLDescriptorSize
		most = max(most, nvme.SGLSpan(q.segs, uint64(n), block, uint64(d.sgl.Align), room))
	}
	return int64(most)
}

// zeroes names the one page of zeros as often as n bytes need.
func (d *Device) zeroes(n int64, out []nvme.Seg) []nvme.Seg {
	page := int64(1) << d.cc.PageShift()
	for ; n > 0; n -= page {
		out = append(out, nvme.Seg{Addr: d.zero.Addr, Len: uint64(min(n, page))})
	}
	return out
}
