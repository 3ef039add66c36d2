package ctrl

import (
	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
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
	d, q, table, reqs := u.d, u.q, u.at.table, u.run.reqs[from:]
	size, spare, tail, free := u.region.Size(), u.spare, q.tail, q.free
	shift, boundary := d.geo.BlockShift&63, uint64(d.geo.Boundary)
	most := min(u.most, size, d.info.Capacity) // so that no difference below is negative
	for ; sent < few; sent++ {
		e := &entries[sent]
		if len(e.Segs) != 1 || e.Op > driver.OpWrite {
			break
		}
		g, n := &e.Segs[0], e.Len
		if g.Region != u.region || g.Gen != u.gen || g.Len != n || n <= 0 || n > most || n > spare ||
			!base.IsAligned(e.Off|n, d.info.BlockSize) || !base.IsAligned(g.Off, dword) ||
			uint64(e.Off) > uint64(d.info.Capacity-n) || uint64(g.Off) > uint64(size-n) {
			break
		}
		slba, blocks := uint64(e.Off)>>shift, uint32(n>>shift)
		if boundary != 0 && slba%boundary+uint64(blocks) > boundary {
			break
		}
		op, bits := nvme.OpRead, uint32(0)
		if e.Op == driver.OpWrite {
			if op = nvme.OpWrite; e.FUA {
				bits = nvme.RWFUA
			}
		}
		s, c := &q.slots[free[len(free)-1]], &q.sqe[tail]
		c.SetIO(op, d.nsid, slba, blocks, bits)
		first, room := table.First(uint64(g.Off))
		c.PRP1.Set(first)
		if uint64(n) > room && !table.Rest(c, uint64(g.Off), uint64(n), &s.list) {
			break
		}
		free = free[:len(free)-1]
		q.renew(s)
		c.CID.Set(s.cid)
		s.live, s.parked, s.aborted, s.kind, s.tries, s.opc = true, false, false, simple, 1, op
		r := &reqs[sent]
		s.req, s.off, s.n, s.load, s.bulk, s.due = r, 0, n, n, 0, u.due
		r.holds = 1
		if tail++; tail == q.size {
			tail = 0
		}
		spare -= n
	}
	q.load += u.spare - spare
	q.tail, q.free, u.spare = tail, free, spare
	u.n += sent
	u.holds -= uint32(sent)
	return sent
}

// prepare makes it so that simple entries can be sent: the turn, the holds of the
// region of the first, and its part of the window. It tells how many there may be.
func (u *burst) prepare(entries []driver.Request) (few int) {
	e := &entries[0]
	if len(e.Segs) != 1 || e.Op > driver.OpWrite || u.place != nil || u.g.line.n.Load() != 0 || u.b.Canceled() {
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

// quickEnd ends a command of quick that has succeeded. The caller holds mu.
func (q *queue) quickEnd(s *slot) {
	q.drop(s)
	q.load -= s.n
	t, r := &q.tally, s.req
	t.load += s.n
	if r.run != t.run {
		t.publish()
		t.run = r.run
	}
	e := &t.run.b.Reqs[r.i]
	if g := e.Segs[0].Region; g != t.region {
		t.release()
		t.region = g
	}
	t.holds++
	t.bytes[e.Op] += s.n
	t.ops[e.Op]++
	e.Done = s.n // Err is nil since Start
	t.ended++
}
