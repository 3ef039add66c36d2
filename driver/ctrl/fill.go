package ctrl

import (
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// fill makes the command of a slot, for n bytes at offset at of an entry; q.segs
// is the memory. s.load is what it counts as payload in flight. The caller holds
// q.mu.
func (d *Device) fill(s *slot, q *queue, e *driver.Request, at, n int64) (deadline time.Duration, err error) {
	slba := uint64(e.Off+at) >> d.geo.BlockShift
	blocks := uint32(n >> d.geo.BlockShift)
	s.off, s.n, s.load = at, n, 0
	deadline = d.opts.Deadline.ReadWrite
	switch e.Op {
	case driver.OpFlush:
		s.cmd.SetFlush(d.nsid)
		return d.opts.Deadline.Flush, nil
	case driver.OpDiscard:
		s.cmd.SetDSM(d.nsid, 1)
		// The range stands in the slot's list page, which such a command does
		// not need.
		s.list.Entries[0].Set(uint64(blocks) << 32)
		s.list.Entries[1].Set(slba)
		s.cmd.PRP1.Set(s.list.Addr)
		return d.opts.Deadline.Discard, nil
	case driver.OpWriteZeroes:
		if d.info.WriteZeroes {
			s.cmd.SetWriteZeroes(d.nsid, slba, blocks, false, e.FUA)
			return deadline, nil
		}
		q.segs = d.zeroes(n, q.segs[:0])
		s.cmd.SetWrite(d.nsid, slba, blocks, e.FUA)
	case driver.OpRead:
		s.cmd.SetRead(d.nsid, slba, blocks)
		s.load = n
	case driver.OpWrite:
		s.cmd.SetWrite(d.nsid, slba, blocks, e.FUA)
		s.load = n
	}
	return deadline, base.Wrap(e.Op.String(), d.info.Target, d.point(s, q.segs, n))
}

// point makes the data pointer of a command for n bytes: an SGL where that is the
// shorter list or the only one, PRP entries elsewhere. One contiguous piece, as of
// huge pages or GPU memory, needs no list at all.
func (d *Device) point(s *slot, segs []nvme.Seg, n int64) (err error) {
	list := [1]nvme.ListPage{s.list}
	sgl := d.id.SGL()
	if sgl.Supported {
		descriptors := 0
		if len(segs) > 1 {
			descriptors = len(segs) * nvme.SGLDescriptorSize
		}
		entries := 8 * int(nvme.PRPEntries(segs[0].Addr, uint64(n), d.cc.PageShift()))
		if descriptors < entries-16 && descriptors <= len(s.list.Entries)*8 { // two entries need no list
			_, err = nvme.BuildSGL(&s.cmd, segs, uint64(sgl.Align), list[:])
			return err
		}
	}
	if _, err = nvme.BuildPRP(&s.cmd, segs, d.cc.PageShift(), list[:]); err == nvme.ErrPRPAlign && sgl.Supported {
		_, err = nvme.BuildSGL(&s.cmd, segs, uint64(sgl.Align), list[:])
	}
	return err
}

// span is how many of n bytes of memory one command of a queue can name: whole
// blocks, 0 for none.
func (d *Device) span(q *queue, n int64) int64 {
	block := uint64(1) << d.geo.BlockShift
	most := nvme.PRPSpan(q.segs, uint64(n), block, d.cc.PageShift())
	if sgl := d.id.SGL(); most < uint64(n) && sgl.Supported {
		room := len(q.slots[0].list.Entries) * 8 / nvme.SGLDescriptorSize
		most = max(most, nvme.SGLSpan(q.segs, uint64(n), block, uint64(sgl.Align), room))
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
