package file

import (
	"context"
	"math"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// Submit implements driver.Device.
func (d *Device) Submit(ctx context.Context, b *driver.Batch) error { return d.submit(ctx, b, false) }

// submit is Submit; closing tells that Close itself asks.
func (d *Device) submit(ctx context.Context, b *driver.Batch, closing bool) error {
	d.mu.Lock()
	if err := d.refusal("submit"); err != nil && !(closing && d.closing && d.State() == driver.StateReady) {
		d.mu.Unlock()
		return err
	}
	if err := b.Start(d); err != nil {
		d.mu.Unlock()
		return err
	}
	d.submitting++
	d.requests += int64(len(b.Reqs))
	d.mu.Unlock()
	for i := range b.Reqs { // b may be reused as soon as its last entry is started
		d.submitOne(ctx, b, i)
	}
	d.eng.kick()
	d.mu.Lock()
	d.submitting--
	d.checkIdle()
	d.mu.Unlock()
	return nil
}

// submitOne checks and starts entry i, or ends it with its error.
func (d *Device) submitOne(ctx context.Context, b *driver.Batch, i int) {
	r := &b.Reqs[i]
	err := d.check(r)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		err = d.refusalMidway(r)
	}
	if err != nil || d.trivial(r) {
		d.endRequest(b, i, 0, err)
		return
	}
	o := d.newOp(b, i)
	if o.err = d.hold(o, r); o.err == nil {
		d.issue(ctx, o, r)
	}
	d.endPart(o)
}

// refusalMidway is refusal for a batch that Submit accepted already: Close
// waits for it, so that closing does not matter.
func (d *Device) refusalMidway(r *driver.Request) error {
	if d.State() == driver.StateReady {
		return nil
	}
	return d.refusal(r.Op.String())
}

