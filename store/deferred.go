package store

import (
	"context"
	"sort"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// Small sync puts do not write by themselves: each would cost two system calls
// and two hand-overs for a few kilobytes. They enter the queue with their data
// in a bounce buffer, and the round writes all of them at once, adjacent slots
// in one command, before it flushes.
const (
	deferBytes = 16 * base.KiB // largest value that is deferred
	// Bounds of one merged write.
	mergeBytes = base.MiB
	mergeSegs  = 256
)

// reasonDeferred is why the bytes of small sync puts are staged.
const reasonDeferred = "small sync puts share one write"

// deferWrite stages the value of a small sync put, and leaves the writing to the
// round. False when it is not one, or no buffer is free at once.
func (s *Store) deferWrite(p *putItem) bool {
	n := p.it.v.length
	if p.op.relaxed || n == 0 || n > deferBytes || len(p.it.v.exts) != 1 || p.it.cur.inRegion() ||
		p.it.gpu != nil || s.opts.Strict {
		return false
	}
	buf := s.stage.tryGet(n)
	if !buf.ok() {
		return false
	}
	b := s.stage.bytes(buf, base.AlignUp(n, base.StoreBlock))
	if !p.it.cur.copyOut(b[:n]) { // the rest is in a region that the processor cannot reach
		s.stage.put(buf)
		p.it.cur = cursor{bufs: p.it.cur.bufs}
		return false
	}
	clear(b[n:])
	if !p.it.v.noCRC {
		p.it.crc = crcOf(p.it.crc, b[:n])
	}
	p.it.endPiece(n)
	p.op.buf = buf
	return true
}

// deferredWrite is what one device writes for a round.
type deferredWrite struct {
	batch driver.Batch
	of    [][]*op // the operations of each request
	sent  bool
}

// writeDeferred writes the data of the set that is still in bounce buffers. An
// operation whose write fails keeps the error for flushSet.
func (s *Store) writeDeferred(set []*op) {
	var todo []*op
	for _, o := range set {
		if o.buf.ok() {
			o.stamps = s.stampsOf(&o.next)
			todo = append(todo, o)
		}
	}
	if len(todo) == 0 {
		return
	}
	sort.Slice(todo, func(i, j int) bool { return todo[i].next.exts[0].Pack() < todo[j].next.exts[0].Pack() })
	writes := make([]deferredWrite, len(s.devs))
	for _, o := range todo {
		writes[o.next.exts[0].Dev].add(s, o)
	}
	ctx := context.Background() // the device's own deadlines bound the wait
	for d := range writes {
		w := &writes[d]
		if len(w.batch.Reqs) == 0 {
			continue
		}
		if err := s.devs[d].Submit(ctx, &w.batch); err != nil {
			for _, o := range todo {
				if int(o.next.exts[0].Dev) == d {
					o.err = err
				}
			}
			continue
		}
		w.sent = true
	}
	for d := range writes {
		if writes[d].sent {
			writes[d].land(ctx, s)
		}
	}
	for _, o := range todo {
		s.stage.put(o.buf)
		o.buf = stageBuf{}
	}
}

// add appends the data of o, to the last request if its slot follows at once.
func (w *deferredWrite) add(s *Store, o *op) {
	e, n := o.next.exts[0], base.AlignUp(o.next.length, base.StoreBlock)
	seg := s.stage.region.Seg(o.buf.off, n)
	if k := len(w.batch.Reqs) - 1; k >= 0 {
		r := &w.batch.Reqs[k]
		if r.Off+r.Len == e.Off() && r.Len+n <= mergeBytes && len(r.Segs) < mergeSegs {
			r.Len += n
			if last := &r.Segs[len(r.Segs)-1]; last.Off+last.Len == seg.Off {
				last.Len += n
			} else {
				r.Segs = append(r.Segs, seg)
			}
			w.of[k] = append(w.of[k], o)
			return
		}
	}
	w.batch.Reqs = append(w.batch.Reqs, driver.Request{Op: driver.OpWrite, Off: e.Off(), Len: n, Segs: []driver.Seg{seg}})
	w.of = append(w.of, []*op{o})
}

// land waits for the writes, hands out errors and counts the path.
func (w *deferredWrite) land(ctx context.Context, s *Store) {
	for w.batch.Wait(ctx) != nil { // ctx has no end
	}
	for i := range w.batch.Reqs {
		r := &w.batch.Reqs[i]
		if r.Done > 0 {
			s.paths.Add(driver.PathKey{Path: driver.PathStaged, Write: true, Reason: reasonDeferred}, r.Done)
		}
		if r.Err == nil {
			continue
		}
		for _, o := range w.of[i] {
			o.err = r.Err
		}
	}
}
