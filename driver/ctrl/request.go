package ctrl

import (
	"sync"
	"sync/atomic"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// request is one entry of a batch while commands of it may be in flight.
type request struct {
	d     *Device
	b     *driver.Batch
	i     int
	holds int          // segments that are held
	left  atomic.Int32 // commands in flight, and one while it is being issued

	mu     sync.Mutex
	failAt int64 // the first byte that did not succeed
	err    error // of the command at failAt
}

// entry is the caller's request.
func (r *request) entry() *driver.Request { return &r.b.Reqs[r.i] }

// fail notes that the bytes from off on have not succeeded. The failure at the
// lowest offset is the one that is told, so that it does not depend on the order
// of completions.
func (r *request) fail(off int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil || off < r.failAt {
		r.failAt, r.err = off, err
	}
}

// ended takes the end of one command of n bytes at off.
func (r *request) ended(off, n int64, err error) {
	if err != nil {
		r.fail(off, err)
	} else {
		r.d.count.moved(r.entry().Op, n)
	}
	r.unref()
}

// unref drops one command, or the issuer; the last one ends the request.
func (r *request) unref() {
	if r.left.Add(-1) == 0 {
		r.d.finish(r)
	}
}

// finish gives the entry its one answer, after its memory was released.
func (d *Device) finish(r *request) {
	q := r.entry()
	if d.revocable.Load() && r.err == nil {
		if r.err = r.lost(); r.err != nil {
			r.failAt = 0
		}
	}
	for i := range r.holds {
		q.Segs[i].Region.Release()
	}
	done, err := q.Len, r.err
	if err != nil {
		done = r.failAt
	}
	if q.Op == driver.OpFlush {
		done = 0
		if statusOf(err) != nil {
			// Nobody knows what a flush that the controller failed has lost: it
			// is never repeated as if nothing had happened.
			d.isolate(err)
			err = base.Errorf("flush", d.info.Target, base.ErrIsolated, "%w", err)
		}
	}
	d.count.ended(q.Op, err)
	d.inFlight.Add(-1)
	b, i := r.b, r.i
	r.reset()
	d.pool.Put(r)
	b.End(i, done, err)
	d.unended.Add(-1)
}

// counters are the statistics of the device.
type counters struct {
	ops      [5]atomic.Int64 // requests ended without error, by operation
	bytes    [5]atomic.Int64
	errors   atomic.Int64
	inRow    atomic.Int64 // requests that failed in a row
	commands atomic.Int64
}

func (c *counters) moved(op driver.Op, n int64) { c.bytes[op].Add(n) }

func (c *counters) ended(op driver.Op, err error) {
	if err != nil {
		c.errors.Add(1)
		c.inRow.Add(1)
		return
	}
	c.ops[op].Add(1)
	c.inRow.Store(0)
}

// reset prepares the request for its next use.
func (r *request) reset() {
	r.b, r.holds, r.err = nil, 0, nil
}
