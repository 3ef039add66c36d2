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

// burst is one Submit: which queues have commands that the controller was not
// told about.
type burst struct {
	d       *Device
	g       *group
	b       *driver.Batch
	ctx     context.Context
	place   *waiter // in the line for room, or nil
	queues  []*queue
	touched uint64        // a bit for each queue
	at      int           // the queue in use
	n       int           // commands that it got in a row
	now     time.Duration // when the burst began, or waited last: deadlines count from it
	bulk    bool          // the present request is large, and there are small ones
	late    error         // the context has ended
}

// Submit implements driver.Device.
func (d *Device) Submit(ctx context.Context, b *driver.Batch) error {
	if err := d.refusal("submit to"); err != nil {
		return err
	}
	g, small := d.groupOf(b)
	if err := b.Start(g); err != nil {
		return err
	}
	d.unended.Add(int64(len(b.Reqs)))
	if d.closing.Load() { // Close looks at unended after it has set this
		d.unended.Add(-int64(len(b.Reqs)))
		b.Abandon()
		return base.Errorf("submit to", d.info.Target, base.ErrClosed, "the device is being closed")
	}
	d.inFlight.Add(int64(len(b.Reqs)))
	u := burst{d: d, g: g, b: b, ctx: ctx, queues: *g.queues.Load(), now: d.hw.Now()}
	if small {
		d.small.Store(int64(u.now))
	}
	for i := range b.Reqs { // b may be reused as soon as its last entry is started
		u.start(i)
	}
	u.ring()
	if u.place != nil {
		g.line.leave(u.place)
	}
	return nil
}

// ring tells the controller about the burst.
func (u *burst) ring() {
	for i, q := range u.queues {
		if u.touched&(1<<i) != 0 {
			q.mu.Lock()
			q.ring()
			q.mu.Unlock()
		}
	}
	u.touched = 0
}

// start checks one entry and issues its commands.
func (u *burst) start(i int) {
	d, b := u.d, u.b
	r := d.pool.Get().(*request)
	r.d, r.b, r.i = d, b, i
	r.left.Store(1)
	q := &b.Reqs[i]
	err := driver.CheckRequest(&d.info, q)
	switch {
	case err != nil:
	case q.Op == driver.OpFlush:
		if d.info.VolatileCache {
			err = u.command(r, 0, 0, nil)
		}
	case q.Len == 0:
	case q.Op == driver.OpDiscard && !d.info.Discard:
		err = base.Errorf("discard", d.info.Target, base.ErrNotSupported, "the controller has no Dataset Management command")
	default:
		c := cursor{segs: q.Segs}
		if err = r.hold(&c); err == nil {
			u.issue(r, &c)
		}
	}
	if err != nil {
		r.fail(0, err)
	}
	r.unref()
}

// hold takes the segments of a request and makes sure that the device knows their
// regions.
func (r *request) hold(c *cursor) error {
	q := r.entry()
	for i := range q.Segs {
		s := &q.Segs[i]
		if err := s.Region.Hold(s.Gen); err != nil {
			return err
		}
		r.holds = i + 1
		if s.Region == c.region {
			continue
		}
		a, ok := s.Region.Handle(r.d).(*attached)
		if !ok {
			var err error
			if a, err = r.d.attach(s.Region); err != nil {
				return err
			}
		}
		c.region, c.at = s.Region, a
		if err := a.lost(q.Op); err != nil {
			return err
		}
		if !a.aligned {
			return base.Errorf(q.Op.String(), r.d.info.Target, base.ErrMisaligned,
				"%s begins at an address that is not a multiple of %d", s.Region, r.d.info.MemAlign)
		}
	}
	return nil
}

// issue cuts a request into commands: at the largest command, at the namespace's
// boundary, and where PRP entries cannot name the memory.
func (u *burst) issue(r *request, c *cursor) {
	d, q := u.d, r.entry()
	shift := d.geo.BlockShift
	limit := d.limit
	switch q.Op {
	case driver.OpDiscard:
		limit = d.discardLimit
	case driver.OpWriteZeroes:
		if d.info.WriteZeroes {
			limit = d.zeroLimit
		}
	}
	boundary := d.geo.Boundary
	if len(q.Segs) == 0 {
		boundary = 0 // no data, nothing to gain
	}
	for at := int64(0); at < q.Len; {
		slba := uint64(q.Off+at) >> shift
		u.bulk = len(q.Segs) > 0 && q.Len > bulkRequest && d.opts.Bulk > 0 &&
			u.now-time.Duration(d.small.Load()) < smallMemory
		most := limit
		if u.bulk {
			most = min(most, d.bulkLimit)
		}
		blocks := nvme.NextCut(slba, uint64(q.Len-at)>>shift, most, boundary)
		n := int64(blocks) << shift
		used, err := u.reserve(r, at, n, c)
		if err != nil {
			r.fail(at, err)
			return
		}
		if len(c.segs) > 0 {
			c.advance(used)
		}
		at += used
	}
}

