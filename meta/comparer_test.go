package meta

import (
	"bytes"
	"sync/atomic"
	"testing"
)

// TestYieldingComparer: the order is Pebble's own, with one yield each time it was armed.
func TestYieldingComparer(t *testing.T) {
	var armed atomic.Bool
	yields := 0
	c := yieldingComparer(&armed, func() { yields++ })
	keys := [][]byte{nil, {}, {0}, {0, 0}, []byte("a"), []byte("a\x00"), []byte("b"), {0xff}}
	for round := 1; round <= 2; round++ {
		armed.Store(true)
		for _, a := range keys {
			for _, b := range keys {
				if got, want := c.Compare(a, b), bytes.Compare(a, b); got != want {
					t.Errorf("compare %q with %q: %d, want %d", a, b, got, want)
				}
			}
		}
		if yields != round || armed.Load() {
			t.Errorf("round %d: %d yields, armed %v", round, yields, armed.Load())
		}
	}
}

// TestCommitYields: a commit lets the log's goroutine begin before it is through with
// the memtable. Nothing else compares keys here.
func TestCommitYields(t *testing.T) {
	d := newDB(t, Options{Dir: t.TempDir()})
	defer closeDB(t, d)
	for gen := uint64(1); gen <= 3; gen++ {
		b := d.NewBatch()
		b.Put(1, []byte{byte(gen)}, testRecord(gen, 4096))
		b.SetLastGen(gen)
		if err := d.Commit(ctx(), b); err != nil {
			t.Fatal(err)
		}
		if d.logFirst.Load() {
			t.Errorf("commit %d did not yield", gen)
		}
	}
}
