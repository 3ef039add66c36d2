package xfer

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// Limits of stream-ordered requests, tested on both sides.
const (
	MaxStreams = 4096  // streams of one Order
	MaxQueue   = 65536 // requests of one stream that wait for their turn
	MaxPieces  = 65536 // pieces of one request
	MaxSteps   = 65536 // steps of all requests
)

// OrderOptions of NewOrder. The zero value works.
type OrderOptions struct {
	// Streams is how many streams may be joined at a time. Default 1,024.
	Streams int
	// Queue is how many requests of one stream may wait. Default 1,024.
	Queue int
	// Steps is how many steps may be queued, of all streams: a large request has
	// one for each chunk of the mover, small pieces share them up to about 80. Each
	// takes 4 KiB of pinned memory. Default 4,096.
	Steps int
	// Spin is how long the poller looks without a pause after the last request
	// began; after it, it looks about every 80 µs. Default 200 µs.
	Spin time.Duration
}

func (o OrderOptions) withDefaults() (OrderOptions, error) {
	if o.Streams == 0 {
		o.Streams = 1024
	}
	if o.Queue == 0 {
		o.Queue = 1024
	}
	if o.Steps == 0 {
		o.Steps = 4096
	}
	if o.Spin == 0 {
		o.Spin = 200 * time.Microsecond
	}
	if o.Streams < 0 || o.Streams > MaxStreams || o.Queue < 0 || o.Queue > MaxQueue ||
		o.Steps < 0 || o.Steps > MaxSteps || o.Spin < 0 || o.Spin > time.Second {
		return o, base.Errorf("set", "order options", base.ErrInvalid,
			"%d streams (at most %d), a queue of %d (at most %d), %d steps (at most %d), a spin of %v (at most 1s)",
			o.Streams, MaxStreams, o.Queue, MaxQueue, o.Steps, MaxSteps, o.Spin)
	}
	return o, nil
}

// Order runs requests of a mover in the order of streams. A request makes its
// stream store "reached" into a cell, pass its steps (see step), and wait for
// "done" in another cell; the poller sees the first, has the bytes moved, and
// stores the second. So no thread of the library is held, and streams go on
// independently of each other.
//
// While any stream waits, calls that free memory or load kernels hang, and while
// one of those hangs in some thread of the process, copies and launches of all
// others do, too (measured, CUDA driver 580). So between "reached" and "done"
// nothing here calls the library: kernels that are queued beforehand move the
// bytes. Whoever frees memory meanwhile waits for the streams, and they end.
//
// Where a stream cannot wait for cells or run the kernel, Submit waits for the
// stream instead and moves the bytes before it returns. A host function that
// blocks until the bytes moved would not do: the library may run one of them at a
// time, and the copies need theirs.
type Order struct {
	m      *Mover
	opt    OrderOptions
	why    string         // streams cannot wait; "" if they can
	memory gpu.HostMemory // the steps, then the cells of the streams
	wake   chan struct{}  // to the poller: a request was queued, or Close was called
	ended  chan struct{}  // the poller is gone
	left   sync.Once      // the mover knows that the order is closed

	mu      sync.Mutex
	slots   []int             // steps that nobody uses
	past    []*Request        // that ended, and whose streams may not have passed them
	free    []int             // cells that nobody uses
	joined  map[*Ordered]bool // what is open
	waiting []*Ordered        // what has requests that were not reached
	closed  bool
	running sync.WaitGroup // requests that were reached
}

// The cells of a stream, each in a cache line of its own.
const (
	cellReached = 0 // the number of the request that the stream has come to
	cellDone    = 64
	cellPassed  = 128 // the one that it is behind
	cellBytes   = 192
)

// NewOrder warms the mover and starts the poller. Close it before the mover.
func (m *Mover) NewOrder(ctx context.Context, opt OrderOptions) (o *Order, err error) {
	if opt, err = opt.withDefaults(); err != nil {
		return nil, err
	}
	m.ordered.Add(1) // no request begins a window any more; Warm waits for those that have
	defer func() {
		if err != nil {
			m.ordered.Add(-1)
		}
	}()
	if err := m.Warm(ctx); err != nil {
		return nil, err
	}
	if err := m.EndWindows(ctx); err != nil {
		return nil, err
	}
	o = &Order{m: m, opt: opt, wake: make(chan struct{}, 1), ended: make(chan struct{}), joined: map[*Ordered]bool{}}
	for i := range opt.Streams {
		o.free = append(o.free, opt.Streams-1-i)
	}
	switch in := m.dev.Info(); {
	case !in.MemOps:
		o.why = "the GPU's streams have no memory operations"
	case !in.Mover || m.opt.NoKernel:
		o.why = "no kernel moves the bytes"
	default:
		for i := range opt.Steps {
			o.slots = append(o.slots, opt.Steps-1-i)
		}
		if o.memory, err = m.dev.AllocHost(int64(opt.Steps)*stepBytes + int64(opt.Streams)*cellBytes); err != nil {
			return nil, err
		}
	}
	go o.poll()
	return o, nil
}

