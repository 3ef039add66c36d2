package meta

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

var long = flag.Bool("long", false, "run the longer forms")

func TestMain(m *testing.M) {
	testenv.Main(m, func(stack string) bool {
		// The dump of so many parked goroutines is cut off: the last one is partial.
		return ExemptGoroutine(stack) || abandoned.Load() && !strings.Contains(stack, "created by ")
	})
}

var testID = Identity{Version: 1, Store: [16]byte{1, 2, 3}, Epoch: 7, Devices: [][16]byte{{4}, {5}}}

func ctx() context.Context { return context.Background() }

// newDB makes and opens metadata on fs, which may be nil for the disk.
func newDB(t testing.TB, o Options) *DB {
	t.Helper()
	if err := Create(o, testID); err != nil {
		t.Fatal(err)
	}
	return openDB(t, o)
}

func openDB(t testing.TB, o Options) *DB {
	t.Helper()
	d, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func closeDB(t testing.TB, d *DB) {
	t.Helper()
	if err := d.Close(ctx()); err != nil {
		t.Fatal(err)
	}
}

func testRecord(gen uint64, length int64) *Record {
	r := &Record{Gen: gen, Length: length, CRC: uint32(gen) * 7, CreatedUnixNano: int64(gen), Extents: []uint64{gen << 20, gen}}
	for range pieces(length, 0) {
		r.PieceCRCs = append(r.PieceCRCs, uint32(len(r.PieceCRCs)))
	}
	return r
}

func same(a, b Record) bool {
	return a.Gen == b.Gen && a.Length == b.Length && a.Flags == b.Flags && a.CRC == b.CRC &&
		a.CreatedUnixNano == b.CreatedUnixNano && slices.Equal(a.Extents, b.Extents) && slices.Equal(a.PieceCRCs, b.PieceCRCs)
}

func put(t testing.TB, d *DB, ns uint32, gen uint64, keys ...string) {
	t.Helper()
	if err := tryPut(d, ns, gen, keys...); err != nil {
		t.Fatal(err)
	}
}

func tryPut(d *DB, ns uint32, gen uint64, keys ...string) error {
	b := NewBatch()
	for _, k := range keys {
		b.Put(ns, []byte(k), testRecord(gen, 100))
	}
	b.SetLastGen(gen)
	return d.Commit(ctx(), b)
}

func scan(t testing.TB, d *DB) map[string]Record {
	t.Helper()
	got := map[string]Record{}
	err := d.Scan(ctx(), func(ns uint32, key []byte, r *Record) error {
		c := *r
		c.Extents, c.PieceCRCs = slices.Clone(r.Extents), slices.Clone(r.PieceCRCs)
		got[fmt.Sprintf("%d/%s", ns, key)] = c
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestLifeOfAStore(t *testing.T) {
	for name, fs := range map[string]vfs.FS{"disk": nil, "memory": vfs.NewMem()} {
		t.Run(name, func(t *testing.T) {
			o := Options{Dir: filepath.Join(t.TempDir(), "a", "meta"), FS: fs}
			d := newDB(t, o)
			if h := d.Header(); h != (Header{Store: testID.Store, Epoch: 7, NextNS: 1}) {
				t.Fatal(h)
			}
			n, err := d.CreateNamespace(ctx(), "default", [16]byte{9})
			if err != nil || n.ID != 1 {
				t.Fatal(n, err)
			}
			if err := d.RaiseEpoch(ctx(), 8); err != nil {
				t.Fatal(err)
			}
			put(t, d, 1, 1, "a", "b", "c")
			b := NewBatch()
			b.Put(1, []byte("big"), testRecord(2, 5<<20+1))
			b.Delete(1, []byte("b"))
			b.SetLastGen(3)
			if err := d.Commit(ctx(), b); err != nil {
				t.Fatal(err)
			}
			check := func(d *DB) {
				t.Helper()
				if h := d.Header(); h != (Header{Store: testID.Store, Epoch: 8, LastGen: 3, NextNS: 2}) {
					t.Fatal(h)
				}
				got := scan(t, d)
				if len(got) != 3 || !same(got["1/big"], *testRecord(2, 5<<20+1)) || !same(got["1/a"], *testRecord(1, 100)) {
					t.Fatal(got)
				}
				if r, err := d.Get(1, []byte("big")); err != nil || !same(r, *testRecord(2, 5<<20+1)) {
					t.Fatal(r, err)
				}
				if _, err := d.Get(1, []byte("b")); !errors.Is(err, base.ErrNotFound) {
					t.Fatal(err)
				}
				if ns, err := d.Namespaces(); err != nil || len(ns) != 1 || ns[0] != n {
					t.Fatal(ns, err)
				}
			}
			check(d)
			closeDB(t, d)
			d = openDB(t, o)
			check(d)
			it := d.Iter(1, nil, []byte("a"))
			var keys [][]byte
			for it.Next() {
				keys = append(keys, bytes.Clone(it.Key()))
			}
			if err := it.Close(); err != nil || fmt.Sprintf("%s", keys) != "[big c]" {
				t.Fatalf("%s %v", keys, err)
			}
			closeDB(t, d)
			o.ReadOnly = true
			d = openDB(t, o)
			check(d)
			closeDB(t, d)
		})
	}
}

func newRand(t testing.TB) *rand.Rand { return testenv.Seed(t) }
