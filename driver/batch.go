package driver

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/ugds-store/ugds/internal/base"
)

// Op is what a request does.
type Op uint8

const (
	// OpRead moves bytes from the device to memory.
	OpRead Op = iota
	// OpWrite moves bytes from memory to the device.
	OpWrite
	// OpFlush makes every write that ended before the flush was submitted
	// durable. Off, Len and Segs are ignored.
	OpFlush
	// OpDiscard tells the device that [Off, Off+Len) is not needed. It is
	// advice: the range may read as old data, zeros or ones afterwards.
	OpDiscard
	// OpWriteZeroes makes [Off, Off+Len) read as zeros.
	OpWriteZeroes
)

// String names the operation.
func (o Op) String() string {
	return [...]string{"read", "write", "flush", "discard", "write zeroes"}[o]
}

// Seg is a piece of a Region. Make one with Region.Seg, which fills Gen.
type Seg struct {
	Region *Region
	Gen    uint32 // the region's generation when the segment was made
	Off    int64  // bytes into the region
	Len    int64  // bytes
}

// Request is one entry of a batch: one contiguous extent of the device and the
// memory it is read into or written from.
type Request struct {
	Op   Op
	FUA  bool  // OpWrite: durable when it ends, without a flush
	Off  int64 // bytes into the device
	Len  int64 // bytes; for reads and writes the sum of the segments
	Segs []Seg // reads and writes only; at most MaxSegs

	// The answer, valid once the batch's Wait returned nil.
	Done int64 // bytes moved from the beginning on; with an error, those before the first that failed
	Err  error // nil, or the cause with the device's own status inside
}

// Batch is a set of requests that is submitted and awaited together. The zero
// value is ready; fill Reqs, Submit, Wait, read the answers, and reuse it. The
// submitter owns the batch and its Reqs; between Submit and a Wait that
// returned nil it must not touch them.
type Batch struct {
	Reqs []Request

	left     atomic.Int64
	done     chan struct{} // holds one token once the last entry ended, if sleeps
	sleeps   atomic.Bool   // somebody may sleep until then
	active   atomic.Bool
	poller   Poller
	canceled atomic.Bool
	cancelC  chan struct{} // closed by Cancel
}

// Poller makes progress on behalf of a waiter. Implementations of Device give
// one to Start.
type Poller interface {
	// PollBatch works until b.Ended reports true (then nil) or ctx ends (then
	// the context's error).
	PollBatch(ctx context.Context, b *Batch) error
}

// WaitDone is the Poller of devices whose completions are reaped elsewhere.
type WaitDone struct{}

