package store

import (
	"context"
	"sync/atomic"

	"github.com/ugds-store/ugds/alloc"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
)

// loadBatchObjects is how many objects pass between the two halves of a load at
// a time.
const loadBatchObjects = 4096

// loading is one object on its way into the index.
type loading struct {
	ns    *nsState
	fp    fingerprint
	v     version // without extents
	exts  int     // of the batch's extents, those from here on are its own
	nexts int
	key   int // likewise of the batch's keys
	nkey  int
}

type loadBatch struct {
	objects []loading
	exts    []alloc.Extent
	keys    []byte
}

func (b *loadBatch) reset() { b.objects, b.exts, b.keys = b.objects[:0], b.exts[:0], b.keys[:0] }

// loader builds the index and the free space: one goroutine reads and checks
// records, another one places them, which is mostly waiting for memory.
type loader struct {
	s      *Store
	cur    *loadBatch
	full   chan *loadBatch
	empty  chan *loadBatch
	result chan error
	failed atomic.Bool
}

// loadAll places every record of the database. The first fault ends it.
func (s *Store) loadAll(ctx context.Context) error {
	l := &loader{s: s, cur: new(loadBatch), full: make(chan *loadBatch), empty: make(chan *loadBatch, 2),
		result: make(chan error, 1)}
	l.empty <- new(loadBatch)
	go l.place()
	err := s.db.Scan(ctx, l.add)
	if err == nil && len(l.cur.objects) > 0 {
		l.full <- l.cur
	}
	close(l.full)
	if placed := <-l.result; placed != nil {
		return placed
	}
	return err
}

// errLoadFailed ends a scan whose other half met a fault.
var errLoadFailed = base.Errorf("load", "records", ErrCorrupt, "stopped")

func (l *loader) add(nsID uint32, key []byte, r *meta.Record) error {
	if l.failed.Load() {
		return errLoadFailed
	}
	ns := l.s.nsByID[nsID]
	if ns == nil {
		return base.Errorf("load", keyText(key), ErrCorrupt, "its namespace %d does not exist", nsID)
	}
	b := l.cur
	v, err := l.s.versionOf(key, r, b.exts)
	if err != nil {
		return err
	}
	o := loading{ns: ns, fp: l.s.hash.of(nsID, key), exts: len(b.exts), nexts: len(v.exts) - len(b.exts),
		key: len(b.keys), nkey: len(key)}
	b.exts, v.exts = v.exts, nil
	b.keys = append(b.keys, key...)
	o.v = v
	if b.objects = append(b.objects, o); len(b.objects) == loadBatchObjects {
		l.full <- b
		l.cur = <-l.empty
	}
	return nil
}

// place takes batches until there is none, or a fault; then it only drains.
func (l *loader) place() {
	var first error
	for b := range l.full {
		if first == nil {
			if first = l.s.placeBatch(b); first != nil {
				l.failed.Store(true)
			}
		}
		b.reset()
		l.empty <- b
	}
	l.result <- first
}

// placeBatch puts objects into the index. Nobody else uses it yet, so the shards
// are not locked: without the barriers of a lock the memory accesses of
// neighbouring objects overlap.
func (s *Store) placeBatch(b *loadBatch) error {
	for i := range b.objects {
		o := &b.objects[i]
		o.v.exts = b.exts[o.exts : o.exts+o.nexts]
		if err := s.placeOne(o.ns, o.fp, &o.v); err != nil {
			return base.Wrap("load", keyText(b.keys[o.key:o.key+o.nkey]), err)
		}
	}
	return nil
}

// placeOne puts one object into the index. The allocator refuses an extent that
// overlaps another: that is the sweep of I6.
func (s *Store) placeOne(ns *nsState, fp fingerprint, v *version) error {
	for _, e := range v.exts {
		if err := s.pool.Restore(e); err != nil {
			return &overlapError{err}
		}
	}
	sh := s.idx.shard(fp)
	before := sh.used
	if err := sh.set(fp, v, false); err != nil {
		return err
	}
	if sh.used == before {
		return base.Errorf("place", "object", ErrCorrupt, "another key has the same fingerprint")
	}
	ns.add(v, 1)
	return nil
}

// loadRecord puts one object into the index, for Check, which goes on after a
// fault.
func (s *Store) loadRecord(nsID uint32, key []byte, r *meta.Record) error {
	ns := s.nsByID[nsID]
	if ns == nil {
		return base.Errorf("load", keyText(key), ErrCorrupt, "its namespace %d does not exist", nsID)
	}
	v, err := s.versionOf(key, r, nil)
	if err != nil {
		return err
	}
	return base.Wrap("load", keyText(key), s.placeOne(ns, s.hash.of(nsID, key), &v))
}
