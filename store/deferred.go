package store

import (
	"context"

	"github.com/ugds-store/ugds/internal/base"
)

// Small sync puts do not write by themselves: each would cost two system calls
// and two hand-overs for a few kilobytes. They enter the queue with their data
// in a bounce buffer, and the round writes all of them at once, adjacent slots
// in one command, before it flushes.
const (
	deferBytes = 16 * base.KiB // largest value that is deferred
)

// reasonDeferred is why the bytes of small sync puts are staged.
const reasonDeferred = "small sync puts share one write"

// deferWrite allocates and stages the value of a small sync put, and leaves the
// writing to the round. False when it is not one, no buffer is free at once, or
// the processor cannot reach the value. Otherwise the put has ended with an
// error or can be queued.
func (s *Store) deferWrite(ctx context.Context, p *putItem) bool {
	n := p.it.v.length
	if p.op.relaxed || n == 0 || n > deferBytes || p.it.gpu != nil || s.opts.Strict {
		return false
	}
	buf := s.stage.tryGet(n)
	if !buf.ok() {
		return false
	}
	// Before the copy: buffers and slots that are taken together follow each other
	// in memory and on the device.
	p.it.v.exts, p.it.err = s.allocate(ctx, p.ext[:0], n)
	b := s.stage.bytes(buf, base.AlignUp(n, base.StoreBlock))
	if !p.it.cur.copyOut(b[:n]) {
		s.stage.put(buf)
		p.it.cur = cursor{bufs: p.it.cur.bufs}
		return false
	}
	clear(b[n:])
	p.op.buf = buf
	return true
}

// sumDeferred computes the checksums of values that are still in bounce buffers,
// while the devices write them: their callers would all do it before the write.
func (s *Store) sumDeferred(set []*op) {
	for _, o := range set {
		if o.buf.ok() && !o.next.noCRC {
			o.next.crc = crcOf(0, s.stage.bytes(o.buf, o.next.length))
		}
	}
}
