package meta

import (
	"encoding/binary"
	"testing"
	"time"
)

// TestCompactionsGoOn writes so many tables that commits would stall for ever if
// compactions ended: after one was refused, Pebble waits until it is asked.
func TestCompactionsGoOn(t *testing.T) {
	d := newDB(t, Options{Dir: t.TempDir(), MemTableBytes: 64 << 10, CommitDeadline: 20 * time.Second})
	defer closeDB(t, d)
	ns, err := d.CreateNamespace(ctx(), "n", [16]byte{})
	if err != nil {
		t.Fatal(err)
	}
	r := newRand(t)
	b := d.NewBatch()
	for gen := uint64(1); gen <= 60_000; gen++ {
		key := binary.BigEndian.AppendUint64(nil, r.Uint64())
		b.Put(ns.ID, key, &Record{Gen: gen, Length: 1, Extents: []uint64{gen}})
		if b.Len() < 200 {
			continue
		}
		b.SetLastGen(gen)
		if err := d.Commit(ctx(), b); err != nil {
			t.Fatalf("generation %d: %v", gen, err)
		}
		b.Reset()
	}
	m := d.p.Metrics()
	if m.Flush.Count < 30 || m.Compact.Count < 3 || m.Levels[0].TablesCount > 20 {
		t.Errorf("%d flushes, %d compactions, %d tables not compacted", m.Flush.Count, m.Compact.Count, m.Levels[0].TablesCount)
	}
}
