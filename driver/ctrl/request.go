package ctrl

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// run is one Submit until its last entry has its answer: the driver's part of the
// batch. Runs are used again, so that a submission allocates nothing.
type run struct {
	b    *driver.Batch
	reqs []request // one for each entry
}

// newRun takes a spare run for a batch.
func (d *Device) newRun(b *driver.Batch) *run {
	u, ok := d.runs.Get().(*run)
	if !ok {
		u = new(run)
	}
	u.b = b
	if len(u.reqs) < len(b.Reqs) {
		u.reqs = make([]request, len(b.Reqs))
		for i := range u.reqs {
			u.reqs[i].run, u.reqs[i].i = u, i
		}
	}
	return u
}

// request is one entry of a batch while commands of it may be in flight.
type request struct {
	run   *run
	i     int // which entry
	holds int // segments whose regions are held

	// Of a request of several commands. One that is a single command needs no
	// count: its command's end is its own.
	left   atomic.Int32 // commands in flight, and one while it is being issued
	mu     sync.Mutex
	failAt int64 // the first byte that did not succeed
	err    error // of the command at failAt
}

// entry is the caller's request.
func (r *request) entry() *driver.Request { return &r.run.b.Reqs[r.i] }

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

// counters are the statistics of the device.
type counters struct {
	ops      [driver.OpWriteZeroes + 1]atomic.Int64 // requests ended without error, by operation
	bytes    [driver.OpWriteZeroes + 1]atomic.Int64 // of all answers
	errors   atomic.Int64
	inRow    atomic.Int64 // requests that failed in a row
	commands atomic.Int64
	room     atomic.Int64 // waits for room, ns
}

// tally collects what a burst of completions means for counters that others share,
// so that each is touched once a burst: statistics, the window, the regions, and
// the answers of batches. It belongs to one goroutine, or to the lock of its queue.
// Nobody sees an answer before publish, which tells everything else first.
type tally struct {
	d      *Device
	load   int64 // bytes of the window that are free again
	bulk   int64
	used   uint8 // a bit for each operation that something is counted for
	ops    [driver.OpWriteZeroes + 1]int64
	bytes  [driver.OpWriteZeroes + 1]int64
	region *driver.Region
	holds  uint32 // of region, over
	run    *run
	ended  int // entries of run that have their answer
}

// command takes the end of a command that begins at byte off of its request. whole
// means that it is all of it.
func (t *tally) command(r *request, whole bool, off int64, err error) {
	switch {
	case whole && err == nil:
		t.succeeded(r)
	case whole:
		t.failed(r, off, err)
	default:
		if err != nil {
			r.fail(off, err)
		}
		t.unref(r)
	}
}

// count adds n requests of an operation that have succeeded, and bytes. The bytes
// are those that the answers tell, which whoever counts them by path gets to know
// (I10): of a request that was cut, what moved behind a failed command is in neither.
func (t *tally) count(op driver.Op, n int, bytes int64) {
	if n > 0 || bytes > 0 {
		t.used |= 1 << op
		t.ops[op] += int64(n)
		t.bytes[op] += bytes
	}
}

// unref drops one command of a request of several, or its issuer; the last one ends
// the request.
func (t *tally) unref(r *request) {
	if r.left.Add(-1) != 0 {
		return
	}
	if r.err != nil {
		err := r.err
		r.err = nil
		t.failed(r, r.failAt, err)
		return
	}
	t.succeeded(r)
}

func (t *tally) succeeded(r *request) {
	e := r.entry()
	if t.d.revocable.Load() {
		if err := r.lost(t.d); err != nil {
			t.failed(r, 0, err)
			return
		}
	}
	done := e.Len
	if e.Op == driver.OpFlush {
		done = 0
	}
	t.count(e.Op, 1, done)
	t.answer(r, done, nil)
}

// failed ends a request of which the bytes before done were moved.
func (t *tally) failed(r *request, done int64, err error) {
	d := t.d
	if r.entry().Op == driver.OpFlush && statusOf(err) != nil {
		// Nobody knows what a flush that the controller failed has lost: it is
		// never repeated as if nothing had happened.
		d.isolate(err)
		err = base.Errorf("flush", d.info.Target, base.ErrIsolated, "%w", err)
	}
	d.count.errors.Add(1)
	d.count.inRow.Add(1)
	t.count(r.entry().Op, 0, done)
	t.answer(r, done, err)
}

// answer gives the entry its one answer, and its regions back.
func (t *tally) answer(r *request, done int64, err error) {
	b := r.run.b
	segs := b.Reqs[r.i].Segs
	t.switchTo(r.run, t.region)
	for i := range r.holds {
		t.switchTo(r.run, segs[i].Region)
		t.holds++
	}
	b.Answer(r.i, done, err)
	t.ended++
}

// switchTo makes the tally one of a submission and of a region.
func (t *tally) switchTo(run *run, region *driver.Region) {
	if run != t.run {
		if t.run != nil {
			t.publish()
		}
		t.run = run
	}
	if region != t.region {
		t.release()
		t.region = region
	}
}

// release gives the holds back.
func (t *tally) release() {
	if t.holds > 0 {
		t.region.ReleaseN(t.holds)
		t.holds = 0
	}
	t.region = nil
}

// publish tells everybody.
func (t *tally) publish() {
	d := t.d
	t.release()
	if t.load != 0 {
		d.window.Add(-t.load)
		t.load = 0
	}
	if t.bulk != 0 {
		d.bulk.Add(-t.bulk)
		t.bulk = 0
	}
	for ; t.used != 0; t.used &= t.used - 1 {
		op := bits.TrailingZeros8(t.used)
		d.count.bytes[op].Add(t.bytes[op])
		t.bytes[op] = 0
		if n := t.ops[op]; n != 0 {
			d.count.ops[op].Add(n)
			t.ops[op] = 0
			if d.count.inRow.Load() != 0 {
				d.count.inRow.Store(0)
			}
		}
	}
	if t.run == nil {
		return
	}
	u, n := t.run, t.ended
	t.run, t.ended = nil, 0
	d.inFlight.Add(-int64(n))
	if u.b.EndN(n) {
		u.b = nil
		d.runs.Put(u)
	}
	d.unended.Add(-int64(n))
}
