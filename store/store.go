package store

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ugds-store/ugds/alloc"
	"github.com/ugds-store/ugds/driver"
	gpuxfer "github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
)

// Store is an open store. Safe for concurrent use.
type Store struct {
	opts     Options
	layout   Layout
	devs     []driver.Device // in the order of the pool
	db       *meta.DB
	pool     *alloc.Pool
	idx      *index
	hash     hasher
	stage    *staging
	gpu      *gpuSide // nil without GPUs
	win      *windows // nil without windows
	paths    driver.PathStats
	memAlign int64 // what every device needs of addresses and lengths

	flights sync.Pool
	q       queue
	space   reuse
	disc    discarder
	events  events

	nsMu   sync.Mutex
	ns     map[string]*nsState
	nsByID map[uint32]*nsState

	roundMu sync.Mutex // one flush of a round, mark or withdrawal at a time
	marks   marker     // guarded by roundMu
	ios     []*blockIO // guarded by roundMu
	batches [2]*meta.Batch

	roErr      atomic.Pointer[error] // why the store takes no changes
	sticky     atomic.Pointer[error] // a withdrawn relaxed operation that no Flush told of
	gate       gate
	kick       chan struct{}
	flushed    chan *flushedRound // from flushLoop to commitLoop
	committing atomic.Int32       // rounds that commitLoop has or is about to get
	ending     atomic.Int32       // rounds, and sets of withdrawn operations, that free space now
	stop       chan struct{}
	loops      sync.WaitGroup // committer, monitors, discarder
	bg         sync.WaitGroup // flights left behind by callers
	count      counters
	unsub      []func()

	closeMu sync.Mutex
	closed  bool // guarded by closeMu
}

// counters of the store, for Stats.
type counters struct {
	rounds, marks, roundOps, withdrawn, resets, discards, lostBuffers atomic.Int64
}

// nsState is an open namespace.
type nsState struct {
	id      uint32
	name    string
	layout  [16]byte
	objects atomic.Int64
	bytes   atomic.Int64
	slots   atomic.Int64
}

func (n *nsState) add(v *version, sign int64) {
	n.objects.Add(sign)
	n.bytes.Add(sign * v.length)
	n.slots.Add(sign * v.slotBytes())
}

func (n *nsState) usage() Usage {
	return Usage{Objects: n.objects.Load(), Bytes: n.bytes.Load(), SlotBytes: n.slots.Load()}
}

// gate counts calls inside the store, so that Close can wait for them. Every call
// passes it twice, so that it is one number and no lock.
type gate struct {
	calls atomic.Int64 // inside, and gateShut once Close was called
	idle  chan struct{}
	last  sync.Once // closes idle
}

const gateShut = 1 << 62

func (g *gate) enter(op, object string) error {
	if g.calls.Add(1) >= gateShut {
		g.leave()
		return base.Wrap(op, object, ErrClosed)
	}
	return nil
}

func (g *gate) leave() {
	if g.calls.Add(-1) == gateShut { // a refused call may find it so again
		g.last.Do(func() { close(g.idle) })
	}
}

// shut refuses new calls and gives the channel that closes when none is inside.
// The caller holds a lock against another shut.
func (g *gate) shut() <-chan struct{} {
	if g.idle == nil {
		g.idle = make(chan struct{})
		g.calls.Add(gateShut + 1) // one call more, in case there is no other
		g.leave()
	}
	return g.idle
}

// background runs fn; Close waits for it.
func (s *Store) background(fn func()) {
	s.bg.Add(1)
	go func() {
		defer s.bg.Done()
		fn()
	}()
}

// ReadOnly is nil, or why the store takes no changes.
func (s *Store) ReadOnly() error {
	if p := s.roErr.Load(); p != nil {
		return *p
	}
	return nil
}

