package ctrl

import (
	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/mmio"
)

// Most entries are a read or a write of one segment that a single command moves.
// For those the general way, which asks at every step what may be different, is
// several times as long as the work. quick does the same work without the
// questions. Whatever is not simple, or wrong, it leaves to the general way, which
// finds out what it is.

// quick sends the simple entries from a given one on, as far as they are of one
// region and the turn goes. It tells how many. To the next it has done nothing.
func (u *burst) quick(from int) (sent int) {
	entries := u.b.Reqs[from:]
	few := u.prepare(entries)
	if few == 0 {
		return 0
	}
	few, bytes := u.simple(entries[:few])
	d, q, table, run := u.d, u.q, u.at.table, u.run
	free := q.free[len(q.free)-few:]
	entries = entries[:len(free)]
	shift := d.geo.BlockShift & 63
	for i := range free {
		e, s, c := &entries[i], &q.slots[free[i]], &q.sqe[q.tail]
		op := nvme.OpRead
		if e.Op == driver.OpWrite {
			op = nvme.OpWrite
		}
		n, off := e.Len, uint64(e.Segs[0].Off)
		c.SetIO(op, d.nsid, uint64(e.Off)>>shift, uint32(n>>shift), 0)
		first, room := table.First(off)
		c.PRP1.Set(first)
		if room < uint64(n) { // lists are made for the largest command, so that it fits
			table.Rest(c, off, uint64(n), &s.list)
		}
		q.renew(s)
		c.CID.Set(s.cid)
		s.live, s.kind, s.parked, s.aborted, s.tries, s.opc = true, simple, false, false, 1, op
		s.run, s.i, s.off, s.n, s.load, s.bulk, s.due = run, from+i, 0, n, n, 0, u.due
		q.tail = q.next(q.tail)
	}
	q.free = q.free[:len(q.free)-few]
	q.load += bytes
	u.spare -= bytes
	u.n += few
	u.holds -= uint32(few)
	return few
}

// simple counts the entries at the beginning that are simple, of the region that is
// held, and in the part of the window that is taken; bytes is what they move. It is
// CheckRequest for those.
func (u *burst) simple(entries []driver.Request) (few int, bytes int64) {
	d, boundary := u.d, uint64(u.d.geo.Boundary)
	size, spare := u.region.Size(), u.spare
	most := uint64(min(u.most, size, d.info.Capacity)) // so that no difference below is negative
	for i := range entries {
		e := &entries[i]
		if len(e.Segs) != 1 || e.Op > driver.OpWrite || e.FUA {
			return i, bytes
		}
		g, n := &e.Segs[0], e.Len
		if g.Region != u.region || g.Gen != u.gen || g.Len != n || uint64(n-1) >= most || bytes+n > spare ||
			!base.IsAligned(e.Off|n, d.info.BlockSize) || !base.IsAligned(g.Off, dword) ||
			uint64(e.Off) > uint64(d.info.Capacity-n) || uint64(g.Off) > uint64(size-n) {
			return i, bytes
		}
		if boundary != 0 {
			shift := d.geo.BlockShift & 63
			if uint64(e.Off)>>shift%boundary+uint64(n)>>shift > boundary {
				return i, bytes
			}
		}
		bytes += n
	}
	return len(entries), bytes
}

// prepare makes it so that simple entries can be sent: the turn, the holds of the
// region of the first, and its part of the window. It tells how many there may be.
func (u *burst) prepare(entries []driver.Request) (few int) {
	e := &entries[0]
	if len(e.Segs) != 1 || e.Op > driver.OpWrite || e.FUA || u.place != nil || u.g.line.n.Load() != 0 || u.b.Canceled() {
		return 0
	}
	g := &e.Segs[0]
	if g.Region == nil || u.enter(e.Op) != nil {
		return 0
	}
	if u.holds == 0 || g.Region != u.region || g.Gen != u.gen {
		if u.holdMore(e, 0, len(entries)) != nil {
			return 0
		}
	}
	if u.at.table == nil || u.at.long || u.at.revocable != nil || u.q == nil && u.enter(e.Op) != nil {
		return 0
	}
	q, d := u.q, u.d
	u.most = d.info.MaxTransfer
	if d.opts.Bulk > 0 && u.large() {
		u.most = min(u.most, bulkRequest)
	}
	if e.Len <= 0 || e.Len > u.most || !u.afford(e.Len, 0, len(entries)) {
		return 0
	}
	return min(len(entries), int(u.holds), inRow-u.n, len(q.free), int(q.dist(q.next(q.tail), q.head)))
}

// quickReap takes completions as long as they are of simple commands that have
// succeeded, and tells how many: first it checks them as accept does, and frees
// their slots, then it answers their entries. The caller holds mu.
func (q *queue) quickReap() int {
	cqe, slots, free, at := q.cqe, q.slots, q.free, q.cqHead
	before := len(free)
	head, told := q.head, q.dist(q.head, q.rung) // what the controller may tell of
	for {
		c := &cqe[at]
		dw3 := nvme.CompletionDW3(mmio.LoadEntry32(c.Last[:]))
		if dw3.Phase() != q.phase || dw3.Status() != 0 {
			break
		}
		i := dw3.CID() & q.mask
		if c.SQID.Get() != q.id || int(i) >= len(slots) {
			break
		}
		s, to := &slots[i], uint32(c.SQHD.Get())
		step := q.dist(head, to)
		if s.cid != dw3.CID() || s.kind != simple || to >= q.size || step > told {
			break
		}
		s.live, s.kind = false, part
		k := len(free)
		free = free[:k+1]
		free[k] = i
		head, told = to, told-step
		if at++; at == q.size {
			at, q.phase = 0, !q.phase
		}
	}
	q.free, q.head, q.cqHead = free, head, at
	for done := free[before:]; len(done) > 0; {
		done = done[q.answer(done):]
	}
	return len(free) - before
}

// answer answers the entries of simple commands, whose slots are given, as far as
// they are of one submission and one region. It tells how many.
func (q *queue) answer(done []uint16) (n int) {
	t, slots := &q.tally, q.slots
	first := &slots[done[0]]
	run := first.run
	entries := run.b.Reqs
	region := entries[first.i].Segs[0].Region
	t.switchTo(run, region)
	var load, written int64
	writes := 0
	for ; n < len(done); n++ {
		s := &slots[done[n]]
		if s.run != run {
			break
		}
		e := &entries[s.i]
		if e.Segs[0].Region != region {
			break
		}
		load += s.n
		if e.Op == driver.OpWrite {
			written += s.n
			writes++
		}
		e.Done = s.n // Err is nil since Start
	}
	q.load -= load
	t.load += load
	t.count(driver.OpWrite, writes, written)
	t.count(driver.OpRead, n-writes, load-written)
	t.holds += uint32(n)
	t.ended += n
	return n
}
