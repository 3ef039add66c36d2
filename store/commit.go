package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/mutant"
	"github.com/ugds-store/ugds/meta"
)

// A round goes through two goroutines, so that the flush of one round can overlap
// the commit of the round before. flushLoop closes the set and makes its data
// durable; commitLoop commits and publishes, one round after the other in their
// order.

// flushLoop sleeps until somebody waits, a relaxed operation comes of age, or an
// idle store owes a mark.
func (s *Store) flushLoop() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-s.stop:
			close(s.flushed)
			s.loops.Done()
			return
		case <-s.kick:
		case <-timer.C:
		}
		for s.roundDue() {
			if r := s.flushRound(timer); r != nil && !s.passOn(r) {
				return
			}
		}
		timer.Reset(s.untilNext())
		s.idleWork()
	}
}

// passOn gives the round to commitLoop, or commits it here, which saves a hand-over,
// if the round before is published and no operation waits for this goroutine. False
// when another goroutine took the place of this one.
func (s *Store) passOn(r *flushedRound) bool {
	if s.committing.Load() == 0 && !s.busy() {
		return s.commitRound(r, func() { go s.flushLoop() })
	}
	s.committing.Add(1)
	s.flushed <- r // waits until the round before is published
	return true
}

// roundDue reports whether a round should begin now.
func (s *Store) roundDue() bool {
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	now := time.Now()
	s.q.giveUp(now)
	return len(s.q.ops) > 0 && (s.q.due() || now.Sub(s.q.oldest) >= s.opts.RoundAge)
}

// untilNext is how long the committer may sleep.
func (s *Store) untilNext() time.Duration {
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	if len(s.q.ops) > 0 {
		now := time.Now()
		wait := s.opts.RoundAge - now.Sub(s.q.oldest)
		if s.q.light > 0 && s.q.light < s.q.expect {
			wait = min(wait, s.q.patience(now))
		}
		return max(0, wait)
	}
	if s.markOwed() {
		return s.opts.IdleMark
	}
	return time.Hour
}

// idleWork writes the mark of the last round and discards empty slabs, unless
// there are operations to commit.
func (s *Store) idleWork() {
	if s.busy() {
		return
	}
	if s.markOwed() && time.Since(time.Unix(0, s.marks.lastRound.Load())) >= s.opts.IdleMark {
		// An error isolates the device, and the next round or mark tries again.
		_ = s.markRound(context.Background())
		s.wakeDiscarder()
	}
}

// flushedRound is a set whose data is durable, on its way to the commit.
type flushedRound struct {
	set  []*op // as it was closed, barriers and failed operations included
	live []*op // to be committed
	top  uint64

	batch *meta.Batch // of live
	began time.Time
}

// flushRound closes a set, writes what was deferred, flushes, and withdraws what
// did not become durable.
func (s *Store) flushRound(timer *time.Timer) *flushedRound {
	s.roundMu.Lock()
	defer s.roundMu.Unlock()
	r := &flushedRound{began: time.Now(), batch: s.batches[s.count.rounds.Load()%2]} // the other one is being committed
	io := s.newRoundIO()
	set, more := s.closeSet(io, MaxRoundOps)
	if len(set) == 0 {
		return nil
	}
	if more {
		io.startEarly(s)
		s.gather(timer)
		late, _ := s.closeSet(io, MaxRoundOps-len(set))
		set = append(set, late...)
	}
	s.count.rounds.Add(1)
	if mutant.On(mutant.ApplyBeforeFlush) {
		s.applyEarly(set)
	}
	failed := s.flushSet(io, set, func() {
		s.sumDeferred(set)
		r.fill(set)
		growFor(set)
	})
	if mutant.On(mutant.PublishBeforeCommit) {
		s.publishEarly(set)
	}
	if mutant.On(mutant.LateJoiner) {
		io := s.newRoundIO()
		late, _ := s.closeSet(io, MaxRoundOps)
		s.sumDeferred(late)
		io.start(s)
		io.finish(s)
		set = append(set, late...)
		failed = append(failed, make([]error, len(set)-len(failed))...)
	}
	r.set, r.live = set, make([]*op, 0, len(set))
	for i, o := range set {
		r.top = max(r.top, o.gen)
		switch {
		case o.kind == opBarrier:
		case failed[i] != nil:
			s.withdraw(o, failed[i])
		default:
			r.live = append(r.live, o)
			if mutant.On(mutant.DeleteBeforeReuse) {
				s.freeNow(o.old.exts)
				o.old.exts = nil
			}
		}
	}
	if r.batch.Len() != len(r.live) {
		r.fill(r.live)
	}
	return r
}

