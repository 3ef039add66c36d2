package store

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// Bounds of one merged write.
const (
	mergeBytes = base.MiB
	mergeSegs  = 256
)

// roundIO is what a round does with the devices.
type roundIO struct {
	devs []roundDevice
	gen  uint64 // of the last commit, for the mark
	owed bool   // no durable mark covers it yet
}

// roundDevice is what a round does with one device: it writes the values that
// are still in bounce buffers, with a commit mark among them, and flushes.
type roundDevice struct {
	parts [2]roundPart // a set may be closed in two parts
	n     int          // of parts that were submitted
	flush bool
	mark  bool   // a mark is among the writes; in the end, it is durable
	inc   uint64 // incarnation before the first write
	err   error  // of the flush
}

// roundPart is one batch of writes.
type roundPart struct {
	batch driver.Batch
	of    [][]*op // the operations of each request; a mark comes behind them
	err   error   // of the submission
}

func (s *Store) newRoundIO() *roundIO {
	r := &roundIO{devs: make([]roundDevice, len(s.devs)), gen: s.marks.committed.Load()}
	r.owed = !s.space.covers(r.gen)
	for d := range r.devs {
		r.devs[d].inc = s.devs[d].Incarnation()
	}
	return r
}

// add plans the writes of the set whose data is still in bounce buffers.
func (r *roundIO) add(s *Store, set []*op) {
	todo := make([]*op, 0, len(set))
	for _, o := range set {
		if o.buf.ok() {
			o.stamps = s.stampsOf(o.stamp[:0], &o.next)
			todo = append(todo, o)
		}
	}
	slices.SortFunc(todo, func(a, b *op) int { return cmp.Compare(a.next.exts[0].Pack(), b.next.exts[0].Pack()) })
	for _, o := range todo {
		d := &r.devs[o.next.exts[0].Dev]
		d.parts[d.n].add(s, o)
	}
}

// add appends the data of o, to the last request if its slot follows at once.
func (p *roundPart) add(s *Store, o *op) {
	e, n := o.next.exts[0], base.AlignUp(o.next.length, base.StoreBlock)
	seg := s.stage.region.Seg(o.buf.off, n)
	if k := len(p.batch.Reqs) - 1; k >= 0 {
		r := &p.batch.Reqs[k]
		if r.Off+r.Len == e.Off() && r.Len+n <= mergeBytes && len(r.Segs) < mergeSegs {
			r.Len += n
			if last := &r.Segs[len(r.Segs)-1]; last.Off+last.Len == seg.Off {
				last.Len += n
			} else {
				r.Segs = append(r.Segs, seg)
			}
			p.of[k] = append(p.of[k], o)
			return
		}
	}
	p.batch.Reqs = append(p.batch.Reqs, driver.Request{Op: driver.OpWrite, Off: e.Off(), Len: n, Segs: []driver.Seg{seg}})
	p.of = append(p.of, []*op{o})
}

// addMark adds a mark of the last commit to the writes of device d, if it is owed.
func (r *roundIO) addMark(s *Store, d int) {
	if w := &r.devs[d]; r.owed && !w.mark {
		w.mark = true
		w.parts[w.n].batch.Reqs = append(w.parts[w.n].batch.Reqs, s.markReq(d, r.gen))
	}
}

// startEarly submits the first part of a set, with the marks.
func (r *roundIO) startEarly(s *Store) {
	for d := range r.devs {
		if len(r.devs[d].parts[0].batch.Reqs) > 0 {
			r.addMark(s, d)
		}
	}
	r.start(s)
}

// start submits what was added.
func (r *roundIO) start(s *Store) {
	for d := range r.devs {
		w := &r.devs[d]
		if p := &w.parts[w.n]; len(p.batch.Reqs) > 0 {
			p.err = s.devs[d].Submit(context.Background(), &p.batch)
			w.n++
		}
	}
}

// finish waits for the writes and flushes, on every device at once.
func (r *roundIO) finish(s *Store) {
	var wg sync.WaitGroup
	here := -1 // the last one needs no goroutine of its own
	for d := range r.devs {
		if r.devs[d].n == 0 && !r.devs[d].flush {
			continue
		}
		if here >= 0 {
			other := here
			wg.Go(func() { r.devs[other].finish(s, other) })
		}
		here = d
	}
	if here >= 0 {
		r.devs[here].finish(s, here)
	}
	wg.Wait()
}

// finish waits for the writes and then flushes. An operation whose write fails
// keeps the error.
func (w *roundDevice) finish(s *Store, d int) {
	for i := w.n - 1; i >= 0; i-- {
		w.parts[i].land(s, w)
	}
	if w.flush {
		w.err = s.flushDevice(d)
	}
	w.mark = w.mark && w.flush && w.err == nil
}

// land waits for the writes of a part, hands out errors, counts the path and
// gives the buffers back.
func (p *roundPart) land(s *Store, w *roundDevice) {
	// The device's own deadlines bound the wait.
	for p.err == nil && p.batch.Wait(context.Background()) != nil {
	}
	for i := range p.batch.Reqs {
		r := &p.batch.Reqs[i]
		err := p.err
		if err == nil {
			err = r.Err
		}
		path := driver.PathKey{Path: driver.PathStaged, Write: true, Reason: reasonDeferred}
		if i >= len(p.of) {
			path = ownWrite
			w.mark = err == nil
		} else {
			for _, o := range p.of[i] {
				o.err = err
				s.stage.put(o.buf)
				o.buf = stageBuf{}
			}
		}
		if p.err == nil && r.Done > 0 {
			s.paths.Add(path, r.Done)
		}
		if err != nil {
			s.paths.Fail(path)
		}
	}
}
