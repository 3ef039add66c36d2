package meta

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/ugds-store/ugds/internal/base"
)

// Batch collects changes for one commit. It is not safe for concurrent use. The
// zero value is not usable; NewBatch makes one.
type Batch struct {
	pb      *pebble.Batch
	lastGen uint64
	hasGen  bool
	n       int
	err     error // the first invalid argument; Commit returns it
	sent    bool  // it was given to a commit and must be reset before it is used again
	lost    bool  // that commit's outcome is unknown: Pebble may still read it
}

// NewBatch returns an empty batch, for any DB.
func NewBatch() *Batch { return &Batch{pb: new(pebble.Batch)} }

// NewBatch returns an empty batch.
func (d *DB) NewBatch() *Batch { return NewBatch() }

// Put sets the record of an object. Key and record are copied. An invalid key or
// record makes Commit fail with ErrInvalid.
func (b *Batch) Put(ns uint32, key []byte, r *Record) {
	if b.fail(checkKey(ns, key)) {
		return
	}
	if why := r.check(); why != "" {
		b.fail(base.Errorf("put record", printKey(appendObjectKey(nil, ns, key)), base.ErrInvalid, "%s", why))
		return
	}
	op := b.pb.SetDeferred(objectPrefixLen+len(key), r.encodedLen())
	appendObjectKey(op.Key[:0], ns, key)
	r.encode(op.Key, op.Value)
	_ = op.Finish()
	b.n++
}

// Delete removes the record of an object; a missing one is no error.
func (b *Batch) Delete(ns uint32, key []byte) {
	if b.fail(checkKey(ns, key)) {
		return
	}
	op := b.pb.DeleteDeferred(objectPrefixLen + len(key))
	appendObjectKey(op.Key[:0], ns, key)
	_ = op.Finish()
	b.n++
}

// SetLastGen says which generation is the last one that this commit covers. It
// may not fall below that of an earlier commit.
func (b *Batch) SetLastGen(g uint64) { b.lastGen, b.hasGen = g, true }

// Len is the number of puts and deletes.
func (b *Batch) Len() int { return b.n }

// Bytes is about what the commit will write to the log.
func (b *Batch) Bytes() int64 { return int64(b.pb.Len()) }

// Reset empties the batch for reuse, whatever became of its commit.
func (b *Batch) Reset() {
	if b.lost {
		*b = Batch{pb: new(pebble.Batch)}
		return
	}
	b.pb.Reset()
	*b = Batch{pb: b.pb}
}

func (b *Batch) fail(err error) bool {
	if err != nil && b.err == nil {
		b.err = err
	}
	return err != nil
}

// Commit makes the batch durable as a whole: one log write, one fdatasync.
// Commits are serial, in the order in which they get their turn. Errors:
//
//   - ErrInvalid: the batch is not valid; nothing was sent.
//   - ErrReadOnly: the DB is read-only or fenced; nothing was sent. With
//     ErrMetaFull when a full disk is the reason.
//   - ErrTimeout or the context's error: ctx ended before the batch had its turn;
//     nothing was sent. Once sent, the context does not matter.
//   - ErrUnknown: the commit failed or passed the deadline. The next open shows
//     the batch as a whole or not at all; until then this DB is fenced and reads
//     show the state before. With ErrMetaFull when a full disk is the reason.
//
// After any outcome the batch must be Reset before it is filled again. An empty
// batch without a generation is no commit.
func (d *DB) Commit(ctx context.Context, b *Batch) error {
	if err := d.life.enter("commit"); err != nil {
		return err
	}
	defer d.life.leave()
	if b.err != nil {
		return base.Wrap("commit", "", b.err)
	}
	if b.sent {
		return base.Errorf("commit", "", base.ErrInvalid, "the batch was committed before and not reset")
	}
	if b.n == 0 && !b.hasGen {
		return nil
	}
	return d.commit(ctx, "commit", b.pb, func() error { return d.seal(b) }, func() {
		if b.hasGen {
			d.header.LastGen = b.lastGen
		}
	}, &b.lost)
}

// seal adds the generation to a batch that is about to be sent.
func (d *DB) seal(b *Batch) error {
	if b.hasGen {
		if last := d.Header().LastGen; b.lastGen < last {
			return base.Errorf("commit", "", base.ErrInvalid, "generation %d after %d", b.lastGen, last)
		}
		_ = b.pb.Set(keyLastGen, encodeSingleton(keyLastGen, b.lastGen), nil)
	}
	b.sent = true
	return nil
}

// RaiseEpoch stores a higher epoch, durable when it returns. ErrInvalid when it
// is not higher; other errors are those of Commit.
func (d *DB) RaiseEpoch(ctx context.Context, epoch uint64) error {
	if err := d.life.enter("raise epoch"); err != nil {
		return err
	}
	defer d.life.leave()
	pb := new(pebble.Batch)
	return d.commit(ctx, "raise epoch", pb, func() error {
		if have := d.Header().Epoch; epoch <= have {
			return base.Errorf("raise epoch", "", base.ErrInvalid, "epoch %d after %d", epoch, have)
		}
		return pb.Set(keyEpoch, encodeSingleton(keyEpoch, epoch), nil)
	}, func() { d.header.Epoch = epoch }, nil)
}

