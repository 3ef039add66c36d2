package meta

import (
	"context"
	"errors"

	"github.com/ugds-store/ugds/internal/base"
)

// Close turns new users away with ErrClosed, lets commits that are under way
// end, waits for open iterators and closes the database. It returns at the end
// of ctx, and after 120 s at the latest, with
//
//   - ErrBusy when users remain; Close may be called again,
//   - ErrTimeout when the disk does not answer: the fence falls, and the lock is
//     released as soon as the last change that is under way has ended.
//
// Behind the fence Pebble is abandoned: descriptors and lock are given back,
// its memory is not.
func (d *DB) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeDeadline)
	defer cancel()
	d.life.end()
	select {
	case <-d.life.idle: // also when ctx is over already
	default:
		select {
		case <-d.life.idle:
		case <-ctx.Done():
			return base.Errorf("close metadata", d.o.Dir, base.ErrBusy, "%d users, %d of them iterators, remain",
				d.life.users(), d.iters.Load())
		}
	}
	d.closeOnce.Do(func() { go d.shutDown() })
	select {
	case <-d.closed:
		return d.closeErr
	case <-d.fence.ch:
	case <-ctx.Done():
		d.fence.trip(base.Errorf("close metadata", d.o.Dir, base.ErrTimeout, "%w", context.Cause(ctx)))
	}
	select {
	case <-d.closed:
		return d.closeErr
	case <-ctx.Done():
		return base.Errorf("close metadata", d.o.Dir, base.ErrTimeout, "%w", context.Cause(ctx))
	}
}

// shutDown closes Pebble, or abandons it behind the fence, and then gives the
// lock back.
func (d *DB) shutDown() {
	defer close(d.closed)
	if d.fence.err() != nil {
		d.abandon()
		d.closeErr = d.lock.release()
		return
	}
	done := make(chan error, 1)
	go func() {
		var err error
		defer func() {
			if r := recover(); r != nil {
				err = panicError(r)
			}
			done <- err
		}()
		d.fs.closing.Store(true)
		select {
		case <-d.reaped:
		case <-d.fence.ch: // the reaper may wait for Pebble's mutex for ever
			err = d.fence.err()
			return
		}
		d.views.close()
		err = d.p.Close()
	}()
	select {
	case err := <-done:
		d.fs.closeFiles()
		if err == nil {
			restoreBallast(d.o, d.fs)
		}
		d.closeErr = errors.Join(base.Wrap("close metadata", d.o.Dir, err), d.lock.release())
	case <-d.fence.ch:
		d.abandon()
		d.closeErr = errors.Join(base.Wrap("close metadata", d.o.Dir, d.fence.err()), d.lock.release())
	}
}

// discard closes a DB that was never handed out; the lock stays the caller's.
func (d *DB) discard() {
	d.lock = &dirLock{free: func() error { return nil }}
	_ = d.Close(context.Background())
}

// abandon leaves Pebble as it is: the fence falls if it has not yet, and when
// the last change has left the file system the descriptors are closed.
func (d *DB) abandon() {
	d.fence.trip(base.Errorf("close metadata", d.o.Dir, base.ErrClosed, "abandoned"))
	d.fs.waitDrained(nil)
	d.fs.closeFiles()
}
