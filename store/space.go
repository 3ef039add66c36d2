package store

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ugds-store/ugds/alloc"
	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// pin holds one version for readers, leases and writers of the old value.
type pin struct {
	refs int
	lost bool // the version was withdrawn: what was read may be anything
	// window is one of the holders, if the version has one.
	window *window

	// When the version left the index its extents wait here for the last reader.
	dead    bool
	durable uint64 // generation of the commit that removed it; 0 if it was never durable
	exts    []alloc.Extent
}

// pin takes a hold on version gen. The caller holds sh.mu.
func (sh *shard) pin(gen uint64) *pin {
	p := sh.pins[gen]
	if p == nil {
		p = new(pin)
		sh.pins[gen] = p
	}
	p.refs++
	return p
}

// unpin ends a hold; it reports whether the version was withdrawn meanwhile.
func (s *Store) unpin(sh *shard, gen uint64) (lost bool) {
	sh.mu.Lock()
	p := sh.pins[gen]
	lost = p.lost
	p.refs--
	last := p.refs == 0
	if last {
		delete(sh.pins, gen)
	}
	sh.mu.Unlock()
	if last && p.dead {
		s.free(p.durable, p.exts)
	}
	return lost
}

// drop gives the extents of a version that left the index back, once its last
// reader is gone. durable is the generation of the commit that removed it, 0 if
// no durable record ever named it. The caller holds sh.mu.
func (s *Store) drop(sh *shard, v *version, durable uint64) {
	if len(v.exts) == 0 {
		return
	}
	if p := sh.pins[v.gen]; p != nil {
		p.dead, p.durable, p.exts = true, durable, v.exts
		if p.window != nil {
			s.win.retire(p.window)
		}
		return
	}
	s.free(durable, v.exts)
}

// reuse holds extents whose removal is durable but not yet covered by a commit
// mark: an older copy of the metadata would still name them.
type reuse struct {
	mu    sync.Mutex
	mark  uint64 // highest generation that a durable mark covers
	wait  []freed
	bytes int64
}

type freed struct {
	gen  uint64
	exts []alloc.Extent
}

// covers tells whether a durable mark covers generation gen.
func (r *reuse) covers(gen uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return gen <= r.mark
}

// free gives extents back as soon as I2 allows.
func (s *Store) free(durable uint64, exts []alloc.Extent) {
	s.space.mu.Lock()
	hold := durable > s.space.mark
	if hold {
		s.space.wait = append(s.space.wait, freed{durable, exts})
		for _, e := range exts {
			s.space.bytes += e.Bytes()
		}
	}
	s.space.mu.Unlock()
	if !hold {
		s.freeNow(exts)
	}
}

// covered frees what a durable mark of generation gen covers.
func (s *Store) covered(gen uint64) {
	s.space.mu.Lock()
	s.space.mark = max(s.space.mark, gen)
	var ready []alloc.Extent
	keep := s.space.wait[:0]
	for _, f := range s.space.wait {
		if f.gen > s.space.mark {
			keep = append(keep, f)
			continue
		}
		ready = append(ready, f.exts...)
	}
	clear(s.space.wait[len(keep):])
	s.space.wait = keep
	s.space.mu.Unlock()
	s.freeNow(ready)
	// Now that nobody who finds none waiting finds them missing.
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	for _, e := range ready {
		s.space.bytes -= e.Bytes()
	}
}

func (r *reuse) waiting() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes
}

// allocate finds space for n bytes and appends it to dst. When there is none it makes deletes that
// are on their way durable and marked, and waits for discards, before it gives
// up with ErrNoSpace.
func (s *Store) allocate(ctx context.Context, dst []alloc.Extent, n int64) ([]alloc.Extent, error) {
	return s.allocWith(ctx, func() ([]alloc.Extent, error) { return s.pool.Alloc(dst, n) })
}

func (s *Store) allocWith(ctx context.Context, try func() ([]alloc.Extent, error)) ([]alloc.Extent, error) {
	const tries = 16 // each makes progress of its own; the bound is for I8
	exts, err := try()
	for i := 0; errors.Is(err, ErrNoSpace); i++ {
		more := s.comesBack() // before we try again, since it may arrive meanwhile
		exts, err = try()
		if err == nil || !more || i == tries {
			break
		}
		if err := s.reclaim(ctx); err != nil {
			return nil, err
		}
	}
	return exts, err
}

// comesBack tells whether space is on its way back.
func (s *Store) comesBack() bool {
	return s.pool.DiscardsInFlight() > 0 || s.undecided() || s.space.waiting() > 0
}

