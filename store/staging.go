package store

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/bitset"
)

// staging is the bounded pool of bounce buffers: one region, cut into buffers of
// three sizes. A caller never blocks on it while it holds buffers that are not
// in flight, so waiting always ends.
type staging struct {
	region *driver.Region
	class  [3]stageClass
}

// stageClass holds the buffers of one size. The lowest one that is free is taken:
// what is used by turns is neighbours, which the device gets as one segment, and is
// still in the processor's caches.
type stageClass struct {
	size int64
	base int64 // offset of the first into the region
	n    int64 // buffers in all
	lost atomic.Int64
	gone chan struct{} // closed when every buffer is lost

	mu      sync.Mutex
	free    bitset.Set
	waiting int
	back    chan struct{} // has a token when a waiter should look again
}

func (c *stageClass) take() (off int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.free.Len() == 0 {
		return 0, false
	}
	i := c.free.First()
	c.free.Remove(i)
	if c.free.Len() > 0 {
		c.tell()
	}
	return c.base + int64(i)*c.size, true
}

func (c *stageClass) give(off int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.free.Add(uint32((off - c.base) / c.size))
	c.tell()
}

// tell wakes one waiter, who tells the next one. Called with mu held.
func (c *stageClass) tell() {
	if c.waiting > 0 {
		select {
		case c.back <- struct{}{}:
		default:
		}
	}
}

func (c *stageClass) await(n int) {
	c.mu.Lock()
	c.waiting += n
	c.mu.Unlock()
}

// stageBuf is one buffer; the zero value is none.
type stageBuf struct {
	off   int64
	class int8 // index+1; 0 is none
	lost  bool // a GPU may still use it: it is not used again
}

func (b stageBuf) ok() bool { return b.class != 0 }

// minStaging is the smallest pool, in bytes.
const minStaging = 4 * base.MiB

func newStaging(total int64, devs []driver.Device) (*staging, error) {
	total = max(total, minStaging) &^ (base.MiB - 1)
	r, err := driver.AllocRegion(total, "store staging")
	if err != nil {
		return nil, err
	}
	for _, d := range devs {
		if err := d.Attach(r); err != nil {
			_ = r.Close()
			return nil, base.Wrap("attach staging memory to", d.Info().Target, err)
		}
	}
	st := &staging{region: r}
	// Three quarters for whole pieces, the rest for the small ones.
	share := [3]int64{total / 16, total * 3 / 16, total * 12 / 16}
	var off int64
	for i, size := range [3]int64{4 * base.KiB, 64 * base.KiB, PieceBytes} {
		n := share[i] / size
		c := &st.class[i]
		c.size, c.base, c.n, c.gone, c.back = size, off, n, make(chan struct{}), make(chan struct{}, 1)
		c.free = bitset.New(uint32(n))
		c.free.Fill(uint32(n))
		off += n * size
	}
	return st, nil
}

// close gives the memory back. Nothing may be in flight.
func (st *staging) close() error { return st.region.Close() }

func (st *staging) classFor(n int64) int {
	for i := range st.class {
		if n <= st.class[i].size {
			return i
		}
	}
	panic("store: a piece larger than the largest staging buffer")
}

// tryGet takes a buffer for n bytes, at most PieceBytes, or none.
func (st *staging) tryGet(n int64) stageBuf {
	for i := st.classFor(n); i < len(st.class); i++ {
		if off, ok := st.class[i].take(); ok {
			return stageBuf{off: off, class: int8(i + 1)}
		}
	}
	return stageBuf{}
}

// get waits for a buffer for n bytes. The caller holds none that is not in flight.
func (st *staging) get(ctx context.Context, n int64) (stageBuf, error) {
	if b := st.tryGet(n); b.ok() {
		return b, nil
	}
	for i := st.classFor(n); i < len(st.class); i++ {
		if b, err := st.getOf(ctx, n, i); b.ok() || err != nil {
			return b, err
		}
	}
	return stageBuf{}, base.WithHint(base.Errorf("wait for", "staging memory", ErrIsolated,
		"every buffer for %d bytes was in a copy of a GPU that failed", n), "open the store again")
}

// getOf waits until a buffer for n bytes is free, or every one of class i is lost
// (none): then wait for a larger one.
func (st *staging) getOf(ctx context.Context, n int64, i int) (stageBuf, error) {
	c := &st.class[i]
	c.await(1)
	defer c.await(-1)
	for {
		if b := st.tryGet(n); b.ok() {
			return b, nil
		}
		select {
		case <-c.back:
		case <-c.gone:
			return stageBuf{}, nil
		case <-ctx.Done():
			return stageBuf{}, base.Errorf("wait for", "staging memory", ErrTimeout, "%w", ctx.Err())
		}
	}
}

// lose keeps a buffer from further use, since a GPU may still read or write it. It
// tells whether so many of its size are lost that the GPUs should get no more.
func (st *staging) lose(b stageBuf) (enough bool) {
	c := &st.class[b.class-1]
	n, all := c.lost.Add(1), c.n
	if n == all {
		close(c.gone)
	}
	return n >= (all+3)/4
}

func (st *staging) put(b stageBuf) {
	if b.ok() && !b.lost {
		st.class[b.class-1].give(b.off)
	}
}

// bytes is the first n bytes of the buffer.
func (st *staging) bytes(b stageBuf, n int64) []byte { return st.region.Bytes(b.off, n) }