// setReadOnly turns the store read-only; the first reason stays.
func (s *Store) setReadOnly(cause error) {
	err := cause
	if !errors.Is(cause, ErrReadOnly) || errors.Is(cause, ErrUnknown) {
		err = &readOnlyError{cause: cause.Error(), full: errors.Is(cause, ErrMetaFull)}
	}
	if s.roErr.CompareAndSwap(nil, &err) {
		s.events.emit(Event{Kind: EventReadOnly, Err: err})
	}
}

// readOnlyError is why a store takes no changes any more. It keeps the text of
// the cause and not its class: what failed may have an unknown outcome, what is
// refused because of it has not.
type readOnlyError struct {
	cause string
	full  bool
}

func (e *readOnlyError) Error() string { return "change store: read-only: " + e.cause }

// Is matches ErrReadOnly, and ErrMetaFull when a full disk is the reason.
func (e *readOnlyError) Is(class error) bool {
	return class == ErrReadOnly || e.full && class == ErrMetaFull
}

// wake tells the committer to look.
func (s *Store) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// Info is the geometry of the store.
func (s *Store) Info() Layout {
	l := s.layout
	l.Devices = append([]DeviceLayout(nil), l.Devices...)
	return l
}

// Flush returns when every operation that returned before the call is durable.
// An error says that some are not: the store turned read-only, ctx ended, or a
// relaxed operation was withdrawn since the last Flush (told once).
func (s *Store) Flush(ctx context.Context) error {
	if err := s.gate.enter("flush", "store"); err != nil {
		return err
	}
	defer s.gate.leave()
	return s.told(s.barrier(ctx))
}

// told adds to the answer of a barrier that a relaxed operation was withdrawn, if
// nobody heard of it yet. Whoever gets an answer hears that something is not durable.
func (s *Store) told(err error) error {
	if errors.Is(err, ErrTimeout) { // that is none
		return err
	}
	if p := s.sticky.Swap(nil); p != nil && err == nil {
		err = *p
	}
	return err
}

// barrier waits for a round that begins after every operation queued so far.
func (s *Store) barrier(ctx context.Context) error {
	o := &op{kind: opBarrier, done: make(chan struct{})}
	s.q.mu.Lock()
	if len(s.q.ops) == 0 {
		s.q.oldest = time.Now()
	}
	s.q.ops = append(s.q.ops, o)
	s.q.urgent = true
	s.q.mu.Unlock()
	s.wake()
	return o.wait(ctx)
}

// Close refuses new calls, waits for those inside, makes everything durable and
// releases the metadata. When ctx ends before that, it gives ErrBusy: nothing is
// lost, and Close must be called again. The devices stay open: they are the
// caller's. Leases end. Any other error tells that something is not durable, a relaxed
// operation that was withdrawn since the last Flush included, or not released. After a
// Close that did its work another one gives ErrClosed.
func (s *Store) Close(ctx context.Context) error {
	s.closeMu.Lock()
	defer s.closeMu.Unlock()
	if s.closed {
		return base.Wrap("close", "store", ErrClosed)
	}
	select {
	case <-s.gate.shut():
	case <-ctx.Done():
		return base.Errorf("close", "store", ErrBusy, "calls are still inside: %w", ctx.Err())
	}
	if s.win != nil {
		select {
		case <-s.win.close():
		case <-ctx.Done():
			return base.Errorf("close", "store", ErrBusy, "windows are still registered with a GPU: %w", ctx.Err())
		}
	}
	gerr := s.gpu.close(ctx)
	if errors.Is(gerr, ErrBusy) {
		return base.Wrap("close", "store", gerr)
	}
	var err error
	if !s.opts.ReadOnly {
		if err = s.drain(ctx); errors.Is(err, ErrTimeout) {
			return base.Errorf("close", "store", ErrBusy, "%w", err)
		}
	}
	s.closed = true
	return base.Wrap("close", "store", firstErr(s.release(ctx, err), gerr))
}