// fill makes the batch of the round. A round has a key at most once, so that its
// order does not matter; in that of the keys Pebble inserts them faster.
func (r *flushedRound) fill(ops []*op) {
	r.batch.Reset()
	sorted := make([]*op, 0, len(ops))
	for _, o := range ops {
		if o.kind != opBarrier {
			sorted = append(sorted, o)
		}
	}
	slices.SortFunc(sorted, func(a, b *op) int {
		return cmp.Or(cmp.Compare(a.ns.id, b.ns.id), bytes.Compare(a.key, b.key))
	})
	var rec meta.Record
	for _, o := range sorted {
		addToBatch(r.batch, &rec, o)
	}
}

// growFor makes room in the index while the devices write: callers wait for the
// publication, which would have to do it otherwise.
func growFor(set []*op) {
	for _, o := range set {
		if o.kind == opPut {
			o.sh.prepare()
		}
	}
}

// commitLoop commits rounds and publishes them.
func (s *Store) commitLoop() {
	next := func() {
		s.committing.Add(-1)
		s.wake() // a mark is owed, or operations came meanwhile
	}
	for r := range s.flushed {
		if !s.commitRound(r, func() { next(); go s.commitLoop() }) {
			return
		}
		next()
	}
	s.loops.Done()
}

// commitRound commits a round and publishes it. When the metadata does not answer in
// time, another goroutine ends the round and calls takeOver; this one should then end
// if it ever comes back (false).
func (s *Store) commitRound(r *flushedRound, takeOver func()) bool {
	if len(r.live) == 0 {
		s.endRound(r, nil)
		return true
	}
	if err := s.ReadOnly(); err != nil {
		s.endRound(r, err)
		return true
	}
	r.batch.SetLastGen(r.top)
	// The metadata's own commit deadline bounds this.
	here, err := s.db.CommitHere(context.Background(), r.batch, func(err error) {
		s.endRound(r, err)
		takeOver()
	})
	if here {
		s.endRound(r, err)
	}
	return here
}

// endRound publishes a round whose commit had this answer, or ends it.
func (s *Store) endRound(r *flushedRound, err error) {
	s.ending.Add(1)
	defer s.ending.Add(-1)
	s.finishRound(r, err)
	s.settled(r.set)
	s.marks.lastRound.Store(time.Now().UnixNano())
}

// closeSet takes the finished operations into the round and plans their writes.
func (s *Store) closeSet(io *roundIO, limit int) (set []*op, more bool) {
	s.q.mu.Lock()
	set, more = s.q.close(limit)
	s.q.mu.Unlock()
	io.add(s, set)
	return set, more
}

// gather waits for the second part of a set.
func (s *Store) gather(timer *time.Timer) {
	for {
		now := time.Now()
		s.q.mu.Lock()
		s.q.giveUp(now)
		due, wait := s.q.due(), s.q.patience(now)
		s.q.mu.Unlock()
		if due {
			return
		}
		timer.Reset(wait)
		select {
		case <-s.kick:
		case <-timer.C:
		}
	}
}

// addToBatch adds o to b, by way of r.
func addToBatch(b *meta.Batch, r *meta.Record, o *op) {
	if o.kind == opDelete {
		b.Delete(o.ns.id, o.key)
		return
	}
	o.next.record(r)
	b.Put(o.ns.id, o.key, r)
}

// record makes r the version as it stands in the metadata.
func (v *version) record(r *meta.Record) {
	*r = meta.Record{Gen: v.gen, Length: v.length, Extents: r.Extents[:0]}
	switch {
	case v.noCRC:
		r.Flags |= meta.FlagNoChecksum
	case v.pieces() > 1:
		r.CRC, r.PieceCRCs = v.crc, v.sums
	default:
		r.CRC = v.crc
	}
	for _, e := range v.exts {
		r.Extents = append(r.Extents, e.Pack())
	}
}

// finishRound publishes and answers.
func (s *Store) finishRound(r *flushedRound, err error) {
	set, live, top := r.set, r.live, r.top
	if err != nil {
		s.failRound(set, live, err)
		return
	}
	if len(live) > 0 {
		s.marks.committed.Store(top)
		s.count.roundOps.Add(int64(len(live)))
	}
	s.q.mu.Lock()
	s.q.leave(len(set), time.Since(r.began))
	s.q.mu.Unlock()
	for _, o := range live {
		s.publish(o, top)
	}
	for _, o := range set {
		if o.kind == opBarrier {
			s.decide(o, s.ReadOnly())
		}
	}
}

