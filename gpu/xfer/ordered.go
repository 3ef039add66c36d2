package xfer

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
)

// Ordered is a stream in whose order requests run. Its methods are called by
// one goroutine at a time, as those of the stream; Err and Queued by any.
type Ordered struct {
	o      *Order
	s      gpu.Stream
	cell   int
	last   uint64 // number of the last request
	queue  []*Request
	now    *Request // the one that runs: at most one, since the stream waits for it
	failed *Request // the first that failed and whose error nobody read
	why    string   // see InCall
	lost   bool     // the library failed half-way: what the GPU does is not known
	dead   bool     // the stream failed
	closed bool

	at                    gpu.Ptr // of the cells
	reached, done, passed *atomic.Uint64
}

// Join makes a stream usable. ErrNoSpace when Streams are joined already,
// ErrClosed after Close.
func (o *Order) Join(s gpu.Stream) (*Ordered, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return nil, base.Errorf("join", "stream", base.ErrClosed, "the order is closed")
	case len(o.free) == 0:
		return nil, base.WithHint(base.Errorf("join", "stream", base.ErrNoSpace, "%d streams are joined, the limit", o.opt.Streams),
			"close one, or raise OrderOptions.Streams")
	}
	q := &Ordered{o: o, s: s, why: o.why, cell: o.free[len(o.free)-1]}
	if q.why == "" {
		if err := q.connect(); err != nil {
			return nil, err
		}
	}
	o.free = o.free[:len(o.free)-1]
	o.joined[q] = true
	return q, nil
}

// connect gives the stream its cells, and tries the kernel once: it does not run
// on streams of other contexts.
func (q *Ordered) connect() error {
	if err := q.refuseCapture(); err != nil {
		return err
	}
	m := q.o.memory
	off := q.o.opt.Steps*stepBytes + q.cell*cellBytes
	q.at = m.Ptr() + gpu.Ptr(off)
	q.reached, q.done = dl.Cell(m.Bytes(), off+cellReached), dl.Cell(m.Bytes(), off+cellDone)
	q.passed = dl.Cell(m.Bytes(), off+cellPassed)
	for _, c := range []*atomic.Uint64{q.reached, q.done, q.passed} {
		c.Store(0)
	}
	clear(m.Bytes()[off+cellReached:][:gpu.MoveBytes]) // a table of one entry of no bytes
	err := q.s.Move(q.at, 1)
	if errors.Is(err, base.ErrNotSupported) {
		q.why = err.Error()
		return nil
	}
	return err
}

func (q *Ordered) refuseCapture() error {
	capturing, err := q.s.Capturing()
	if err == nil && capturing {
		err = base.WithHint(base.Errorf("queue", "request", base.ErrNotSupported, "the stream is being captured into a graph"),
			"end the capture first; a graph cannot hold a transfer")
	}
	return err
}

// Queued is the number of requests that the stream has not come to.
func (q *Ordered) Queued() int {
	q.o.mu.Lock()
	defer q.o.mu.Unlock()
	return len(q.queue)
}

// Err gives the first failure of a request of this stream that nobody has read,
// and forgets it (I7).
func (q *Ordered) Err() error {
	q.o.mu.Lock()
	defer q.o.mu.Unlock()
	return q.takeFailure()
}

func (q *Ordered) takeFailure() error {
	r := q.failed
	q.failed = nil
	if r == nil || r.read {
		return nil
	}
	r.read = true
	return r.err
}

// idle tells that the GPU will not touch the cells again.
func (q *Ordered) idle() bool {
	return q.why != "" || q.lost || q.dead || q.passed.Load() == q.last
}

// Close lets go of the stream, which stays the caller's. ErrBusy while it has
// not passed every request. Closing twice is harmless.
func (q *Ordered) Close() error {
	q.o.mu.Lock()
	defer q.o.mu.Unlock()
	if q.closed {
		return nil
	}
	if !q.idle() || len(q.queue) > 0 {
		return base.WithHint(base.Errorf("close", "ordered stream", base.ErrBusy, "%d requests wait", len(q.queue)),
			"wait until the stream's work ended")
	}
	q.closed = true
	q.o.reclaim()
	if !q.lost { // else the cells are the GPU's for ever
		delete(q.o.joined, q)
		q.o.free = append(q.o.free, q.cell)
	}
	return nil
}

