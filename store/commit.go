package store

import (
	"context"
	"errors"
	"time"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/mutant"
	"github.com/ugds-store/ugds/meta"
)

// A round goes through two goroutines, so that the flush of one round overlaps
// the commit of the round before. flushLoop closes the set and makes its data
// durable; commitLoop commits and publishes, one round after the other in their
// order.

// flushLoop sleeps until somebody waits, a relaxed operation comes of age, or an
// idle store owes a mark.
func (s *Store) flushLoop() {
	defer s.loops.Done()
	defer close(s.flushed)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-s.kick:
		case <-timer.C:
		}
		for s.roundDue() {
			if r := s.flushRound(); r != nil {
				s.flushed <- r // waits until the round before is published
			}
		}
		timer.Reset(s.untilNext())
		s.idleWork()
	}
}

// roundDue reports whether a round should begin now.
func (s *Store) roundDue() bool {
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	return len(s.q.ops) > 0 && (s.q.urgent || len(s.q.ops) >= MaxRoundOps ||
		time.Since(s.q.oldest) >= s.opts.RoundAge)
}

// untilNext is how long the committer may sleep.
func (s *Store) untilNext() time.Duration {
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	if len(s.q.ops) > 0 {
		return max(0, s.opts.RoundAge-time.Since(s.q.oldest))
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
}

// flushRound closes a set, writes what was deferred, flushes, and withdraws what
// did not become durable.
func (s *Store) flushRound() *flushedRound {
	s.roundMu.Lock()
	defer s.roundMu.Unlock()
	set := s.closeSet()
	if len(set) == 0 {
		return nil
	}
	s.count.rounds.Add(1)
	s.writeDeferred(set)
	if mutant.On(mutant.ApplyBeforeFlush) {
		s.applyEarly(set)
	}
	if mutant.On(mutant.PublishBeforeCommit) {
		s.publishEarly(set)
	}
	failed := s.flushSet(set)
	if mutant.On(mutant.LateJoiner) {
		late := s.closeSet()
		s.writeDeferred(late)
		set = append(set, late...)
		failed = append(failed, make([]error, len(set)-len(failed))...)
	}
	r := &flushedRound{set: set}
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
	return r
}

// commitLoop commits rounds and publishes them.
func (s *Store) commitLoop() {
	defer s.loops.Done()
	batch := meta.NewBatch()
	for r := range s.flushed {
		batch.Reset()
		for _, o := range r.live {
			addToBatch(batch, o)
		}
		err := s.commit(batch, r.top, len(r.live))
		s.finishRound(r.set, r.live, r.top, err)
		s.settled(r.set)
		s.marks.lastRound.Store(time.Now().UnixNano())
		s.wake() // a mark is owed, or operations came meanwhile
	}
}

// closeSet takes the finished operations, at most MaxRoundOps.
func (s *Store) closeSet() []*op {
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	n := min(len(s.q.ops), MaxRoundOps)
	set := append([]*op(nil), s.q.ops[:n]...)
	rest := copy(s.q.ops, s.q.ops[n:])
	clear(s.q.ops[rest:])
	s.q.ops = s.q.ops[:rest]
	s.q.round = append(s.q.round, set...)
	s.q.urgent = rest > 0 && s.q.urgent
	s.q.oldest = time.Now()
	if rest == 0 {
		s.q.oldest = time.Time{}
	}
	return set
}

func addToBatch(b *meta.Batch, o *op) {
	if o.kind == opDelete {
		b.Delete(o.ns.id, o.key)
		return
	}
	b.Put(o.ns.id, o.key, o.next.record())
}

// record is the version as it stands in the metadata.
func (v *version) record() *meta.Record {
	r := &meta.Record{Gen: v.gen, Length: v.length}
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
	return r
}

// commit makes the batch durable.
func (s *Store) commit(b *meta.Batch, top uint64, n int) error {
	if n == 0 {
		return nil
	}
	if err := s.ReadOnly(); err != nil {
		return err
	}
	b.SetLastGen(top)
	// The metadata's own commit deadline bounds this.
	return s.db.Commit(context.Background(), b)
}

// finishRound publishes and answers.
func (s *Store) finishRound(set, live []*op, top uint64, err error) {
	if err != nil {
		s.failRound(set, live, err)
		return
	}
	if len(live) > 0 {
		s.marks.committed.Store(top)
		s.count.roundOps.Add(int64(len(live)))
	}
	s.q.mu.Lock()
	s.q.leave(len(set))
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

// leave forgets the n oldest operations of the rounds under way. The caller
// holds q.mu.
func (q *queue) leave(n int) {
	rest := copy(q.round, q.round[n:])
	clear(q.round[rest:])
	q.round = q.round[:rest]
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
	s.q.ops = nil
	s.q.leave(len(set))
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
	b := meta.NewBatch()
	var top uint64
	for _, o := range set {
		if o.kind != opBarrier {
			addToBatch(b, o)
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