// PollBatch waits for the last entry to end.
func (WaitDone) PollBatch(ctx context.Context, b *Batch) error {
	for done := b.EndedC(); !b.Ended(); { // a token may be left over from the batch's last use
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Start is called by Device implementations at the beginning of Submit, before
// any entry can end. It fails with ErrBusy when the batch is in flight already
// and with ErrInvalid when it is empty or larger than MaxBatch.
func (b *Batch) Start(p Poller) error {
	if len(b.Reqs) == 0 || len(b.Reqs) > MaxBatch {
		return base.Errorf("submit", "batch", base.ErrInvalid, "%d requests, the limit is 1 to %d",
			len(b.Reqs), MaxBatch)
	}
	if !b.active.CompareAndSwap(false, true) {
		return base.Errorf("submit", "batch", base.ErrBusy, "it is in flight already")
	}
	if b.done == nil {
		b.done = make(chan struct{}, 1)
	}
	if b.cancelC == nil || b.canceled.Load() {
		b.cancelC = make(chan struct{})
		b.canceled.Store(false)
	}
	for i := range b.Reqs {
		r := &b.Reqs[i]
		if r.Done = 0; r.Err != nil {
			r.Err = nil
		}
	}
	if b.sleeps.Load() {
		b.sleeps.Store(false)
	}
	b.poller = p
	b.left.Store(int64(len(b.Reqs)))
	return nil
}

// Abandon undoes Start. Only for a Submit that returns an error and started
// nothing.
func (b *Batch) Abandon() { b.active.Store(false) }

// End gives entry i its one terminal answer (I7). Called by implementations,
// exactly once an entry, after its memory was released.
func (b *Batch) End(i int, done int64, err error) {
	b.Answer(i, done, err)
	b.EndN(1)
}

// Answer is the first half of End: it writes the answer of entry i. EndN, the
// second half, publishes it, for many entries at once.
func (b *Batch) Answer(i int, done int64, err error) {
	r := &b.Reqs[i]
	r.Done, r.Err = done, err
}

// EndN publishes n answers. With the last of the batch, of which it tells, the
// batch is the waiter's again.
func (b *Batch) EndN(n int) (last bool) {
	left := b.left.Add(-int64(n))
	switch {
	case left == 0 && b.sleeps.Load(): // who sets it looks at left afterwards
		select {
		case b.done <- struct{}{}:
		default: // a stale token wakes the waiter just as well
		}
	case left < 0:
		panic("driver: a request was answered twice")
	}
	return left == 0
}

// Cancel gives up what was not yet sent to the device: entries that still wait for
// room end with context.Canceled inside, or, of an entry that was cut, with the
// bytes before the first command that was not sent. What was sent stays in flight
// and ends as ever; a cancel takes nothing back from the device (I4). Wait must be
// called as usual. Any goroutine may call it between a Submit that has begun and
// the Wait that returns nil; at other times it does nothing.
func (b *Batch) Cancel() {
	if b.left.Load() > 0 && b.canceled.CompareAndSwap(false, true) {
		close(b.cancelC)
	}
}

// Canceled tells implementations that nothing more of the batch is to be sent.
func (b *Batch) Canceled() bool { return b.canceled.Load() }

// CancelC is closed by Cancel, for implementations that wait for room.
func (b *Batch) CancelC() <-chan struct{} { return b.cancelC }

// NotSent is the error of an entry that Cancel kept from the device.
func (b *Batch) NotSent(op Op, target string) error {
	return base.Wrap(op.String(), target, fmt.Errorf("not sent to the device: %w", context.Canceled))
}

// Ended reports whether every entry has its answer.
func (b *Batch) Ended() bool { return b.left.Load() == 0 }

// EndedC wakes pollers: it is readable at some time after the last entry ended.
// It may also be readable early, so look at Ended again; and look at Ended after the
// call, before sleeping.
func (b *Batch) EndedC() <-chan struct{} {
	b.sleeps.Store(true)
	return b.done
}

// Wait returns nil once every entry ended; the entries hold their own errors.
// If ctx ends first it returns an ErrTimeout that wraps the context's error:
// the requests are then still in flight, their memory and extents still in use,
// and Wait must be called again. One goroutine at a time may wait.
func (b *Batch) Wait(ctx context.Context) error {
	if !b.active.Load() {
		return base.Errorf("wait", "batch", base.ErrInvalid, "it was not submitted")
	}
	if !b.Ended() {
		if err := b.poller.PollBatch(ctx, b); err != nil && !b.Ended() {
			return base.Errorf("wait", "batch", base.ErrTimeout, "%w", err)
		}
	}
	b.active.Store(false)
	return nil
}

// Err returns the first entry's error, or nil. Call it after Wait.
func (b *Batch) Err() error {
	for i := range b.Reqs {
		if err := b.Reqs[i].Err; err != nil {
			return err
		}
	}
	return nil
}

// Do submits the requests as one batch and waits for all of them. When ctx ends
// first, Do goes on waiting: it returns only when no request is in flight, so
// the caller's memory is free again. The error is the first entry's.
func Do(ctx context.Context, d Device, reqs ...Request) error {
	b := Batch{Reqs: reqs}
	if err := d.Submit(ctx, &b); err != nil {
		return err
	}
	if err := b.Wait(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	return b.Err()
}

// Flusher is a Device that flushes in the calling thread where that is quicker than
// Submit and Wait: a blocking system call needs no other thread.
type Flusher interface {
	// FlushHere is OpFlush; it returns when the flush has ended, however long
	// that takes. Errors are those of a request.
	FlushHere() error
}

// Flush makes every write that ended before the call durable. It returns when the
// flush has ended, also if ctx ended before.
func Flush(ctx context.Context, d Device) error {
	if f, ok := d.(Flusher); ok && ctx.Err() == nil {
		return f.FlushHere()
	}
	return Do(ctx, d, Request{Op: OpFlush})
}
