package gpu

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/ugds-store/ugds/internal/dl"
)

// WatchBytes is the size of an entry for Stream.Watch, in bytes.
const WatchBytes = 64

// Watch is a kernel that waits for bytes which somebody else writes while it runs. It
// reads all of the range first, so that caches have what was there before; then it
// looks at the last 8 bytes until they are Value, and then it copies the range as it
// sees it.
type Watch struct {
	Src   Ptr           // a multiple of 8
	Dst   Ptr           // likewise
	N     int64         // bytes, a multiple of 8
	Value uint64        // of the last 8
	For   time.Duration // after which it gives up, by the GPU's own clock
}

// Where an entry has what the kernel stores: that it waits, and how that ended.
const (
	watchBegun = 40
	watchEnded = 48
)

// What the cell of WatchEnded becomes.
const (
	WatchSaw    = 1 // the value, and the range was copied
	WatchGaveUp = 2 // nothing was copied
)

// PutWatch writes the entry that begins at b[0], which is in pinned memory, at a
// multiple of 8.
func PutWatch(b []byte, w Watch) {
	for i, v := range []uint64{uint64(w.Src), uint64(w.Dst), uint64(w.N), w.Value, uint64(w.For), 0, 0, 0} {
		binary.LittleEndian.PutUint64(b[8*i:], v)
	}
}

// GetWatch reads it.
func GetWatch(b []byte) Watch {
	v := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	return Watch{Ptr(v(0)), Ptr(v(1)), int64(v(2)), v(3), time.Duration(v(4))}
}

// WatchBegun is the cell of an entry that becomes 1 when the kernel waits.
func WatchBegun(b []byte) *atomic.Uint64 { return dl.Cell(b, watchBegun) }

// WatchEnded is the cell that becomes WatchSaw or WatchGaveUp when it has ended.
func WatchEnded(b []byte) *atomic.Uint64 { return dl.Cell(b, watchEnded) }
