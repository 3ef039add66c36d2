package ctrl

import (
	"context"
	"errors"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// errNoRoom means that a queue or the window of bytes in flight is full. It never
// leaves the package, nor is it wrapped.
var errNoRoom = errors.New("no room")

// burst is one Submit. It sends commands in turns: in a turn it holds the lock of
// one queue, for up to inRow commands, and rings its doorbell once. What several
// commands share with other submitters is taken once for many of them.
type burst struct {
	d      *Device
	g      *group
	b      *driver.Batch
	run    *run
	ctx    context.Context
	place  *waiter // in the line for room, or nil
	queues []*queue
	now    time.Duration // when the burst began, or waited last: deadlines count from it
	due    time.Duration // the deadline of reads and writes
	bulk   bool          // the present request is large, and there are small ones
	late   error         // the context has ended
	tally  tally         // of entries that end without a command

	q     *queue // of the turn, locked; or nil
	n     int    // commands of the turn
	most  int64  // the size of simple ones, bytes
	spare int64  // bytes of the window that are taken and not used yet

	region *driver.Region // the last one that was held, while holds is not 0
	gen    uint32
	holds  uint32 // of it, that no request has taken yet
	at     *attached
}

// inRow is how many commands go to one queue before another may be chosen, and
// under one hold of its lock: a small batch costs one doorbell.
const inRow = 32

// Submit implements driver.Device.
func (d *Device) Submit(ctx context.Context, b *driver.Batch) error {
	if err := d.refusal("submit to"); err != nil {
		return err
	}
	g, small := d.groupOf(b)
	if err := b.Start(g); err != nil {
		return err
	}
	entries := len(b.Reqs)
	d.unended.Add(int64(entries))
	if d.closing.Load() { // Close looks at unended after it has set this
		d.unended.Add(-int64(entries))
		b.Abandon()
		return d.gone("submit to") // closed by its user, or asked back by the system
	}
	d.inFlight.Add(int64(entries))
	u := burst{d: d, g: g, b: b, run: d.newRun(b), ctx: ctx, queues: *g.queues.Load(), tally: tally{d: d}}
	u.look()
	if small {
		d.small.Store(int64(u.now))
	}
	for i := 0; i < entries; { // b may be reused as soon as its last entry is started
		n := u.quick(i)
		if n == 0 {
			u.start(&u.run.reqs[i], &b.Reqs[i], entries-i)
			n = 1
		}
		i += n
	}
	u.leave()
	if u.tally.run != nil {
		u.tally.publish()
	}
	if u.place != nil {
		g.line.leave(u.place)
	}
	return nil
}

// look reads the clock.
func (u *burst) look() {
	u.now = u.d.hw.Now()
	u.due = u.now + u.d.opts.Deadline.ReadWrite
}

// large tells whether large requests leave room for small ones.
func (u *burst) large() bool { return u.now-time.Duration(u.d.small.Load()) < SmallMemory }

// start checks one entry and issues its commands. left is how many entries there
// are from this one on.
func (u *burst) start(r *request, e *driver.Request, left int) {
	d := u.d
	r.holds = 0
	err := driver.CheckRequest(&d.info, e)
	switch {
	case err != nil:
	case e.Op == driver.OpFlush:
		if d.info.VolatileCache {
			if _, err = u.reserve(r, e, 0, 0, &cursor{}, 1); err == nil {
				return
			}
		}
	case e.Len == 0:
	case e.Op == driver.OpDiscard && !d.info.Discard:
		err = base.Errorf("discard", d.info.Target, base.ErrNotSupported, "the controller has no Dataset Management command")
	default:
		if err = u.hold(r, e, left); err == nil {
			u.issue(r, e, left)
			return
		}
	}
	if err != nil {
		u.tally.failed(r, 0, err)
	} else {
		u.tally.succeeded(r)
	}
}

// hold takes the segments of a request and makes sure that the device knows their
// regions.
func (u *burst) hold(r *request, e *driver.Request, left int) error {
	for i := range e.Segs {
		s := &e.Segs[i]
		if u.holds == 0 || s.Region != u.region || s.Gen != u.gen {
			if err := u.holdMore(e, i, left); err != nil {
				return err
			}
		}
		u.holds--
		r.holds = i + 1
	}
	return nil
}

// holdMore holds the region of segment i of an entry: once, or often enough for
// what seems to follow. What is left over is given back at the end of the turn.
func (u *burst) holdMore(e *driver.Request, i, left int) error {
	u.unhold()
	s := &e.Segs[i]
	n := 1
	if more := len(e.Segs) - i; more > 1 {
		if e.Segs[i+1].Region == s.Region {
			n = more
		}
	} else if left > 1 {
		next := &u.b.Reqs[len(u.b.Reqs)-left+1]
		if len(next.Segs) > 0 && next.Segs[0].Region == s.Region {
			n = min(left, inRow-u.n%inRow)
		}
	}
	if err := s.Region.HoldN(s.Gen, uint32(n)); err != nil {
		return err
	}
	u.region, u.gen, u.holds = s.Region, s.Gen, uint32(n)
	a, ok := s.Region.Handle(u.d).(*attached)
	if !ok {
		u.unlock() // mapping memory may take its time
		var err error
		if a, err = u.d.attach(s.Region); err != nil {
			u.unhold()
			return err
		}
	}
	if err := a.lost(e.Op); err != nil {
		u.unhold()
		return err
	}
	if !a.aligned {
		u.unhold()
		return base.Errorf(e.Op.String(), u.d.info.Target, base.ErrMisaligned,
			"%s begins at an address that is not a multiple of %d", s.Region, u.d.info.MemAlign)
	}
	u.at = a
	return nil
}

// unhold gives back the holds that no request took.
func (u *burst) unhold() {
	if u.holds > 0 {
		u.region.ReleaseN(u.holds)
		u.holds = 0
	}
}

// issue cuts a request into commands: at the largest command, at the namespace's
// boundary, and where PRP entries cannot name the memory.
func (u *burst) issue(r *request, e *driver.Request, left int) {
	d := u.d
	shift := d.geo.BlockShift
	limit := d.limit
	switch e.Op {
	case driver.OpDiscard:
		limit = d.discardLimit
	case driver.OpWriteZeroes:
		if d.info.WriteZeroes {
			limit = d.zeroLimit
		}
	}
	boundary := d.geo.Boundary
	if len(e.Segs) == 0 {
		boundary = 0 // no data, nothing to gain
	}
	c := cursor{segs: e.Segs}
	for at := int64(0); ; {
		slba := uint64(e.Off+at) >> shift
		u.bulk = len(e.Segs) > 0 && e.Len > bulkRequest && d.opts.Bulk > 0 && u.large()
		most := limit
		if u.bulk {
			most = min(most, d.bulkLimit)
		}
		blocks := nvme.NextCut(slba, uint64(e.Len-at)>>shift, most, boundary)
		used, err := u.reserve(r, e, at, int64(blocks)<<shift, &c, left)
		switch {
		case used == e.Len: // the command is all of the request, which may have ended
			return
		case err != nil && at == 0:
			u.tally.failed(r, 0, err)
			return
		case err != nil:
			r.fail(at, err)
			u.tally.unref(r)
			return
		}
		if at += used; at == e.Len {
			u.tally.unref(r)
			return
		}
		if len(c.segs) > 0 {
			c.advance(used)
		}
	}
}

// reserve submits one command of up to n bytes at offset at of a request, waiting
// for room. It returns how many bytes it took.
func (u *burst) reserve(r *request, e *driver.Request, at, n int64, c *cursor, left int) (used int64, err error) {
	for {
		if u.b.Canceled() {
			return 0, u.b.NotSent(e.Op, u.d.info.Target)
		}
		if u.g.line.n.Load() == 0 || u.g.line.mayGo(u.place) {
			if used, err = u.try(r, e, at, n, c, left); err != errNoRoom {
				return used, err
			}
		}
		if err := u.wait(e); err != nil {
			return 0, err
		}
	}
}

// wait makes room: it tells the controller what was submitted and polls once, or
// sleeps until there may be some.
func (u *burst) wait(e *driver.Request) error {
	u.leave()
	u.tally.publish()
	if u.late == nil {
		u.late = u.ctx.Err()
	}
	if u.late != nil {
		return base.Errorf(e.Op.String(), u.d.info.Target, base.ErrTimeout, "the queue is full: %w", u.late)
	}
	if u.place == nil {
		u.place = u.g.line.join()
	}
	from := u.d.hw.Now()
	if u.g.asleep() && u.d.deep.asleep() { // or room comes from queues that are polled
		select {
		case <-u.place.wake:
		case <-u.ctx.Done():
		case <-u.b.CancelC():
		case <-time.After(roomAgain): // of another group, or by a deadline
		}
	} else {
		u.d.pollOnce()
	}
	u.look()
	u.d.count.room.Add(int64(u.now - from))
	return nil
}

// roomAgain is how often a submitter that sleeps looks for room by itself.
const roomAgain = time.Millisecond

// enter begins a turn, unless there is one that may go on.
func (u *burst) enter(op driver.Op) error {
	if u.q != nil {
		if u.n < inRow {
			return nil
		}
		u.leave()
	}
	d := u.d
	if len(u.queues) == 0 { // a reset has begun since Submit looked
		return d.gone(op.String())
	}
	q := u.leastLoaded()
	q.mu.Lock()
	if !q.dead && d.State() == driver.StateReady {
		u.q, u.n = q, 0
		return nil
	}
	q.mu.Unlock()
	if err := d.refusal(op.String()); err != nil {
		return err
	}
	return base.Errorf(op.String(), d.info.Target, base.ErrIsolated, "the device was reset during the submission")
}

// leave ends the turn, if there is one.
func (u *burst) leave() {
	u.unhold()
	u.unlock()
}

// unlock tells the controller about the commands of the turn, and gives back what
// was not used of the window.
func (u *burst) unlock() {
	q := u.q
	if q == nil {
		return
	}
	if u.n > 0 && int64(u.due) < q.due.Load() {
		q.due.Store(int64(u.due))
	}
	q.ring()
	q.bytes.Store(q.load)
	q.mu.Unlock()
	u.d.count.commands.Add(int64(u.n))
	if u.spare != 0 {
		u.d.window.Add(-u.spare)
	}
	u.q, u.n, u.spare = nil, 0, 0
}

func (u *burst) leastLoaded() *queue {
	best, least := u.queues[0], u.queues[0].bytes.Load()
	for _, q := range u.queues[1:] {
		if least == 0 {
			break
		}
		if n := q.bytes.Load(); n < least {
			best, least = q, n
		}
	}
	return best
}

// try submits one command, or fails with errNoRoom.
func (u *burst) try(r *request, e *driver.Request, at, n int64, c *cursor, left int) (int64, error) {
	if err := u.enter(e.Op); err != nil {
		return 0, err
	}
	d, q := u.d, u.q
	if !q.room() {
		return 0, errNoRoom
	}
	m, n := d.locate(q, c, n)
	if n == 0 && len(c.segs) > 0 {
		return 0, base.Errorf(e.Op.String(), d.info.Target, base.ErrMisaligned,
			"the memory at byte %d cannot be named in a command", at)
	}
	load, bulk := int64(0), int64(0)
	if e.Op == driver.OpRead || e.Op == driver.OpWrite {
		if load = n; u.bulk {
			bulk = n
		}
		if !u.afford(n, bulk, left) {
			return 0, errNoRoom
		}
	}
	s := q.take()
	s.off, s.n, s.load, s.bulk = at, n, load, bulk
	if err := d.fill(q, s, e, &m); err != nil {
		d.bulk.Add(-bulk)
		q.drop(s)
		return 0, err
	}
	s.run, s.i, s.kind = r.run, r.i, whole
	if n != e.Len && e.Op != driver.OpFlush {
		s.kind = part
		if at == 0 {
			r.left.Store(1)
		}
		r.left.Add(1)
	}
	u.spare -= load
	q.load += load
	q.put(s, u.now+d.deadline(q.sqe[q.tail].OPC))
	u.n++
	if u.place != nil {
		u.place.left--
	}
	return n, nil
}

// afford sees to it that n bytes of the window are there to be spent on a command,
// unless that passes the bound; bulk is n for a part of a large request, of which one
// command is always let through. Of the window it takes as much as the rest of the turn
// seems to need.
func (u *burst) afford(n, bulk int64, left int) bool {
	d := u.d
	if bulk != 0 {
		if now := d.bulk.Add(bulk); now > d.opts.Bulk && now > bulk {
			d.bulk.Add(-bulk)
			return false
		}
	}
	if u.spare < n {
		want := n * int64(min(left, inRow-u.n))
		if d.window.Add(want) > driver.MaxBytesInFlight {
			now := d.window.Add(n - want)
			if want = n; now > driver.MaxBytesInFlight {
				d.window.Add(-n)
				d.bulk.Add(-bulk)
				return false
			}
		}
		u.spare += want
	}
	return true
}
