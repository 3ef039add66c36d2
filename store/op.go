package store

import (
	"context"
	"slices"
	"time"

	"github.com/ugds-store/ugds/alloc"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/mutant"
)

type opKind uint8

const (
	opPut opKind = iota
	opDelete
	opBarrier
)

// op is one operation from the claim of its key until it is decided. The claim
// (shard.busy) keeps every other operation off the key, so a key has at most
// one version that is not yet durable and withdrawal is one step back.
type op struct {
	kind    opKind
	relaxed bool
	ns      *nsState
	key     []byte
	short   [40]byte // key, if it has room
	fp      fingerprint
	sh      *shard

	gen    uint64
	next   version // puts: the new version
	old    version // the durable version before, if hasOld
	hasOld bool
	stamps []stamp // puts: the devices written, and their incarnations then
	stamp  [1]stamp
	// buf holds the data of a small sync put until its round wrote it.
	buf   stageBuf
	light bool // its caller waits, and only a round is missing: small sync puts, sync deletes

	err  error
	done chan struct{} // closed when decided; err is valid then
}

// wait returns the operation's answer. When ctx ends first the operation goes
// on, and may still happen.
func (o *op) wait(ctx context.Context) error {
	if ctx.Done() == nil { // cheaper than a select
		<-o.done
		return o.err
	}
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		object := "store"
		if o.kind != opBarrier {
			object = keyText(o.key)
		}
		return base.WithHint(base.Errorf(o.verb(), object, ErrTimeout, "%w", ctx.Err()),
			"it was not awaited and may still happen")
	}
}

// claim reserves the key for o. It gives the operation that holds the key if
// there is one, and the caller waits for it and tries again.
func (s *Store) claim(o *op, replace bool) (holder *op, err error) {
	sh := o.sh
	sh.mu.Lock()
	defer sh.mu.Unlock()
	v, _, exists := sh.get(o.fp, nil)
	if o.kind == opPut && exists && !replace {
		return nil, base.Wrap("put", keyText(o.key), ErrExists)
	}
	if b := sh.busy[o.fp]; b != nil {
		return b, nil
	}
	if o.kind == opDelete && !exists {
		return nil, base.Wrap("delete", keyText(o.key), ErrNotFound)
	}
	o.old, o.hasOld = v, exists
	sh.busy[o.fp] = o
	return nil, nil
}

// claimWait claims the key, waiting for operations that hold it.
func (s *Store) claimWait(ctx context.Context, o *op, replace bool) error {
	for {
		holder, err := s.claim(o, replace)
		if holder == nil {
			return err
		}
		s.hurry()
		select {
		case <-holder.done:
		case <-ctx.Done():
			return base.Errorf("wait for the operation in flight on", keyText(o.key), ErrTimeout, "%w", ctx.Err())
		}
	}
}

// hurry closes the next round without waiting for its age.
func (s *Store) hurry() {
	s.q.mu.Lock()
	s.q.urgent = true
	s.q.mu.Unlock()
	s.wake()
}

// decide ends an operation: the key is free again and waiters go on.
// The caller holds no lock.
func (s *Store) decide(o *op, err error) {
	o.err = err
	if o.buf.ok() {
		s.stage.put(o.buf)
		o.buf = stageBuf{}
	}
	if o.kind != opBarrier {
		o.sh.mu.Lock()
		delete(o.sh.busy, o.fp)
		o.sh.mu.Unlock()
	}
	if mutant.On(mutant.PublishBeforeCommit) {
		select {
		case <-o.done: // it was answered early
			return
		default:
		}
	}
	close(o.done)
}

// stampsOf notes the incarnations of the devices of v, before they are written,
// behind dst.
func (s *Store) stampsOf(dst []stamp, v *version) []stamp {
	for _, e := range v.exts {
		d := int(e.Dev)
		if !slices.ContainsFunc(dst, func(st stamp) bool { return st.dev == d }) {
			dst = append(dst, stamp{d, s.devs[d].Incarnation()})
		}
	}
	return dst
}

// stale reports the first device that stopped since o was written.
func (s *Store) stale(o *op) error {
	for _, st := range o.stamps {
		if s.devs[st.dev].Incarnation() != st.inc && !mutant.On(mutant.WithdrawalAfterLoss) {
			return base.Errorf("put", keyText(o.key), ErrIsolated, "%s stopped before the data was flushed",
				s.devs[st.dev].Info().Target)
		}
	}
	return nil
}

