package meta

import (
	"fmt"
	"path/filepath"
	"testing"
)

// BenchmarkCommit is one synced commit of one small record on the disk.
func BenchmarkCommit(b *testing.B) {
	d := newDB(b, Options{Dir: filepath.Join(b.TempDir(), "m")})
	batch := NewBatch()
	gen := uint64(0)
	before := d.Metrics()
	for b.Loop() {
		gen++
		batch.Reset()
		batch.Put(1, fmt.Appendf(nil, "key %08d", gen), testRecord(gen, 1<<20))
		batch.SetLastGen(gen)
		if err := d.Commit(ctx(), batch); err != nil {
			b.Fatal(err)
		}
	}
	m := d.Metrics()
	b.ReportMetric(float64(m.WALSyncs-before.WALSyncs)/float64(gen), "syncs/op")
	b.ReportMetric(float64(m.WALBytes-before.WALBytes)/float64(gen), "B/op-log")
	closeDB(b, d)
}

// BenchmarkCommitMemory shows what this package and Pebble cost without a disk.
func BenchmarkCommitMemory(b *testing.B) {
	d := newDB(b, Options{Dir: "/m", FS: memFS()})
	batch := NewBatch()
	gen := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		gen++
		batch.Reset()
		batch.Put(1, fmt.Appendf(nil, "key %08d", gen), testRecord(gen, 1<<20))
		batch.SetLastGen(gen)
		if err := d.Commit(ctx(), batch); err != nil {
			b.Fatal(err)
		}
	}
	closeDB(b, d)
}

// million is a DB with 1,000,000 records of 36-byte keys, opened again.
func million(b *testing.B) *DB {
	o := Options{Dir: "/m", FS: memFS()}
	d := newDB(b, o)
	batch := NewBatch()
	r := testRecord(1, 1<<20)
	r.Extents = r.Extents[:1]
	for i := range 1_000_000 {
		r.Gen = uint64(i)
		batch.Put(1, fmt.Appendf(nil, "%036d", i*2654435761%4294967296), r)
		if batch.Len() == 4096 {
			if err := d.Commit(ctx(), batch); err != nil {
				b.Fatal(err)
			}
			batch.Reset()
		}
	}
	if err := d.Commit(ctx(), batch); err != nil {
		b.Fatal(err)
	}
	closeDB(b, d)
	return openDB(b, o)
}

// BenchmarkScan is the load of the index: nanoseconds per record.
func BenchmarkScan(b *testing.B) {
	d := million(b)
	n := 0
	for b.Loop() {
		n = 0
		if err := d.Scan(ctx(), func(uint32, []byte, *Record) error { n++; return nil }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/record")
	closeDB(b, d)
}

// BenchmarkGet is one point read among a million records.
func BenchmarkGet(b *testing.B) {
	d := million(b)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i = (i + 7919) % 1_000_000
		if _, err := d.Get(1, fmt.Appendf(nil, "%036d", i*2654435761%4294967296)); err != nil {
			b.Fatal(err)
		}
	}
	closeDB(b, d)
}

// BenchmarkOpen is create, open and close of an empty database in memory: what a
// cut of the laboratory pays at least.
func BenchmarkOpen(b *testing.B) {
	o := Options{Dir: "/m", FS: memFS()}
	closeDB(b, newDB(b, o))
	for b.Loop() {
		closeDB(b, openDB(b, o))
	}
}
