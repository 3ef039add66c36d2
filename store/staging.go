package store

import (
	"context"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// staging is the bounded pool of bounce buffers: one region, cut into buffers of
// three sizes. A caller never blocks on it while it holds buffers that are not
// in flight, so waiting always ends.
type staging struct {
	region *driver.Region
	class  [3]stageClass
}

type stageClass struct {
	size int64
	free chan int64 // offsets into the region
}

// stageBuf is one buffer; the zero value is none.
type stageBuf struct {
	off   int64
	class int8 // index+1; 0 is none
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
		c := stageClass{size: size, free: make(chan int64, n)}
		for range n {
			c.free <- off
			off += size
		}
		st.class[i] = c
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
		select {
		case off := <-st.class[i].free:
			return stageBuf{off, int8(i + 1)}
		default:
		}
	}
	return stageBuf{}
}

// get waits for a buffer for n bytes. The caller holds none that is not in flight.
func (st *staging) get(ctx context.Context, n int64) (stageBuf, error) {
	if b := st.tryGet(n); b.ok() {
		return b, nil
	}
	i := st.classFor(n)
	select {
	case off := <-st.class[i].free:
		return stageBuf{off, int8(i + 1)}, nil
	case <-ctx.Done():
		return stageBuf{}, base.Errorf("wait for", "staging memory", ErrTimeout, "%w", ctx.Err())
	}
}

func (st *staging) put(b stageBuf) {
	if b.ok() {
		st.class[b.class-1].free <- b.off
	}
}

// bytes is the first n bytes of the buffer.
func (st *staging) bytes(b stageBuf, n int64) []byte { return st.region.Bytes(b.off, n) }