// undecided tells whether operations wait for a round, are in one, or are just being
// published or withdrawn.
func (s *Store) undecided() bool {
	s.q.mu.Lock()
	pending := len(s.q.ops)+len(s.q.round) > 0
	s.q.mu.Unlock()
	return pending || s.ending.Load() > 0 // in this order: a round leaves the queue when it ends
}

// reclaim waits for space that is on its way back.
func (s *Store) reclaim(ctx context.Context) error {
	if s.undecided() {
		if err := s.barrier(ctx); err != nil {
			return err
		}
	}
	if s.space.waiting() > 0 {
		if err := s.markRound(ctx); err != nil {
			return err
		}
	}
	return s.waitDiscards(ctx)
}

// discarder issues discards for empty slabs while the store is idle.
type discarder struct {
	one  sync.Mutex // one discard at a time
	mu   sync.Mutex
	wake chan struct{}
	idle chan struct{} // closed when none is in flight; nil if none is
}

// discardExtents tells the devices that the extents hold nothing, and waits.
func (s *Store) discardExtents(exts []alloc.Extent) {
	for _, e := range exts {
		d := s.devs[e.Dev]
		if !d.Info().Discard {
			continue
		}
		// Advice: an error leaves the blocks as they are, which is allowed.
		_ = driver.Do(context.Background(), d, driver.Request{Op: driver.OpDiscard, Off: e.Off(), Len: e.Bytes()})
		s.count.discards.Add(1)
	}
}

// discardIdle discards emptied slabs, one at a time, until there is none or the
// store has other work.
func (s *Store) discardIdle() {
	for s.opts.Discard && s.ReadOnly() == nil && s.discardOne() > 0 {
		if s.busy() {
			return
		}
	}
}

// closeDiscards bounds the discards at the end, which are advice.
const closeDiscards = 5 * time.Second

// discardLast discards what became empty since the store was last idle. A short
// program never is; nobody knows of these slabs after it.
func (s *Store) discardLast(ctx context.Context) {
	for begin := time.Now(); s.opts.Discard && s.ReadOnly() == nil && ctx.Err() == nil; {
		if s.discardOne() == 0 || time.Since(begin) > closeDiscards {
			return
		}
	}
}

// discardOne discards one empty slab and gives its size, 0 if there is none.
func (s *Store) discardOne() int64 {
	s.disc.one.Lock()
	defer s.disc.one.Unlock()
	s.disc.begin() // before one is in flight: whoever sees it can wait
	defer s.disc.end()
	e, ok := s.pool.TakeDiscard()
	if !ok {
		return 0
	}
	s.discardExtents([]alloc.Extent{e})
	s.pool.DoneDiscard(e)
	return e.Bytes()
}

// Trim tells the devices that every free slab holds nothing, those included
// that were free when the store was opened, and gives the bytes told. progress
// may be nil. ErrNotSupported when no device takes discards: a file takes them
// only if it was made sparse.
func (s *Store) Trim(ctx context.Context, progress func(done, total int64)) (int64, error) {
	if err := s.gate.enter("trim", "store"); err != nil {
		return 0, err
	}
	defer s.gate.leave()
	if err := s.ReadOnly(); err != nil {
		return 0, err
	}
	able := false
	for _, d := range s.devs {
		able = able || d.Info().Discard
	}
	if !able {
		return 0, base.WithHint(base.Errorf("trim", "store", ErrNotSupported, "no device takes discards"),
			"files take them when they were formatted with --sparse")
	}
	if err := s.reclaim(ctx); err != nil { // deletes on their way free slabs
		return 0, err
	}
	total, done := int64(s.pool.WantDiscards())*s.layout.SlabBytes, int64(0)
	for {
		n := s.discardOne()
		if n == 0 {
			return done, nil
		}
		if done += n; progress != nil {
			progress(done, total)
		}
		if ctx.Err() != nil {
			return done, base.Errorf("trim", "store", ErrTimeout, "%w", ctx.Err())
		}
	}
}

func (s *Store) busy() bool {
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	return len(s.q.ops) > 0
}

func (d *discarder) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.idle = make(chan struct{})
}

func (d *discarder) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.idle)
	d.idle = nil
}

// waitDiscards waits until the discard in flight ended.
func (s *Store) waitDiscards(ctx context.Context) error {
	s.disc.mu.Lock()
	idle := s.disc.idle
	s.disc.mu.Unlock()
	if idle == nil {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return base.Errorf("wait for", "discard", ErrTimeout, "%w", ctx.Err())
	}
}

// giveBack returns the extents of a put that will not happen. Nothing targets
// them any more: the caller waited for its commands.
func (s *Store) giveBack(v *version) {
	s.freeNow(v.exts)
	v.exts = nil
}
