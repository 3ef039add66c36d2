package store

import (
	"context"
	"sync/atomic"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/mutant"
)

// marker keeps what commit marks are written from. epoch and seq are guarded by
// roundMu.
type marker struct {
	epoch     uint64
	seq       []uint64      // last mark sequence number of each device
	committed atomic.Uint64 // generation of the last commit
	lastRound atomic.Int64  // when the last round ended, in nanoseconds of Unix time
}

// markOwed tells whether the last commit is not yet covered by a durable mark.
func (s *Store) markOwed() bool { return !s.space.covers(s.marks.committed.Load()) }

// flushSet makes the set durable on every device that holds data of it, all at
// once, with a mark for the previous commit among the data. It gives the error
// of each operation whose data is not durable. meanwhile runs while the devices
// write.
func (s *Store) flushSet(io *roundIO, set []*op, meanwhile func()) []error {
	first := -1
	for _, o := range set {
		for _, st := range o.stamps {
			if first < 0 {
				first = st.dev
			}
			io.devs[st.dev].flush = !mutant.On(mutant.FirstDeviceOnly) || st.dev == first
		}
	}
	s.runRound(io, meanwhile)
	failed := make([]error, len(set))
	for i, o := range set {
		if o.err != nil { // its deferred write failed
			failed[i] = base.Wrap(o.verb(), keyText(o.key), o.err)
		}
		for _, st := range o.stamps {
			if err := io.devs[st.dev].err; err != nil && failed[i] == nil {
				failed[i] = base.Wrap(o.verb(), keyText(o.key), err)
			}
		}
		// After the flush: a device that stopped between the write and the end of
		// the flush may have lost the write although both succeeded.
		if err := s.stale(o); err != nil && failed[i] == nil {
			failed[i] = err
		}
	}
	return failed
}

// runRound writes and flushes, and frees what a mark that became durable covers.
func (s *Store) runRound(io *roundIO, meanwhile func()) {
	for d := range io.devs {
		if io.devs[d].flush {
			io.addMark(s, d)
		}
	}
	io.start(s)
	meanwhile()
	io.finish(s)
	for d := range io.devs {
		if io.devs[d].mark && s.devs[d].Incarnation() == io.devs[d].inc {
			s.count.marks.Add(1)
			s.covered(io.gen)
			return
		}
	}
}

func (s *Store) flushDevice(d int) error {
	if mutant.On(mutant.FlushBeforeCommit) || !s.devs[d].Info().VolatileCache {
		return nil
	}
	return driver.Flush(context.Background(), s.devs[d])
}

// markReq is the write of the next mark of device d.
func (s *Store) markReq(d int, gen uint64) driver.Request {
	s.marks.seq[d]++
	io, seq := s.ios[d], s.marks.seq[d]
	encodeMark(io.scratch(0), s.layout.StoreID, s.layout.Devices[d].ID, mark{s.marks.epoch, seq, gen})
	return io.writeReq(0, marksOff+int64(seq%marksCount)*base.StoreBlock)
}

// ownWrite counts the store's own blocks: marks and superblocks.
var ownWrite = driver.PathKey{Path: driver.PathDirect, Write: true, Reason: "superblocks and marks"}

// markRound writes a mark for the last commit, if one is owed, on the first
// device that takes it, and frees what it covers.
func (s *Store) markRound(ctx context.Context) error {
	s.roundMu.Lock()
	defer s.roundMu.Unlock()
	gen := s.marks.committed.Load()
	if s.space.covers(gen) {
		return nil
	}
	if err := s.ReadOnly(); err != nil {
		return err
	}
	var last error
	for d := range s.devs {
		io := s.newRoundIO()
		io.devs[d].flush = true
		s.runRound(io, func() {})
		last = io.devs[d].err
		if s.space.covers(gen) {
			return nil
		}
		if ctx.Err() != nil {
			return base.Errorf("write", "commit mark", ErrTimeout, "%w", ctx.Err())
		}
	}
	if last == nil {
		last = ErrIsolated
	}
	return base.Wrap("write", "commit mark", last)
}
