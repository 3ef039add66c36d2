package bench

import (
	"context"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ugds-store/ugds/alloc"
	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
)

// scaleBatch is how many objects one call or commit makes.
const scaleBatch = 4096

// crashPuts are the puts before the crash: their records nearly fill a log.
const crashPuts = 120_000

// fill makes the store, and its objects.
func (out *ScaleSample) fill(ctx context.Context) error {
	st := &out.Step
	size := base.AlignUp((int64(st.Objects)+4*crashPuts)*scaleObject*17/16+256*base.MiB, 64*base.MiB)
	if err := file.Create(st.path(), size, true); err != nil {
		return err
	}
	dev, err := st.device(ctx)
	if err != nil {
		return err
	}
	layout, err := store.Format(ctx, store.FormatOptions{Devices: []driver.Device{dev}, Meta: st.meta()})
	if err = errors.Join(err, dev.Close(ctx)); err != nil {
		return err
	}
	begin := time.Now()
	if st.Puts {
		err = out.fillByPuts(ctx)
	} else {
		err = st.fillRecords(ctx, layout)
	}
	out.FillSeconds = ptr(time.Since(begin).Seconds())
	return err
}

// fillByPuts puts every object, and watches how large the index is on the way.
func (out *ScaleSample) fillByPuts(ctx context.Context) error {
	st := &out.Step
	o, err := st.openStore(ctx)
	if err != nil {
		return err
	}
	peak := 0.0
	err = putRange(ctx, o, 0, st.Objects, store.Relaxed, func(done int) {
		if done >= 100_000 {
			index, _ := offHeap()
			peak = max(peak, float64(index)/float64(done))
		}
	})
	if peak > 0 {
		out.GrowthPeak = &peak
	}
	return errors.Join(err, o.close(ctx))
}

// putRange puts the objects [from, to).
func putRange(ctx context.Context, o *scaleStore, from, to int, d store.Durability, done func(int)) error {
	r, err := driver.AllocRegion(scaleObject, "bench scale")
	if err != nil {
		return err
	}
	defer r.Close()
	if err := o.dev.Attach(r); err != nil {
		return err
	}
	items := make([]store.PutItem, 0, scaleBatch)
	for at := from; at < to; at += len(items) {
		items = items[:0]
		for i := at; i < min(at+scaleBatch, to); i++ {
			items = append(items, store.PutItem{Key: scaleKey(i), Value: store.InRegion(r, 0, scaleObject),
				PutOptions: store.PutOptions{Durability: d}})
		}
		o.n.PutBatch(ctx, items)
		for i := range items {
			if items[i].Err != nil {
				return items[i].Err
			}
		}
		done(at + len(items))
	}
	return nil
}

// fillRecords writes what a store that holds the objects would have in its
// metadata. The device stays sparse: each value reads as zeros.
func (st *ScaleStep) fillRecords(ctx context.Context, l *store.Layout) error {
	g := alloc.Geometry{SlabBlocks: uint32(l.SlabBytes / base.StoreBlock)}
	for _, d := range l.Devices {
		g.Devices = append(g.Devices, alloc.Span{FirstBlock: uint64(d.SlabOff / base.StoreBlock), Slabs: d.Slabs})
	}
	pool, err := alloc.New(g)
	if err != nil {
		return err
	}
	db, err := meta.Open(st.meta())
	if err != nil {
		return err
	}
	ns, err := db.CreateNamespace(ctx, Namespace, [16]byte{})
	if err == nil {
		err = fillBatches(ctx, st.Objects, pool, db, ns.ID)
	}
	return errors.Join(err, db.Close(ctx))
}

func fillBatches(ctx context.Context, objects int, pool *alloc.Pool, db *meta.DB, ns uint32) error {
	sum := crc32.Checksum(make([]byte, scaleObject), crc32.MakeTable(crc32.Castagnoli))
	b := meta.NewBatch()
	var exts []alloc.Extent
	for i := range objects {
		var err error
		if exts, err = pool.Alloc(exts[:0], scaleObject); err != nil {
			return err
		}
		gen := uint64(i) + 1
		b.Put(ns, scaleKey(i), &meta.Record{Gen: gen, Length: scaleObject, CRC: sum, Extents: []uint64{exts[0].Pack()}})
		if b.Len() < scaleBatch && i+1 < objects {
			continue
		}
		b.SetLastGen(gen)
		if err := db.Commit(ctx, b); err != nil {
			return err
		}
		b.Reset()
	}
	return nil
}

// crash puts objects beyond those of the fill and gives the size of the log that
// the next open has to replay. The caller kills the process while the store is
// open.
func (out *ScaleSample) crash(ctx context.Context) error {
	st := &out.Step
	o, err := st.openStore(ctx)
	if err != nil {
		return err
	}
	from := int(o.s.Stats().Objects)
	err = putRange(ctx, o, from, from+crashPuts, store.Relaxed, func(int) {})
	if err == nil {
		err = o.s.Flush(ctx)
	}
	if err != nil {
		return errors.Join(err, o.close(ctx))
	}
	out.LogBytes = ptr(logBytes(st.meta().Dir))
	return nil // the store stays open
}

// logBytes is the size of the largest log of the metadata.
func logBytes(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".log") {
			if st, err := d.Info(); err == nil {
				n = max(n, st.Size())
			}
		}
		return nil
	})
	return n
}