// enqueue gives a finished operation its place in the commit order. A relaxed
// one becomes visible here. next and stamps are those of a put. On error nothing
// happened; the caller gives the extents back and decides the operation.
func (s *Store) enqueue(o *op, next version, stamps []stamp) error {
	o.sh.mu.Lock()
	s.q.mu.Lock()
	o.next, o.stamps = next, stamps // under sh.mu: readers find the operation in sh.busy
	err := s.enqueueLocked(o)
	// A relaxed operation that joins others finds the committer's timer running.
	due := s.q.due() || len(s.q.ops) == 1
	s.q.mu.Unlock()
	o.sh.mu.Unlock()
	if err != nil {
		return err
	}
	if o.relaxed {
		s.emitOp(o)
	}
	if mutant.On(mutant.DiscardBeforeDelete) {
		s.discardExtents(o.old.exts)
	}
	if due {
		s.wake()
	}
	return nil
}

func (s *Store) enqueueLocked(o *op) error {
	if err := s.ReadOnly(); err != nil {
		return err
	}
	// Under q.mu: a device that stops after this finds the operation in the
	// queue and withdraws it; one that stopped before is seen here.
	if err := s.stale(o); err != nil {
		return err
	}
	o.next.gen = s.q.gen + 1
	if o.relaxed {
		if err := s.show(o, true); err != nil {
			return err
		}
		s.q.relaxed += o.next.length
		s.q.urgent = s.q.urgent || s.q.relaxed > s.opts.VolatileBytes/2 || len(s.q.ops) >= MaxRoundOps
	} else if o.light = o.kind == opDelete || o.buf.ok(); o.light {
		s.q.light++
	} else {
		s.q.urgent = true
	}
	if len(s.q.ops) == 0 {
		s.q.oldest = time.Now()
	}
	s.q.gen++
	o.gen = s.q.gen
	s.q.ops = append(s.q.ops, o)
	return nil
}

// show makes the operation visible in the index. The caller holds o.sh.mu.
func (s *Store) show(o *op, volatile bool) error {
	if o.kind == opPut {
		if err := o.sh.set(o.fp, &o.next, volatile); err != nil {
			return err
		}
		o.ns.add(&o.next, 1)
	} else {
		o.sh.remove(o.fp)
	}
	if o.hasOld {
		o.ns.add(&o.old, -1)
	}
	return nil
}

// unshow undoes show. The caller holds o.sh.mu. Putting the old version back
// cannot fail: its place in the index was there before.
func (s *Store) unshow(o *op) {
	if o.kind == opPut {
		o.ns.add(&o.next, -1)
		if p := o.sh.pins[o.next.gen]; p != nil {
			p.lost = true
		}
	}
	if !o.hasOld {
		o.sh.remove(o.fp)
		return
	}
	o.ns.add(&o.old, 1)
	if err := o.sh.set(o.fp, &o.old, false); err != nil {
		// No memory even for one table: absent is allowed where the old value is.
		o.sh.remove(o.fp)
		o.ns.add(&o.old, -1)
	}
}

func (s *Store) emitOp(o *op) {
	e := Event{Kind: EventStored, Namespace: o.ns.name, Key: o.key, Size: o.next.length, Generation: o.gen}
	if o.kind == opDelete {
		e.Kind, e.Size = EventDeleted, o.old.length
	}
	s.events.emit(e)
}

// waitVolatile blocks a relaxed put of n bytes while too much is not durable.
func (s *Store) waitVolatile(ctx context.Context, n int64) error {
	for {
		s.q.mu.Lock()
		if s.q.relaxed == 0 || s.q.relaxed+n <= s.opts.VolatileBytes {
			s.q.mu.Unlock()
			return nil
		}
		if s.q.room == nil {
			s.q.room = make(chan struct{})
		}
		room := s.q.room
		s.q.urgent = true
		s.q.mu.Unlock()
		s.wake()
		select {
		case <-room:
		case <-ctx.Done():
			return base.Errorf("wait for", "relaxed data to become durable", ErrTimeout, "%w", ctx.Err())
		}
	}
}

// settled accounts relaxed operations that were decided.
func (s *Store) settled(ops []*op) {
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	for _, o := range ops {
		if o.relaxed {
			s.q.relaxed -= o.next.length
		}
	}
	if s.q.room != nil {
		close(s.q.room)
		s.q.room = nil
	}
}

// freeNow gives extents that no durable record names back to the allocator.
func (s *Store) freeNow(exts []alloc.Extent) {
	for _, e := range exts {
		s.pool.Free(e)
	}
}