// Submit queues a request of some pieces behind the work of the stream; what is
// queued after it runs when all pieces ended. Pieces have no order among
// themselves. The memory that they name stays registered until then (I3).
//
// ErrNotSupported for a stream that is being captured into a graph; the error
// of an earlier request of the stream that nobody has read (I7): nothing is
// queued then; ErrBusy when Queue requests wait. ctx bounds only what Submit
// itself waits for, see Order.
func (q *Ordered) Submit(ctx context.Context, pieces ...Piece) (*Request, error) {
	if err := q.refuseCapture(); err != nil {
		return nil, err
	}
	r, err := q.o.m.newRequest(pieces)
	if err != nil {
		return nil, err
	}
	if q.why == "" {
		r.plan()
		err = q.o.take(r)
	}
	if err == nil {
		if err = q.admit(r); err != nil {
			q.o.giveUp(r)
		}
	}
	if err != nil {
		r.dismiss()
		return nil, err
	}
	if q.why != "" {
		err = q.inCall(ctx, r)
	} else {
		err = q.enqueue(r)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// giveUp returns the slots of a request that was never queued.
func (o *Order) giveUp(r *Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.release(r)
}

// enqueue makes the stream call for the request, pass its steps and wait for its
// end. If the library fails on the way, the stream passes what it knows of
// without a byte moved.
func (q *Ordered) enqueue(r *Request) error {
	if err := q.s.WriteCell(q.at+cellReached, r.number); err != nil {
		q.withdraw(r)
		return err
	}
	var err error
	for i := 0; i < len(r.steps) && err == nil; i++ {
		err = r.steps[i].queue(q.s)
	}
	if err == nil {
		err = q.s.AwaitCell(q.at+cellDone, r.number)
	}
	if err == nil {
		err = q.s.WriteCell(q.at+cellPassed, r.number)
	}
	if err == nil {
		return nil
	}
	q.o.mu.Lock()
	r.void, q.lost = true, true
	begun := q.now == r
	q.o.mu.Unlock()
	if begun {
		<-r.ended
	}
	return err
}

// ReadAsync queues one Read of the mover.
func (q *Ordered) ReadAsync(ctx context.Context, e Endpoint, off int64, dst gpu.Ptr, n int64) (*Request, error) {
	return q.Submit(ctx, Piece{End: e, Ptr: dst, Span: Span{Off: off, N: n}})
}

// WriteAsync queues one Write of the mover.
func (q *Ordered) WriteAsync(ctx context.Context, e Endpoint, off int64, src gpu.Ptr, n int64) (*Request, error) {
	return q.Submit(ctx, Piece{End: e, Ptr: src, Write: true, Span: Span{Off: off, N: n}})
}

// admit gives the request its place in the order.
func (q *Ordered) admit(r *Request) error {
	o := q.o
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed || q.closed:
		return base.Errorf("queue", "request", base.ErrClosed, "the stream was let go of")
	case len(q.queue) >= o.opt.Queue:
		return base.Errorf("queue", "request", base.ErrBusy, "%d requests wait, the limit", len(q.queue))
	}
	if err := q.takeFailure(); err != nil {
		return base.Wrap("queue", "request after one that failed", err)
	}
	r.q = q
	if q.lost {
		return base.Errorf("queue", "request", base.ErrIsolated, "the library failed on this stream before")
	}
	if q.why != "" {
		o.running.Add(1)
		return nil
	}
	q.last++
	r.number = q.last
	if q.queue = append(q.queue, r); len(q.queue) == 1 {
		o.waiting = append(o.waiting, q)
		select {
		case o.wake <- struct{}{}:
		default:
		}
	}
	return nil
}

// withdraw takes back the last request, of which the GPU knows nothing.
func (q *Ordered) withdraw(r *Request) {
	q.o.mu.Lock()
	if i := len(q.queue) - 1; i >= 0 && q.queue[i] == r {
		q.queue = q.queue[:i]
		q.last--
		if i == 0 {
			q.o.unlist(q)
		}
	}
	q.o.release(r)
	q.o.mu.Unlock()
	r.dismiss()
}

// unlist takes q from the poller's list.
func (o *Order) unlist(q *Ordered) {
	for i, w := range o.waiting {
		if w == q {
			last := len(o.waiting) - 1
			o.waiting[i] = o.waiting[last]
			o.waiting = o.waiting[:last]
			return
		}
	}
}

// inCall waits for the stream and runs the request.
func (q *Ordered) inCall(ctx context.Context, r *Request) error {
	defer q.o.running.Done()
	tick, err := q.s.Tick()
	if err == nil {
		err = q.s.WaitTick(ctx, tick)
	}
	if err != nil {
		r.dismiss()
		return err
	}
	r.inCall()
	q.finish(r)
	return nil
}
