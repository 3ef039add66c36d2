package meta

import (
	"bytes"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// yieldingComparer is Pebble's default comparer, which calls yield in the first
// comparison after armed was set.
//
// A commit wakes the goroutine that writes the log and goes on with the memtable, 0.7 us
// a record. The scheduler keeps what was woken last for the processor that woke it: no
// other one takes it for some 50 us, even if it is idle. So the log would be written when
// the memtable is done, where the two can run at once. A comparison is the only call that
// Pebble makes out of a commit after it woke the other. That of another goroutine may
// come first: it yields then, to no harm.
func yieldingComparer(armed *atomic.Bool, yield func()) *pebble.Comparer {
	c := *pebble.DefaultComparer
	c.Compare = func(a, b []byte) int {
		if armed.Load() && armed.CompareAndSwap(true, false) {
			yield()
		}
		return bytes.Compare(a, b)
	}
	return &c
}
