package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
	"github.com/ugds-store/ugds/meta/metatest"
	"github.com/ugds-store/ugds/store"
)

// spy notes the batches that a device gets.
type spy struct {
	driver.Device
	mu      sync.Mutex
	batches [][]driver.Request
}

func (s *spy) Submit(ctx context.Context, b *driver.Batch) error {
	s.mu.Lock()
	s.batches = append(s.batches, slices.Clone(b.Reqs))
	s.mu.Unlock()
	return s.Device.Submit(ctx, b)
}

// take gives what was noted and forgets it.
func (s *spy) take() [][]driver.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.batches
	s.batches = nil
	return b
}

// flushing tells whether a flush was submitted since.
func (s *spy) flushing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.batches {
		if b[0].Op == driver.OpFlush {
			return true
		}
	}
	return false
}

// spied is a store whose device is spied on and answers through hooks.
func spied(t *testing.T, hooks file.Hooks, tune func(*store.Options)) (*box, *spy) {
	t.Helper()
	b := newBox(t, box{})
	b.close()
	b.tune = tune
	d, err := file.Open(bg, file.Options{Path: b.path(0), Hooks: hooks})
	if err != nil {
		t.Fatal(err)
	}
	s := &spy{Device: d}
	b.devs, b.sims = devices(s), nil
	b.open()
	return b, s
}

// isMark tells writes into the ring of commit marks.
func isMark(r *driver.Request) bool {
	return r.Op == driver.OpWrite && r.Off >= 256*base.KiB && r.Off < 512*base.KiB
}

// crowd lets n callers put at once while a flush is held back, and gives their
// errors. then runs once all of them wait for the round after that.
func crowd(t *testing.T, b *box, s *spy, hold *atomic.Bool, n int, then func()) []error {
	t.Helper()
	hold.Store(true)
	s.take()
	var wg sync.WaitGroup
	var first error
	wg.Go(func() { first = b.ns.Put(bg, []byte("first"), store.Bytes(fill(1, 4096)), store.PutOptions{}) })
	waitFor(t, s.flushing)
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			errs[i] = b.ns.Put(bg, fmt.Appendf(nil, "key %d", i), store.Bytes(fill(uint64(i), 4096)), store.PutOptions{})
		})
	}
	waitFor(t, func() bool { return b.s.Stats().NotDurable == int64(n)+1 })
	then()
	hold.Store(false)
	wg.Wait()
	if first != nil {
		t.Error(first)
	}
	return errs
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come")
		}
	}
}

// holdFlush holds flushes back while the flag is set.
func holdFlush(hold *atomic.Bool) file.Hooks {
	return file.Hooks{Hold: func(op driver.Op, _ int64) bool { return op == driver.OpFlush && hold.Load() }}
}

// TestRoundWritesAndFlushesOnce: the values of all callers that wait go in one
// command, with the mark in the same batch, under one flush.
func TestRoundWritesAndFlushesOnce(t *testing.T) {
	const n = 40
	var hold atomic.Bool
	// Rounds by age would overlap, and then the mark of the one before is not owed.
	b, s := spied(t, holdFlush(&hold), func(o *store.Options) { o.IdleMark, o.RoundAge = time.Hour, time.Hour })
	if err := b.ns.Put(bg, []byte("before"), store.Bytes(fill(9, 100)), store.PutOptions{}); err != nil {
		t.Fatal(err) // so that a mark is owed
	}
	for _, err := range crowd(t, b, s, &hold, n, func() { s.take() }) {
		if err != nil {
			t.Fatal(err)
		}
	}
	var writes, marks, flushes, batches int
	var bytes int64
	for _, batch := range s.take() {
		mixed := 0
		for i := range batch {
			switch r := &batch[i]; {
			case r.Op == driver.OpFlush:
				flushes++
			case isMark(r):
				marks++
				mixed |= 1
			case r.Op == driver.OpWrite:
				writes++
				bytes += r.Len
				mixed |= 2
			}
		}
		if mixed != 0 {
			batches++
		}
		if mixed == 1 {
			t.Error("a mark by itself")
		}
	}
	if writes != 1 || marks != 1 || flushes != 1 || batches != 1 || bytes != n*4096 {
		t.Errorf("%d writes of %d bytes, %d marks, %d batches, %d flushes", writes, bytes, marks, batches, flushes)
	}
	for i := range n {
		if got, err := b.ns.GetBytes(bg, fmt.Appendf(nil, "key %d", i), store.GetOptions{}); err != nil || !slices.Equal(got, fill(uint64(i), 4096)) {
			t.Fatalf("key %d: %v", i, err)
		}
	}
}