// InCall tells why Submit waits for the stream and moves the bytes itself, ""
// where the stream waits.
func (q *Ordered) InCall() string { return q.why }

// finish notes the end of a request, before its stream goes on.
func (q *Ordered) finish(r *Request) {
	q.o.mu.Lock()
	q.now = nil
	if r.err != nil && q.failed == nil && !r.read {
		q.failed = r
	}
	if q.why == "" && !q.lost {
		q.o.past = append(q.o.past, r)
	}
	q.o.mu.Unlock()
	r.dismiss()
	if q.why == "" {
		q.done.Store(r.number) // before ended: who waits for that may store the next number
	}
	close(r.ended)
}

// pause is the poller's rest between looks; the kernel adds its timer slack.
const pause = 20 * time.Microsecond

// poll begins the requests that streams have come to.
func (o *Order) poll() {
	defer close(o.ended)
	var busy time.Time
	for {
		begun, left, closed := o.look()
		switch {
		case closed:
			return
		case left == 0:
			<-o.wake
			busy = time.Now()
		case begun > 0:
			busy = time.Now()
		case time.Since(busy) < o.opt.Spin:
			runtime.Gosched()
		default:
			unix.Sleep(pause) // time.Sleep takes a millisecond on an idle machine
		}
	}
}

// look begins what was reached and tells how many streams have more.
func (o *Order) look() (begun, left int, closed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := 0; i < len(o.waiting); {
		q := o.waiting[i]
		r := q.queue[0]
		if int64(q.reached.Load()-r.number) < 0 {
			i++
			continue
		}
		begun++
		if q.queue = q.queue[1:]; len(q.queue) == 0 {
			q.queue = nil
			o.unlist(q) // another one is at i now
		} else {
			i++
		}
		o.running.Add(1)
		q.now = r
		go o.serve(q, r, r.void)
	}
	return begun, len(o.waiting), o.closed
}

func (o *Order) serve(q *Ordered, r *Request, void bool) {
	defer o.running.Done()
	if void {
		r.passAll()
	} else {
		r.serve()
	}
	q.finish(r)
}

// passAll lets the stream pass every step without a byte moved.
func (r *Request) passAll() {
	for i := range r.steps {
		r.steps[i].pass()
	}
}

// Close ends the order: requests that were not reached are answered with
// ErrClosed and their streams go on without them; those under way are awaited.
// ErrBusy when ctx ends before every stream has passed its requests: the cells
// are then still in use; call it again. No stream that is joined may be in use by
// another goroutine. ErrIsolated when the library failed half-way through a Submit:
// the pinned memory stays.
func (o *Order) Close(ctx context.Context) error {
	o.mu.Lock()
	o.closed = true
	for _, q := range o.waiting {
		o.running.Add(1)
		go o.refuse(q.now, q.queue)
		q.queue = nil
	}
	o.waiting = nil
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
	<-o.ended
	err := o.settle(ctx)
	if err == nil {
		o.left.Do(func() { o.m.ordered.Add(-1) })
	}
	return err
}

// refuse answers the requests of one stream that it did not come to, in order
// and behind the one that runs: "done" lets the stream pass all before it.
func (o *Order) refuse(now *Request, late []*Request) {
	defer o.running.Done()
	if now != nil {
		<-now.ended
	}
	for _, r := range late {
		r.err = base.Errorf("move", "bytes in stream order", base.ErrClosed, "the order was closed before the stream came to it")
		for i := range r.errs {
			r.errs[i] = r.err
		}
		r.passAll()
		r.q.finish(r)
	}
}

// settle waits until nothing uses the cells and frees them.
func (o *Order) settle(ctx context.Context) error {
	o.mu.Lock()
	for q := range o.joined {
		if !q.idle() {
			_, err := q.s.Tick() // a stream that failed says so, and does nothing more
			q.dead = err != nil
		}
	}
	o.mu.Unlock()
	done := make(chan struct{})
	go func() { o.running.Wait(); close(done) }()
	for {
		select {
		case <-done:
			if o.idle() {
				return o.freeCells()
			}
		default:
		}
		if ctx.Err() != nil {
			return base.WithHint(base.Errorf("close", "order", base.ErrBusy, "streams have requests in their queues: %w", ctx.Err()),
				"let the streams end their work and close again")
		}
		time.Sleep(time.Millisecond)
	}
}

func (o *Order) idle() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for q := range o.joined {
		if !q.idle() {
			return false
		}
	}
	return true
}

func (o *Order) freeCells() error {
	if o.memory == nil {
		return nil
	}
	for q := range o.joined {
		if q.lost && !q.dead {
			return base.Errorf("close", "order", base.ErrIsolated,
				"the library failed on a stream: %d bytes of pinned memory stay", len(o.memory.Bytes()))
		}
	}
	return o.memory.Close()
}