// publish ends a committed operation: a sync one becomes visible, and what it
// replaced or deleted is given back.
func (s *Store) publish(o *op, top uint64) {
	o.sh.mu.Lock()
	var err error
	switch {
	case o.relaxed && o.kind == opPut:
		o.sh.harden(o.fp, o.gen)
	case !o.relaxed:
		err = s.show(o, false)
	}
	if o.hasOld && err == nil {
		s.drop(o.sh, &o.old, top)
	}
	if err == nil && s.events.n.Load() == 0 && !mutant.On(mutant.PublishBeforeCommit) {
		// Nobody waits for the event, which must come before the key is free.
		delete(o.sh.busy, o.fp)
		o.sh.mu.Unlock()
		close(o.done)
		return
	}
	o.sh.mu.Unlock()
	if err != nil {
		// Durable, but the index has no memory for it: the truth comes back at
		// the next open.
		s.setReadOnly(err)
		err = base.Errorf("publish", keyText(o.key), ErrUnknown, "%w", err)
	}
	if !o.relaxed {
		s.emitOp(o)
	}
	s.decide(o, err)
}

// failRound ends a round whose commit failed. If nothing reached the metadata
// the operations did not happen. Otherwise the outcome is unknown until the
// next open: the extents of both states stay as they are.
func (s *Store) failRound(set, live []*op, err error) {
	unknown := errors.Is(err, ErrUnknown)
	s.setReadOnly(err)
	for _, o := range live {
		s.takeBack(o, err)
		if unknown && mutant.On(mutant.FreeAfterFailed) {
			s.freeNow(o.next.exts)
			s.freeNow(o.old.exts)
			s.discardExtents(o.old.exts)
		}
	}
	s.q.mu.Lock()
	rest := s.q.ops
	s.q.ops, s.q.light = nil, 0
	s.q.leave(len(set), 0)
	s.q.mu.Unlock()
	for _, o := range live {
		s.decide(o, base.Wrap(o.verb(), keyText(o.key), err))
	}
	ro := s.ReadOnly()
	for _, o := range rest {
		if o.kind != opBarrier {
			s.takeBack(o, ro)
		}
		s.decide(o, ro)
	}
	s.settled(rest)
	for _, o := range set {
		if o.kind == opBarrier {
			s.decide(o, ro)
		}
	}
}

func (o *op) verb() string { return [...]string{"put", "delete", "flush"}[o.kind] }

// takeBack makes a relaxed operation invisible again, with its event.
func (s *Store) takeBack(o *op, cause error) {
	if !o.relaxed {
		return
	}
	o.sh.mu.Lock()
	s.unshow(o)
	o.sh.mu.Unlock()
	s.count.withdrawn.Add(1)
	s.sticky.CompareAndSwap(nil, &cause)
	s.events.emit(Event{Kind: EventLost, Namespace: o.ns.name, Key: o.key, Size: o.next.length,
		Generation: o.gen, Err: cause})
}

// withdraw ends an operation whose data did not reach the medium. Nothing named
// it durably, so its extents are free at once.
func (s *Store) withdraw(o *op, cause error) {
	s.takeBack(o, cause)
	o.sh.mu.Lock()
	s.drop(o.sh, &o.next, 0)
	o.sh.mu.Unlock()
	s.decide(o, cause)
}

// withdrawDevice withdraws every queued operation that no completed flush of
// the device covers. It runs before the device is brought back.
func (s *Store) withdrawDevice(dev int) {
	s.roundMu.Lock()
	defer s.roundMu.Unlock()
	s.ending.Add(1)
	defer s.ending.Add(-1)
	s.q.mu.Lock()
	var gone []*op
	keep := s.q.ops[:0]
	for _, o := range s.q.ops {
		if o.touches(dev) && s.stale(o) != nil {
			gone = append(gone, o)
			continue
		}
		keep = append(keep, o)
	}
	clear(s.q.ops[len(keep):])
	s.q.ops = keep
	s.q.light -= lightOps(gone)
	s.q.mu.Unlock()
	for _, o := range gone {
		s.withdraw(o, s.stale(o))
	}
	s.settled(gone)
}

func (o *op) touches(dev int) bool {
	for _, st := range o.stamps {
		if st.dev == dev {
			return true
		}
	}
	return false
}

// applyEarly and publishEarly exist only for the laboratory's mutants.
func (s *Store) applyEarly(set []*op) {
	s.sumDeferred(set)
	b := meta.NewBatch()
	var top uint64
	for _, o := range set {
		if o.kind != opBarrier {
			addToBatch(b, new(meta.Record), o)
			top = max(top, o.gen)
		}
	}
	b.SetLastGen(top)
	_ = s.db.ApplyUnsynced(b)
}

// publishEarly answers sync operations as if they were relaxed ones, so that
// nothing but their promise is broken.
func (s *Store) publishEarly(set []*op) {
	for _, o := range set {
		if o.kind == opBarrier || o.relaxed {
			continue
		}
		o.relaxed = true
		o.sh.mu.Lock()
		_ = s.show(o, true)
		o.sh.mu.Unlock()
		s.q.mu.Lock()
		s.q.relaxed += o.next.length
		s.q.mu.Unlock()
		s.emitOp(o)
		close(o.done)
	}
}