// TestFailedMergedWrite: the write of a round fails. Its operations fail and
// leave nothing, a larger put of the same round does not mind.
func TestFailedMergedWrite(t *testing.T) {
	const n = 8
	var hold, fail atomic.Bool
	hooks := holdFlush(&hold)
	hooks.Result = func(op driver.Op, off, n, res int64) int64 {
		if op == driver.OpWrite && off >= base.MiB && n <= 64*base.KiB && fail.Load() {
			return -int64(unix.EIO)
		}
		return res
	}
	b, s := spied(t, hooks, nil)
	var wg sync.WaitGroup
	var large error
	for _, err := range crowd(t, b, s, &hold, n, func() {
		wg.Go(func() {
			large = b.ns.Put(bg, []byte("large"), store.Bytes(fill(5, 200000)), store.PutOptions{})
		})
		waitFor(t, func() bool { return b.s.Stats().NotDurable == n+2 })
		fail.Store(true)
	}) {
		if !errors.Is(err, unix.EIO) {
			t.Errorf("%v, want EIO", err)
		}
	}
	fail.Store(false)
	if wg.Wait(); large != nil {
		t.Error(large)
	}
	for i := range n {
		if _, err := b.ns.GetBytes(bg, fmt.Appendf(nil, "key %d", i), store.GetOptions{}); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("key %d: %v", i, err)
		}
		if err := b.ns.Put(bg, fmt.Appendf(nil, "key %d", i), store.Bytes(fill(3, 4096)), store.PutOptions{}); err != nil {
			t.Errorf("again: %v", err)
		}
	}
	checkAccounts(t, b)
}

// TestSmallRegionPuts: a small sync put from a region is copied and says so; in a
// strict store it goes direct, and relaxed ones always do.
func TestSmallRegionPuts(t *testing.T) {
	for _, c := range []struct {
		strict bool
		d      store.Durability
		size   int64
		path   driver.Path
	}{
		{false, store.Sync, 16 * base.KiB, driver.PathStaged}, {false, store.Sync, 20 * base.KiB, driver.PathDirect},
		{false, store.Relaxed, 4 * base.KiB, driver.PathDirect}, {true, store.Sync, 4 * base.KiB, driver.PathDirect},
	} {
		b, _ := spied(t, file.Hooks{}, func(o *store.Options) { o.Strict = c.strict })
		r, err := driver.AllocRegion(base.MiB, "store test")
		if err != nil {
			t.Fatal(err)
		}
		want := fill(4, int(c.size))
		copy(r.CPU(), want)
		if err := b.ns.Put(bg, []byte("k"), store.InRegion(r, 0, c.size), store.PutOptions{Durability: c.d}); err != nil {
			t.Fatal(err)
		}
		clear(r.CPU()) // the memory is the caller's again
		var moved int64
		for _, p := range b.s.Stats().Paths {
			if p.Write && p.Path == c.path && p.Reason != "superblocks and marks" {
				moved += p.Bytes
			}
		}
		if moved != c.size {
			t.Errorf("%+v: %d bytes, %+v", c, moved, b.s.Stats().Paths)
		}
		got := make([]byte, c.size)
		copy(got, want)
		if c.strict { // it refuses plain memory
			if _, err := b.ns.Get(bg, []byte("k"), store.InRegion(r, 0, c.size), store.GetOptions{}); err != nil {
				t.Error(err)
			}
			copy(got, r.CPU())
		} else if got, err = b.ns.GetBytes(bg, []byte("k"), store.GetOptions{}); err != nil {
			t.Error(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v: wrong bytes", c)
		}
		b.close()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestClosedLoop: many callers that each put, delete and put again share rounds
// and all end; the same with callers that come and go.
func TestClosedLoop(t *testing.T) {
	everyKind(t, func(t *testing.T, k kind) {
		b := k.newBox(t, box{})
		rng := testenv.Seed(t)
		var wg sync.WaitGroup
		for w := range 48 {
			pause := time.Duration(rng.IntN(3)) * 200 * time.Microsecond
			wg.Go(func() {
				for i := range 12 {
					key := fmt.Appendf(nil, "%d/%d", w, i%3)
					if err := b.ns.Put(bg, key, store.Bytes(fill(uint64(i), 1+i*1500)), store.PutOptions{Replace: true}); err != nil {
						t.Error(err)
						return
					}
					if i%4 == 3 {
						if err := b.ns.Delete(bg, key, store.DeleteOptions{}); err != nil {
							t.Error(err)
							return
						}
					}
					time.Sleep(pause)
				}
			})
		}
		wg.Wait()
		st := b.s.Stats()
		if st.RoundOps <= st.Rounds {
			t.Errorf("%d operations in %d rounds", st.RoundOps, st.Rounds)
		}
		if st.Objects != 48*2 { // the third key of each was deleted last
			t.Errorf("%d objects", st.Objects)
		}
		checkAccounts(t, b)
	})
}

// TestIndexGrowsBeforeCommit: the callers of a round wait for its publication, so
// that the index makes room while the devices and the metadata are at work.
func TestIndexGrowsBeforeCommit(t *testing.T) {
	f := newFaultRun(t, files)
	d := f.device(t)
	defer d.Close(bg)
	s, err := store.Open(bg, f.options(d))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(bg)
	ns, err := s.Namespace(bg, "n", store.NamespaceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	key := []byte("key")
	places := ns.CrowdShard(key)
	before, synced := places(), 0
	f.fs.Before(func(op metatest.Op) {
		if op.Name == "sync" && strings.HasSuffix(op.Path, ".log") && synced == 0 {
			synced = places()
		}
	})
	if err := ns.Put(bg, key, store.Bytes([]byte("value")), store.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	f.fs.Before(nil)
	if after := places(); synced <= before || after != synced {
		t.Errorf("%d places, %d when the commit was synced, %d behind it", before, synced, after)
	}
}
