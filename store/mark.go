package store

import (
	"context"
	"sync"
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

// flushSet flushes every device that holds data of the set, all at once, with a
// mark for the previous commit among the data. It gives the error of each
// operation whose data is not durable.
func (s *Store) flushSet(set []*op) []error {
	need := make([]bool, len(s.devs))
	first := -1
	for _, o := range set {
		for _, st := range o.stamps {
			if first < 0 {
				first = st.dev
			}
			need[st.dev] = !mutant.On(mutant.FirstDeviceOnly) || st.dev == first
		}
	}
	errs := s.flushDevices(need, s.markOwed())
	failed := make([]error, len(set))
	for i, o := range set {
		if o.err != nil { // its deferred write failed
			failed[i] = base.Wrap(o.verb(), keyText(o.key), o.err)
		}
		for _, st := range o.stamps {
			if err := errs[st.dev]; err != nil && failed[i] == nil {
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

// flushDevices makes what the named devices completed durable, and on the way
// writes a mark of the last commit.
func (s *Store) flushDevices(need []bool, withMark bool) []error {
	errs := make([]error, len(s.devs))
	var wg sync.WaitGroup
	var marked atomic.Bool
	gen := s.marks.committed.Load()
	for d, yes := range need {
		if !yes {
			continue
		}
		wg.Go(func() {
			inc := s.devs[d].Incarnation()
			wrote := withMark && s.writeMark(d, gen) == nil
			if errs[d] = s.flushDevice(d); errs[d] == nil && wrote && s.devs[d].Incarnation() == inc {
				marked.Store(true)
			}
		})
	}
	wg.Wait()
	if marked.Load() {
		s.count.marks.Add(1)
		s.covered(gen)
	}
	return errs
}

func (s *Store) flushDevice(d int) error {
	if mutant.On(mutant.FlushBeforeCommit) || !s.devs[d].Info().VolatileCache {
		return nil
	}
	return driver.Flush(context.Background(), s.devs[d])
}

// writeMark writes the next mark of device d.
func (s *Store) writeMark(d int, gen uint64) error {
	s.marks.seq[d]++
	io, seq := s.ios[d], s.marks.seq[d]
	encodeMark(io.scratch(0), s.layout.StoreID, s.layout.Devices[d].ID, mark{s.marks.epoch, seq, gen})
	err := driver.Do(context.Background(), io.dev,
		io.writeReq(0, marksOff+int64(seq%marksCount)*base.StoreBlock))
	if err == nil {
		s.paths.Add(ownWrite, base.StoreBlock)
	}
	return err
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
		need := make([]bool, len(s.devs))
		need[d] = true
		last = s.flushDevices(need, true)[d]
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