// drain makes everything durable, the last mark included. A store that turned
// read-only has nothing left to do: that was said when it happened. What is said here
// is which relaxed operation was withdrawn, in this barrier or since the last Flush.
func (s *Store) drain(ctx context.Context) error {
	err := s.barrier(ctx)
	if err == nil {
		err = s.markRound(ctx)
	}
	if err == nil {
		s.discardLast(ctx)
	}
	if s.ReadOnly() != nil && errors.Is(err, ErrReadOnly) {
		err = nil
	}
	return s.told(err)
}

// release stops the goroutines and gives everything back. err is what went
// wrong before, and stays the answer.
func (s *Store) release(ctx context.Context, err error) error {
	if !s.opts.ReadOnly {
		for _, cancel := range s.unsub {
			cancel()
		}
		close(s.stop)
		s.loops.Wait()
	}
	s.bg.Wait()
	if e := s.gpu.closePairs(); err == nil {
		err = e
	}
	if e := s.db.Close(ctx); err == nil {
		err = e
	}
	for _, io := range s.ios {
		io.close()
	}
	s.events.close()
	if s.gpu == nil || !s.gpu.leak {
		if e := s.stage.close(); err == nil {
			err = e
		}
	}
	s.idx.close()
	return err
}

// Stats of a store since it was opened.
type Stats struct {
	Objects     int64  `json:"objects"`
	IndexBytes  int64  `json:"index_bytes"`
	Rounds      int64  `json:"rounds"`
	RoundOps    int64  `json:"round_ops"` // operations committed
	Marks       int64  `json:"marks"`
	Withdrawn   int64  `json:"withdrawn"` // relaxed operations taken back
	Resets      int64  `json:"resets"`
	Discards    int64  `json:"discards"`
	NotDurable  int64  `json:"not_durable"`   // operations waiting for a round
	WaitingMark int64  `json:"waiting_bytes"` // freed bytes waiting for a commit mark
	LastGen     uint64 `json:"last_generation"`

	Space   alloc.Stats        `json:"space"`
	Paths   []driver.PathCount `json:"paths"`
	GPUs    []GPUStat          `json:"gpus,omitempty"`
	Pairs   []gpuxfer.Pair     `json:"pairs,omitempty"` // of devices and GPUs, as far as they were tested
	Windows *WindowStats       `json:"windows,omitempty"`
	// LostBuffers are staging buffers that a GPU may still use, and that are not
	// used again: its copies did not end in time.
	LostBuffers int64          `json:"lost_buffers,omitempty"`
	Devices     []driver.Stats `json:"devices"`
	Meta        meta.Metrics   `json:"meta"`
}

// Stats reads the counters.
func (s *Store) Stats() Stats {
	st := Stats{Rounds: s.count.rounds.Load(), RoundOps: s.count.roundOps.Load(),
		Marks: s.count.marks.Load(), Withdrawn: s.count.withdrawn.Load(),
		Resets: s.count.resets.Load(), Discards: s.count.discards.Load(),
		Space: s.pool.Stats(), Paths: s.paths.Counts(), Meta: s.db.Metrics(), GPUs: s.gpu.stats(), Pairs: s.gpu.known(), Windows: s.win.stats(), LostBuffers: s.count.lostBuffers.Load()}
	st.Objects, st.IndexBytes = s.idx.bytes()
	s.q.mu.Lock()
	st.NotDurable = int64(len(s.q.ops) + len(s.q.round))
	st.LastGen = s.q.gen
	s.q.mu.Unlock()
	st.WaitingMark = s.space.waiting()
	for _, d := range s.devs {
		st.Devices = append(st.Devices, d.Stats())
	}
	return st
}

func (o *Options) fill() {
	if o.RoundAge <= 0 {
		o.RoundAge = 50 * time.Millisecond
	}
	if o.VolatileBytes <= 0 {
		o.VolatileBytes = 64 * base.MiB
	}
	if o.StagingBytes <= 0 {
		o.StagingBytes = 64 * base.MiB
	}
	if o.IdleMark <= 0 {
		o.IdleMark = 5 * time.Millisecond
	}
	if o.ResetTimeout <= 0 {
		o.ResetTimeout = 60 * time.Second
	}
}
