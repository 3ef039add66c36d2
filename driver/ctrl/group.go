package ctrl

import (
	"context"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/hw"
)

// group is the queues for one kind of batches, and the driver.Poller of those. A
// device has two: few small requests, for which somebody waits, have queues of
// their own, in which they never stand behind the commands of a large batch. Of a
// single queue, both groups consist.
type group struct {
	d      *Device
	mode   Mode
	depth  int // commands in flight on a queue
	queues atomic.Pointer[[]*queue]
	line   line
	expect [classes]atomic.Int64 // of Hybrid: how long a batch of some size is waited for, ns
}

// classes are the sizes of batches, by powers of two of bytes.
const classes = 64

// groupOf chooses the queues for a batch: a few small requests are for the latency
// queues.
func (d *Device) groupOf(b *driver.Batch) (g *group, small bool) {
	if len(b.Reqs) > smallBatch {
		return &d.deep, false
	}
	small = true
	for i := range b.Reqs {
		switch q := &b.Reqs[i]; {
		case q.Op == driver.OpFlush:
			small = false
		case q.Len > smallRequest || q.Op != driver.OpRead && q.Op != driver.OpWrite:
			return &d.deep, false
		}
	}
	return &d.latency, small
}

// share deals the queues out: those of lower numbers are the latency queues.
func (d *Device) share(queues []*queue) {
	n := len(queues) / 2
	if n == 0 {
		n = len(queues)
	}
	few, deep := queues[:n:n], queues[n:]
	if len(deep) == 0 {
		deep = few
	}
	d.latency.queues.Store(&few)
	d.deep.queues.Store(&deep)
	d.queues.Store(&queues)
}

// groupFor is the group of the queue with a number, before the queues are dealt
// out.
func (d *Device) groupFor(id uint32) *group {
	if d.granted > 1 && id <= d.granted/2 {
		return &d.latency
	}
	return &d.deep
}

// asleep tells whether waiters of the group may sleep: each queue has interrupts.
func (g *group) asleep() bool {
	if g.mode == Polled {
		return false
	}
	for _, q := range *g.queues.Load() {
		if q.vec == nil {
			return false
		}
	}
	return true
}

// NoInterrupts is in Info.Engine when queues that should have interrupts are polled,
// because the device has too few vectors.
const NoInterrupts = "polled for want of interrupts"

// engine says how completions of the group are noticed.
func (g *group) engine() string {
	if g.mode != Polled && !g.asleep() {
		return NoInterrupts
	}
	return g.mode.String()
}

// PollBatch implements driver.Poller.
func (g *group) PollBatch(ctx context.Context, b *driver.Batch) error {
	if g.asleep() {
		if g.mode == Hybrid {
			return g.hybrid(ctx, b)
		}
		return driver.WaitDone{}.PollBatch(ctx, b)
	}
	d, done := g.d, ctx.Done()
	now := time.Duration(0) // not known yet: no deadline has passed
	for empty := 0; !b.Ended(); {
		n, due := d.pollQueues(*g.queues.Load(), now)
		if n > 0 {
			empty = 0
			continue
		}
		if empty++; empty < spins {
			continue
		}
		d.hw.Pause(due)
		now = d.hw.Now()
		if d.State() != driver.StateReady && !b.Ended() {
			return driver.WaitDone{}.PollBatch(ctx, b) // the stop ends it
		}
		select {
		case <-done:
			return ctx.Err()
		default:
		}
		if empty%checkEvery == 0 {
			d.checkAlive()
		}
	}
	return nil
}

// hybrid polls for a batch that is expected soon, and else sleeps: for as long as
// batches of its size have taken lately.
func (g *group) hybrid(ctx context.Context, b *driver.Batch) error {
	d := g.d
	var bytes int64
	for i := range b.Reqs {
		bytes += b.Reqs[i].Len
	}
	expect := &g.expect[bits.Len64(uint64(bytes))%classes]
	start, before := d.hw.Now(), expect.Load()
	if time.Duration(before) <= d.opts.Spin {
		end := start + d.opts.Spin
		for now := start; !b.Ended() && now < end; now = d.hw.Now() {
			if n, due := d.pollQueues(*g.queues.Load(), now); n == 0 {
				d.hw.Pause(due)
			}
		}
	}
	err := driver.WaitDone{}.PollBatch(ctx, b)
	expect.Store(before + (int64(d.hw.Now()-start)-before)/8)
	return err
}

// pollQueues reaps the queues that have commands in flight once. Commands whose
// deadline had passed at now, which is the time or an earlier one, isolate the
// controller. It tells how many commands ended, and when the next deadline is.
func (d *Device) pollQueues(queues []*queue, now time.Duration) (n int, due time.Duration) {
	due = hw.Forever
	for _, q := range queues {
		if time.Duration(q.due.Load()) == hw.Forever {
			continue // nothing is in flight
		}
		if !q.mu.TryLock() {
			due = now // someone else is at it, and may reap or submit
			continue
		}
		n += q.reap()
		q.judge(now)
		due = min(due, time.Duration(q.due.Load()))
		q.mu.Unlock()
	}
	return n, due
}

// line is where submitters of a group wait for room. They get it in turns, in the
// order in which they came, so that no large batch keeps another from the device.
type line struct {
	n    atomic.Int32 // how many wait
	mu   sync.Mutex
	wait []*waiter // the first may go
	pool sync.Pool // of *waiter
}

// waiter is a submission that has a place in the line.
type waiter struct {
	wake chan struct{} // holds a token when it may go
	left int           // commands until its turn ends, if others wait
}

// inTurn is how many commands a submitter may send in its turn.
const inTurn = 32

// join gives a submission the last place.
func (l *line) join() *waiter {
	w, ok := l.pool.Get().(*waiter)
	if !ok {
		w = &waiter{wake: make(chan struct{}, 1)}
	}
	w.left = inTurn
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wait = append(l.wait, w)
	l.n.Store(int32(len(l.wait)))
	return w
}

// leave gives the place up.
func (l *line) leave(w *waiter) {
	l.mu.Lock()
	for i, x := range l.wait {
		if x == w {
			l.wait = append(l.wait[:i], l.wait[i+1:]...)
			break
		}
	}
	l.n.Store(int32(len(l.wait)))
	l.wakeFirst()
	l.mu.Unlock()
	select {
	case <-w.wake:
	default:
	}
	l.pool.Put(w)
}

// mayGo tells whether a submission with place w, or without one, may send a
// command. Its turn ends after some.
func (l *line) mayGo(w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.wait) == 0 {
		return true
	}
	if l.wait[0] != w {
		return false
	}
	if w.left > 0 || len(l.wait) == 1 {
		return true
	}
	copy(l.wait, l.wait[1:])
	l.wait[len(l.wait)-1], w.left = w, inTurn
	l.wakeFirst()
	return false
}

// wakeFirst wakes whoever may go. The caller holds mu.
func (l *line) wakeFirst() {
	if len(l.wait) > 0 {
		select {
		case l.wait[0].wake <- struct{}{}:
		default:
		}
	}
}

// signal wakes whoever may go, because there may be room.
func (l *line) signal() {
	if l.n.Load() > 0 {
		l.mu.Lock()
		l.wakeFirst()
		l.mu.Unlock()
	}
}