// commit waits for its turn, lets fill complete the batch, sends it and, when
// it is durable, runs done under d.mu. lost, if not nil, is set when the outcome
// is unknown.
func (d *DB) commit(ctx context.Context, op string, pb *pebble.Batch, fill func() error, done func(), lost *bool) error {
	if d.o.ReadOnly {
		return base.Errorf(op, d.o.Dir, base.ErrReadOnly, "opened read-only")
	}
	select {
	case d.turn <- struct{}{}:
	case <-d.fence.ch:
		return d.readOnly(op)
	case <-ctx.Done():
		return d.late(op, ctx)
	}
	defer func() { <-d.turn }()
	switch {
	case d.fence.err() != nil:
		return d.readOnly(op)
	case ctx.Err() != nil:
		return d.late(op, ctx)
	}
	if err := fill(); err != nil {
		return err
	}
	err := d.send(pb)
	if err == errNotSent {
		return d.readOnly(op)
	}
	if err != nil {
		d.fs.stats.failed.Add(1)
		if lost != nil {
			*lost = true
		}
		e := base.Errorf(op, d.o.Dir, base.ErrUnknown, "%w", err)
		return base.WithHint(e, "the store is read-only now; open it again to see which state it is in")
	}
	d.fs.stats.commits.Add(1)
	d.mu.Lock()
	done()
	d.mu.Unlock()
	return nil
}

// job is a batch on its way through the committer. Whoever moves verdict away
// from 0 decides what the caller hears and readers see: a commit that was given
// up stays invisible even if it succeeds afterwards.
type job struct {
	pb      *pebble.Batch
	verdict atomic.Int32
	answer  chan error
}

const (
	answered = 1
	givenUp  = 2
)

// errNotSent tells that the committer did not take the batch.
var errNotSent = errors.New("not sent")

// send gives the batch to the committer and waits for the answer. Any error
// but errNotSent means that the outcome is unknown and the fence is down.
func (d *DB) send(pb *pebble.Batch) error {
	timer := time.NewTimer(d.o.CommitDeadline)
	defer timer.Stop()
	j := &job{pb: pb, answer: make(chan error, 1)}
	select {
	case d.jobs <- j:
	case <-d.fence.ch:
		return errNotSent
	case <-timer.C: // never: the committer is idle, since only the holder of the turn sends
		return errNotSent
	}
	select {
	case err := <-j.answer:
		return err
	case <-d.fence.ch:
	case <-timer.C:
		d.fence.trip(base.Errorf("commit", d.o.Dir, base.ErrTimeout, "not durable within %v", d.o.CommitDeadline))
	}
	if !j.verdict.CompareAndSwap(0, givenUp) {
		return <-j.answer // nothing that can block lies before it
	}
	parked.Add(1) // the committer waits for a parked goroutine, or comes back
	return d.fence.err()
}

func (d *DB) readOnly(op string) error {
	return base.Errorf(op, d.o.Dir, base.ErrReadOnly, "fenced: %w", d.fence.err())
}

func (d *DB) late(op string, ctx context.Context) error {
	return base.Errorf(op, d.o.Dir, base.ErrTimeout, "before its turn, nothing was sent: %w", context.Cause(ctx))
}

// committer applies batches, one at a time, on its own goroutine: on Pebble's
// fatal path it is parked.
func (d *DB) committer() {
	for j := range d.jobs {
		snap, err := d.apply(j.pb, pebble.Sync)
		if err != nil {
			d.fence.trip(err)
		}
		if !j.verdict.CompareAndSwap(0, answered) {
			parked.Add(-1)
			return
		}
		if err == nil {
			d.views.install(snap)
		}
		j.answer <- err
		if d.views.full() {
			select {
			case d.reap <- struct{}{}:
			default:
			}
		}
	}
}

// reaper closes views until the last user of a closing DB has left.
func (d *DB) reaper() {
	defer close(d.reaped)
	for {
		select {
		case <-d.reap:
			d.views.reap()
		case <-d.life.idle:
			return
		}
	}
}

// apply commits pb and takes the view behind it.
func (d *DB) apply(pb *pebble.Batch, how *pebble.WriteOptions) (snap *pebble.Snapshot, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = panicError(r)
		}
	}()
	if err := d.p.Apply(pb, how); err != nil {
		return nil, err
	}
	return d.p.NewSnapshot(), nil
}

// ApplyUnsynced makes the batch visible without a sync. It exists to show that
// the laboratory notices; without the build tag ugds_mutants it fails.
func (d *DB) ApplyUnsynced(b *Batch) error {
	if !applyUnsynced {
		return errors.ErrUnsupported
	}
	if err := d.life.enter("apply"); err != nil {
		return err
	}
	defer d.life.leave()
	if d.fence.err() != nil {
		return d.readOnly("apply")
	}
	copied := new(pebble.Batch)
	if err := copied.Apply(b.pb, nil); err != nil {
		return base.Wrap("apply", d.o.Dir, err)
	}
	snap, err := d.apply(copied, pebble.NoSync)
	if err != nil {
		return base.Wrap("apply", d.o.Dir, err)
	}
	d.views.install(snap)
	return nil
}
