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
//     show the state before. With ErrMetaFull when a full disk is the reason, with
//     ErrLocked when the file LOCK was removed or replaced.
//
// After any outcome the batch must be Reset before it is filled again. An empty
// batch without a generation is no commit.
func (d *DB) Commit(ctx context.Context, b *Batch) error {
	return await(func(lost func(error)) (bool, error) { return d.CommitHere(ctx, b, lost) })
}

// CommitHere is Commit in the calling goroutine, which saves two hand-overs. On
// Pebble's fatal path that goroutine is parked for ever, and on a disk that does not
// answer it comes back late. Then lost is called in its place, with the answer,
// once, in another goroutine; and should CommitHere return after all, it tells with
// !here that its caller was given up and has to end.
func (d *DB) CommitHere(ctx context.Context, b *Batch, lost func(error)) (here bool, err error) {
	if b.err != nil {
		return true, base.Wrap("commit", "", b.err)
	}
	if b.sent {
		return true, base.Errorf("commit", "", base.ErrInvalid, "the batch was committed before and not reset")
	}
	if b.n == 0 && !b.hasGen {
		return true, d.ended("commit")
	}
	return d.commit(ctx, change{op: "commit", pb: b.pb, lost: &b.lost,
		fill: func() error { return d.seal(b) },
		done: func() {
			if b.hasGen {
				d.header.LastGen = b.lastGen
			}
		}}, lost)
}

// await runs a commit in a goroutine of its own, which may be given up.
func await(commit func(lost func(error)) (bool, error)) error {
	answer := make(chan error, 1)
	go func() {
		if here, err := commit(func(err error) { answer <- err }); here {
			answer <- err
		}
	}()
	return <-answer
}

// ended is ErrClosed once Close has begun.
func (d *DB) ended(op string) error {
	err := d.life.enter(op)
	if err == nil {
		d.life.leave()
	}
	return err
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
	pb := new(pebble.Batch)
	c := change{op: "raise epoch", pb: pb, fill: func() error {
		if have := d.Header().Epoch; epoch <= have {
			return base.Errorf("raise epoch", "", base.ErrInvalid, "epoch %d after %d", epoch, have)
		}
		return pb.Set(keyEpoch, encodeSingleton(keyEpoch, epoch), nil)
	}, done: func() { d.header.Epoch = epoch }}
	return await(func(lost func(error)) (bool, error) { return d.commit(ctx, c, lost) })
}

// change is what one commit does.
type change struct {
	op   string
	pb   *pebble.Batch
	fill func() error // completes the batch, when the commit has its turn
	done func()       // takes note of it under d.mu, when it is durable
	lost *bool        // if not nil: set when the outcome is unknown
}

// commit waits for its turn, sends c and takes note of it. here and lost are those
// of CommitHere.
func (d *DB) commit(ctx context.Context, c change, lost func(error)) (here bool, err error) {
	if err := d.life.enter(c.op); err != nil {
		return true, err
	}
	if err := d.takeTurn(ctx, c.op); err != nil {
		d.life.leave()
		return true, err
	}
	over := func() { <-d.turn; d.life.leave() }
	if err := c.fill(); err != nil {
		over()
		return true, err
	}
	here, err = d.send(c.pb, func(cause error) {
		err := d.unknown(&c, cause)
		over()
		lost(err)
	})
	switch {
	case !here:
		return false, nil
	case err == errNotSent:
		err = d.readOnly(c.op)
	case err != nil:
		err = d.unknown(&c, err)
	default:
		d.fs.stats.commits.Add(1)
		d.mu.Lock()
		c.done()
		d.mu.Unlock()
	}
	over()
	return true, err
}

func (d *DB) takeTurn(ctx context.Context, op string) error {
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
	err := error(nil)
	switch {
	case d.fence.err() != nil:
		err = d.readOnly(op)
	case ctx.Err() != nil:
		err = d.late(op, ctx)
	}
	if err != nil {
		<-d.turn
	}
	return err
}

// unknown is the answer of a commit that failed on its way.
func (d *DB) unknown(c *change, cause error) error {
	d.fs.stats.failed.Add(1)
	if c.lost != nil {
		*c.lost = true
	}
	e := base.Errorf(c.op, d.o.Dir, base.ErrUnknown, "%w", cause)
	return base.WithHint(e, "the store is read-only now; open it again to see which state it is in")
}

// job is a batch that Pebble has. Whoever moves verdict away from 0 decides what the
// caller hears and readers see: a commit that was given up stays invisible even if
// it succeeds afterwards.
type job struct {
	verdict atomic.Int32
	lost    func(error)
}

const (
	answered = 1
	givenUp  = 2
)

// errNotSent tells that Pebble did not get the batch.
var errNotSent = errors.New("not sent")

// send gives the batch to Pebble. Any error but errNotSent means that the outcome is
// unknown and the fence is down. Only the holder of the turn sends.
func (d *DB) send(pb *pebble.Batch, lost func(error)) (here bool, err error) {
	j := &job{lost: lost}
	d.sent.Store(j)
	defer d.sent.CompareAndSwap(j, nil)
	if d.fence.err() != nil { // looked at behind Store: the watcher may have passed by
		return j.verdict.CompareAndSwap(0, answered), errNotSent
	}
	timer := time.AfterFunc(d.o.CommitDeadline, func() {
		if j.verdict.Load() == 0 {
			d.fence.trip(base.Errorf("commit", d.o.Dir, base.ErrTimeout, "not durable within %v", d.o.CommitDeadline))
		}
	})
	defer timer.Stop()
	snap, err := d.apply(pb, pebble.Sync)
	if err == nil {
		if err = d.lock.lost(); err != nil {
			_ = snap.Close() // it fails only when it is closed already
		}
	}
	if !j.verdict.CompareAndSwap(0, answered) {
		parked.Add(-1)
		return false, nil
	}
	if err != nil {
		d.fence.trip(err)
		return true, err
	}
	d.views.install(snap)
	if d.views.full() {
		select {
		case d.reap <- struct{}{}:
		default:
		}
	}
	return true, nil
}

// watchFence gives up the commit that is under way when the fence falls: its
// goroutine may be parked, wait for one that is, or wait for a disk.
func (d *DB) watchFence() {
	select {
	case <-d.fence.ch:
	case <-d.life.idle:
		return
	}
	if j := d.sent.Load(); j != nil && j.verdict.CompareAndSwap(0, givenUp) {
		parked.Add(1)
		j.lost(d.fence.err())
	}
}

func (d *DB) readOnly(op string) error {
	return base.Errorf(op, d.o.Dir, base.ErrReadOnly, "fenced: %w", d.fence.err())
}

func (d *DB) late(op string, ctx context.Context) error {
	return base.Errorf(op, d.o.Dir, base.ErrTimeout, "before its turn, nothing was sent: %w", context.Cause(ctx))
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
	d.logFirst.Store(true)
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