// reserve submits one command of up to n bytes at offset at of a request, waiting
// for room. It returns how many bytes it took.
func (u *burst) reserve(r *request, at, n int64, c *cursor) (used int64, err error) {
	for {
		if u.b.Canceled() {
			return 0, u.b.NotSent(r.entry().Op, u.d.info.Target)
		}
		if u.g.line.n.Load() == 0 || u.g.line.mayGo(u.place) {
			if used, err = u.try(r, at, n, c); err != errNoRoom {
				return used, err
			}
		}
		if err := u.wait(r); err != nil {
			return 0, err
		}
	}
}

// command is reserve for commands without memory.
func (u *burst) command(r *request, at, n int64, c *cursor) error {
	_, err := u.reserve(r, at, n, c)
	return err
}

// wait makes room: it tells the controller what was submitted and polls once, or
// sleeps until there may be some.
func (u *burst) wait(r *request) error {
	u.ring()
	if u.late == nil {
		u.late = u.ctx.Err()
	}
	if u.late != nil {
		return base.Errorf(r.entry().Op.String(), u.d.info.Target, base.ErrTimeout, "the queue is full: %w", u.late)
	}
	if u.place == nil {
		u.place = u.g.line.join()
	}
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
	u.now = u.d.hw.Now()
	return nil
}

// roomAgain is how often a submitter that sleeps looks for room by itself.
const roomAgain = time.Millisecond

// inRow is how many commands of a burst go to one queue before another may be
// chosen: a small batch costs one doorbell.
const inRow = 32

// pick stays with a queue for a while, then chooses the one with the fewest bytes
// in flight.
func (u *burst) pick() int {
	if u.n%inRow == 0 {
		u.at = u.leastLoaded()
	}
	return u.at
}

func (u *burst) leastLoaded() int {
	best, least := 0, u.queues[0].bytes.Load()
	for i := 1; i < len(u.queues) && least > 0; i++ {
		if n := u.queues[i].bytes.Load(); n < least {
			best, least = i, n
		}
	}
	return best
}

// try submits one command, or fails with errNoRoom.
func (u *burst) try(r *request, at, n int64, c *cursor) (int64, error) {
	d, e := u.d, r.entry()
	if len(u.queues) == 0 { // a reset has begun since Submit looked
		return 0, d.gone(e.Op.String())
	}
	i := u.pick()
	q := u.queues[i]
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dead || d.State() != driver.StateReady {
		if err := d.refusal(e.Op.String()); err != nil {
			return 0, err
		}
		return 0, base.Errorf(e.Op.String(), d.info.Target, base.ErrIsolated, "the device was reset during the submission")
	}
	if !q.room() {
		u.n = 0 // look for another
		return 0, errNoRoom
	}
	if c != nil && len(c.segs) > 0 {
		q.segs = c.gather(d, n, q.segs[:0])
		if n = d.span(q, n); n == 0 {
			return 0, base.Errorf(e.Op.String(), d.info.Target, base.ErrMisaligned,
				"the memory at byte %d cannot be named in a command", at)
		}
		q.segs = trim(q.segs, uint64(n))
	}
	bulk := int64(0)
	if u.bulk {
		bulk = n
	}
	if !d.reserveBytes(n, bulk, e.Op) {
		return 0, errNoRoom
	}
	s := q.take()
	deadline, err := d.fill(s, q, e, at, n)
	if err != nil {
		d.window.Add(-s.load)
		d.bulk.Add(-bulk)
		q.drop(s)
		return 0, err
	}
	s.req, s.bulk = r, min(bulk, s.load)
	r.left.Add(1)
	q.bytes.Add(s.load)
	q.put(s, u.now+deadline)
	u.touched |= 1 << i
	u.n++
	if u.place != nil {
		u.place.left--
	}
	return n, nil
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

// reserveBytes counts n bytes of payload in flight, unless that passes the bound;
// bulk is n for a part of a large request, of which one command is always let
// through.
func (d *Device) reserveBytes(n, bulk int64, op driver.Op) bool {
	if op != driver.OpRead && op != driver.OpWrite {
		return true
	}
	if bulk != 0 {
		if now := d.bulk.Add(bulk); now > d.opts.Bulk && now > bulk {
			d.bulk.Add(-bulk)
			return false
		}
	}
	if d.window.Add(n) > driver.MaxBytesInFlight {
		d.window.Add(-n)
		d.bulk.Add(-bulk)
		return false
	}
	return true
}
