package bench

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable/block"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// recordBytes is the size of a record of PebbleSync and CommitLoop: what names
// one object durably.
const recordBytes = 40

// pebbleSubject is Pebble holding the values, or for PebbleSync a small record
// of each.
type pebbleSubject struct {
	d       *dataset
	db      *pebble.DB
	records bool
	write   *pebble.WriteOptions
}

// quiet is a logger that says nothing; what matters comes back as an error.
type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(string, ...any) {}

// openDB opens a database of the bench. Values are not compressed: those of the
// bench cannot be.
func openDB(c *Case, name string, memTable uint64, wal bool) (*pebble.DB, error) {
	dir := filepath.Join(c.Place.Dir, name)
	o := &pebble.Options{Logger: quiet{}, MemTableSize: memTable, MemTableStopWritesThreshold: 4,
		FormatMajorVersion: pebble.FormatNewest, DisableWAL: !wal}
	for i := range o.Levels {
		o.Levels[i].Compression = func() *block.CompressionProfile { return block.NoCompression }
	}
	db, err := pebble.Open(dir, o)
	return db, base.Wrap("open", dir, err)
}

func openPebble(d *dataset) (*pebbleSubject, error) {
	s := &pebbleSubject{d: d, records: d.c.Subject == PebbleSync, write: pebble.NoSync}
	if s.records || d.c.Sync {
		s.write = pebble.Sync
	}
	name, mem := pebbleName, uint64(64*base.MiB)
	if s.records {
		name, mem = recordsName, 16*base.MiB
	}
	var err error
	s.db, err = openDB(d.c, name, mem, s.write.Sync)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// settle: without a log the values are durable once they are in tables.
func (s *pebbleSubject) settle(context.Context) error {
	if s.write.Sync {
		return nil
	}
	return s.db.Flush()
}

func (s *pebbleSubject) close(context.Context) error { return s.db.Close() }

func (s *pebbleSubject) count() counts {
	c := counts{engine: "Pebble", note: "reads through the page cache"}
	if s.records {
		c.note = "records of 40 bytes, no values"
	}
	return c
}

func (s *pebbleSubject) caller() caller { return s }

func (s *pebbleSubject) value(i int) []byte {
	b := s.d.src.Bytes(s.d.off(i), s.d.c.Size)
	if s.records {
		b = b[:min(recordBytes, len(b))]
	}
	return b
}

func (s *pebbleSubject) do(_ context.Context, op string, ids []int) error {
	switch op {
	case OpPut, OpDelete:
		return s.change(op, ids)
	}
	for _, i := range ids {
		v, done, err := s.db.Get(s.d.keys[i])
		if err != nil {
			return base.Wrap("bench "+op, string(s.d.keys[i]), err)
		}
		if op == OpGet {
			copy(s.d.dst.Bytes(s.d.off(i), s.d.c.Size), v)
			if s.records { // the rest of the value was never meant to be there
				copy(s.d.dst.Bytes(s.d.off(i), s.d.c.Size)[len(v):], s.d.src.Bytes(s.d.off(i), s.d.c.Size)[len(v):])
			}
		}
		if err := done.Close(); err != nil {
			return err
		}
	}
	return nil
}

func (s *pebbleSubject) change(op string, ids []int) error {
	b := s.db.NewBatch()
	defer b.Close()
	for _, i := range ids {
		var err error
		if op == OpPut {
			err = b.Set(s.d.keys[i], s.value(i), nil)
		} else {
			err = b.Delete(s.d.keys[i], nil)
		}
		if err != nil {
			return err
		}
	}
	return b.Commit(s.write)
}

// loopSubject is the commit loop that no store of this kind can beat: as many
// adjacent slots as there are callers in one write, one fdatasync, one synced
// batch of as many records. The steps of a round depend on each other.
type loopSubject struct {
	d   *dataset
	raw *rawSubject
	db  *pebble.DB

	rounds int64
}

func openLoop(d *dataset) (*loopSubject, error) {
	raw, err := openRaw(d)
	if err != nil {
		return nil, err
	}
	db, err := openDB(d.c, loopName, 16*base.MiB, true)
	if err != nil {
		return nil, errors.Join(err, raw.f.Close())
	}
	return &loopSubject{d: d, raw: raw, db: db}, nil
}

func (s *loopSubject) settle(context.Context) error { return nil }

func (s *loopSubject) close(ctx context.Context) error {
	return errors.Join(s.db.Close(), s.raw.close(ctx))
}

func (s *loopSubject) count() counts {
	return counts{flushes: s.rounds, hasFlushes: true, walSyncs: s.rounds, hasSyncs: true,
		engine: "pwrite, Pebble", note: "one goroutine"}
}

// loopCaller: the first one runs the loop, the others have nothing to do.
type loopCaller struct{ s *loopSubject }

func (s *loopSubject) caller() caller { return &loopCaller{s} }

func (w *loopCaller) do(ctx context.Context, op string, ids []int) error {
	s := w.s
	if op != OpPut {
		return s.raw.do(ctx, op, ids)
	}
	n := int64(len(ids)) * s.d.c.stride()
	if err := whole(unix.Pwrite, s.raw.f, s.d.src.Bytes(s.d.off(ids[0]), n), s.d.off(ids[0])); err != nil {
		return err
	}
	if err := unix.Fdatasync(s.raw.f); err != nil {
		return err
	}
	b := s.db.NewBatch()
	defer b.Close()
	for _, i := range ids {
		if err := b.Set(s.d.keys[i], s.d.slot(s.d.src, i)[:recordBytes], nil); err != nil {
			return err
		}
	}
	s.rounds++
	return b.Commit(pebble.Sync)
}