// check looks at one request without a lock.
func (d *Device) check(r *driver.Request) error {
	in := &d.h.info
	if err := driver.CheckRequest(in, r); err != nil {
		return err
	}
	switch {
	case r.Op == driver.OpRead || r.Op == driver.OpFlush:
	case d.h.readOnly:
		return base.Errorf(r.Op.String(), in.Target, base.ErrReadOnly, "the device was opened read-only")
	case r.Op == driver.OpDiscard && !in.Discard:
		return base.Errorf(r.Op.String(), in.Target, base.ErrNotSupported, "discard is off or unknown to the device")
	}
	if r.Op == driver.OpRead || r.Op == driver.OpWrite {
		for i := range r.Segs {
			if err := d.checkAddr(r, &r.Segs[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkAddr tells whether the kernel can reach the memory of s and take its
// address: a region of the caller's memory may begin anywhere.
func (d *Device) checkAddr(r *driver.Request, s *driver.Seg) error {
	if s.Len == 0 {
		return nil
	}
	mem := s.Region.Bytes(s.Off, s.Len)
	if mem == nil {
		return base.Errorf(r.Op.String(), d.h.info.Target, base.ErrNotSupported,
			"the processor cannot reach %v", s.Region)
	}
	if a := unix.Addr(mem); a%uint64(d.h.info.MemAlign) != 0 {
		return base.Errorf(r.Op.String(), d.h.info.Target, base.ErrMisaligned,
			"the memory at %#x must be aligned to %d", a, d.h.info.MemAlign)
	}
	return nil
}

// trivial tells whether r ends without a command. Called with mu held.
func (d *Device) trivial(r *driver.Request) bool {
	if r.Op == driver.OpFlush {
		return !d.h.info.VolatileCache
	}
	return r.Len == 0
}

// hold marks every segment in flight. Called with mu held.
func (d *Device) hold(o *op, r *driver.Request) error {
	if r.Op != driver.OpRead && r.Op != driver.OpWrite {
		return nil
	}
	for i := range r.Segs {
		if err := r.Segs[i].Region.Hold(r.Segs[i].Gen); err != nil {
			return err
		}
		o.segs++
	}
	return nil
}

// cursor walks over the segments of a request.
type cursor struct {
	off, left int64 // on the device
	seg       int
	segOff    int64
}

// issue cuts r into commands and starts them, waiting for room as needed.
// Called with mu held, which it gives up while it waits.
func (d *Device) issue(ctx context.Context, o *op, r *driver.Request) {
	cur := cursor{off: r.Off, left: r.Len}
	if r.Op == driver.OpFlush {
		cur = cursor{}
	}
	for first := true; first || cur.left > 0; first = false {
		for ok := d.room(false); !ok && d.same(o) && !o.batch.Canceled(); ok = d.room(true) {
			if o.err = d.waitRoom(ctx, o.batch, r); o.err != nil {
				return
			}
		}
		if !d.same(o) {
			return // endPart says why
		}
		if o.batch.Canceled() {
			o.err = o.batch.NotSent(r.Op, d.h.info.Target)
			return
		}
		c := d.takeSlot(o, r)
		d.fill(c, r, &cur)
		d.start1(c)
	}
}

// same tells whether the device is as it was when o began. Called with mu held.
func (d *Device) same(o *op) bool {
	return d.State() == driver.StateReady && o.born == d.incarnation.Load()
}

// room tells whether a command of the largest size can start. A newcomer does
// not overtake submitters that wait already. Called with mu held.
func (d *Device) room(mine bool) bool {
	return len(d.free) > 0 && d.bytes+d.h.info.MaxTransfer <= driver.MaxBytesInFlight &&
		(mine || d.waiting == 0)
}

// waitRoom waits for room until ctx ends or the batch is canceled. Commands in
// flight end by themselves or pass a device deadline, so that it ends without a
// context too. Called with mu held.
func (d *Device) waitRoom(ctx context.Context, b *driver.Batch, r *driver.Request) error {
	d.waiting++
	d.mu.Unlock()
	d.eng.kick()
	from, err := d.now(), ctx.Err()
	if err == nil {
		select {
		case d.gate <- struct{}{}:
			d.roomFor = roomGoal{d, b}
			err = d.eng.await(ctx, &d.roomFor, d.roomC, b.CancelC())
			defer func() { <-d.gate }()
		case <-b.CancelC():
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	d.mu.Lock()
	d.waiting--
	d.stats.RoomWait += time.Duration(d.now() - from)
	if err != nil {
		return base.Errorf(r.Op.String(), d.h.info.Target, base.ErrTimeout, "no room in the queue: %w", err)
	}
	return nil
}

// takeSlot gives a free slot to o. Called with mu held.
func (d *Device) takeSlot(o *op, r *driver.Request) *cmd {
	i := d.free[len(d.free)-1]
	d.free = d.free[:len(d.free)-1]
	c := &d.cmds[i]
	*c = cmd{index: i, gen: c.gen + 1, busy: true, op: o, kind: r.Op, fua: r.FUA, buf: -1}
	c.deadline = d.now() + int64(d.deadlineOf(r.Op))
	o.parts++
	return c
}

// fill takes the next piece of r. Pieces end at block boundaries: each segment
// is a multiple of MemAlign, which is a multiple of the block size.
func (d *Device) fill(c *cmd, r *driver.Request, cur *cursor) {
	c.off = cur.off
	switch r.Op {
	case driver.OpFlush:
		return
	case driver.OpDiscard, driver.OpWriteZeroes:
		c.n = min(cur.left, maxZero)
	default:
		d.fillVector(c, r, cur)
	}
	c.size = c.n
	c.op.sent += c.n
	cur.off += c.n
	cur.left -= c.n
	if r.Op == driver.OpRead || r.Op == driver.OpWrite {
		d.bytes += c.n
	}
}

func (d *Device) fillVector(c *cmd, r *driver.Request, cur *cursor) {
	v := d.iovs.E[int(c.index)*maxIov:][:0:maxIov]
	for len(v) < maxIov && c.n < d.h.info.MaxTransfer && c.n < cur.left {
		s := &r.Segs[cur.seg]
		n := min(s.Len-cur.segOff, d.h.info.MaxTransfer-c.n)
		if n > 0 {
			mem := s.Region.Bytes(s.Off+cur.segOff, n)
			v = append(v, unix.Iovec{Base: unix.Addr(mem), Len: uint64(n)})
			c.buf = d.eng.buffer(s.Region)
			c.n += n
		}
		if cur.segOff += n; cur.segOff == s.Len {
			cur.seg++
			cur.segOff = 0
		}
	}
	if len(v) != 1 {
		c.buf = -1 // a registered buffer serves one segment
	}
	c.iov = v
}

// start1 hands c to the engine. Called with mu held.
func (d *Device) start1(c *cmd) {
	d.stats.Commands++
	if c.kind == driver.OpWrite || c.kind == driver.OpWriteZeroes || c.kind == driver.OpDiscard {
		d.written = true
	}
	d.eng.start(c)
}

// newOp gives a request record. Called with mu held.
func (d *Device) newOp(b *driver.Batch, i int) *op {
	var o *op
	if n := len(d.ops); n > 0 {
		o, d.ops = d.ops[n-1], d.ops[:n-1]
	} else {
		o = new(op)
	}
	r := &b.Reqs[i]
	*o = op{batch: b, index: i, kind: r.Op, parts: 1, base: r.Off, good: math.MaxInt64, born: d.incarnation.Load()}
	return o
}

// FlushHere implements driver.Flusher. The ring would hand the flush to a thread of
// the kernel: two changes of thread, 25 us on an idle machine.
func (d *Device) FlushHere() error {
	b := driver.Batch{Reqs: []driver.Request{{Op: driver.OpFlush}}}
	c, err := d.startFlush(&b)
	if err != nil {
		return err
	}
	if c == nil {
		return driver.Do(context.Background(), d, b.Reqs...)
	}
	res := d.exec(c)
	d.mu.Lock()
	again := d.finish(c, res)
	d.mu.Unlock()
	if again {
		d.eng.kick()
	}
	if err := b.Wait(context.Background()); err != nil { // a test held it back, or it is repeated
		return err
	}
	return b.Err()
}

// startFlush gives a flush its command, which the caller runs; none when there is
// nothing to flush or no room.
func (d *Device) startFlush(b *driver.Batch) (*cmd, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.refusal("submit"); err != nil {
		return nil, err
	}
	r := &b.Reqs[0]
	if d.trivial(r) || !d.room(false) {
		return nil, nil
	}
	if err := b.Start(d); err != nil {
		return nil, err
	}
	d.requests++
	d.stats.Commands++
	o := d.newOp(b, 0)
	o.parts = 0 // takeSlot counts the only one
	return d.takeSlot(o, r), nil
}
