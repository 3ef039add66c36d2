package store

import (
	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// Size is the sum of the ranges, in bytes.
func (b Buffers) Size() (n int64) {
	for i := range b {
		n += b[i].size()
	}
	return n
}

func (r *Range) size() int64 {
	if r.Region != nil || r.GPU != 0 {
		return r.Len
	}
	return int64(len(r.Bytes))
}

// check refuses ranges outside their regions and negative sizes.
func (b Buffers) check(op string) error {
	for i := range b {
		r := &b[i]
		if r.GPU != 0 {
			if len(r.Bytes) != 0 || r.Region != nil || r.Off < 0 || r.Len < 0 {
				return base.Errorf(op, "buffers", ErrInvalid, "range %d of GPU memory: offset %d, length %d, or other memory too", i, r.Off, r.Len)
			}
			continue
		}
		if r.Region == nil {
			if r.Len != 0 && len(r.Bytes) == 0 {
				return base.Errorf(op, "buffers", ErrInvalid, "range %d has a length of %d and no memory", i, r.Len)
			}
			continue
		}
		if len(r.Bytes) != 0 {
			return base.Errorf(op, "buffers", ErrInvalid, "range %d has both bytes and a region", i)
		}
		if !base.CheckRange(r.Off, r.Len, r.Region.Size()) {
			return base.Errorf(op, "buffers", ErrOutOfRange, "range %d: offset %d, length %d, %v",
				i, r.Off, r.Len, r.Region)
		}
	}
	return nil
}

// cursor walks through buffers in order.
type cursor struct {
	bufs Buffers
	i    int
	pos  int64 // inside bufs[i]
}

// view is the processor's view of up to n bytes of the present range, and moves
// past them. nil when the processor cannot reach the memory: that of a GPU, or of a
// region without a view.
func (c *cursor) view(n int64) []byte {
	c.skipEmpty()
	r := &c.bufs[c.i]
	n = min(n, r.size()-c.pos)
	at := c.pos
	c.pos += n
	switch {
	case r.GPU != 0:
		return nil
	case r.Region != nil:
		return r.Region.Bytes(r.Off+at, n)
	}
	return r.Bytes[at : at+n]
}

func (c *cursor) skipEmpty() {
	for c.i < len(c.bufs) && c.pos == c.bufs[c.i].size() {
		c.i, c.pos = c.i+1, 0
	}
}

// copyOut copies len(dst) bytes from the buffers to dst.
func (c *cursor) copyOut(dst []byte) bool {
	for len(dst) > 0 {
		v := c.view(int64(len(dst)))
		if v == nil {
			return false
		}
		copy(dst, v)
		dst = dst[len(v):]
	}
	return true
}

// copyIn copies src to the buffers.
func (c *cursor) copyIn(src []byte) bool {
	for len(src) > 0 {
		v := c.view(int64(len(src)))
		if v == nil {
			return false
		}
		copy(v, src)
		src = src[len(v):]
	}
	return true
}

// direct appends segments for up to n bytes that lie in regions at addresses and
// lengths that are multiples of align, and moves past them. It stops at the
// first range that does not fit and gives the bytes it covers, a multiple of a
// store block.
func (c *cursor) direct(n, align int64, segs []driver.Seg) ([]driver.Seg, int64) {
	var got int64
	save, keep, kept := *c, len(segs), int64(0)
	limit := len(segs) + driver.MaxSegs
	for got < n && len(segs) < limit {
		c.skipEmpty()
		if c.i == len(c.bufs) {
			break
		}
		r := &c.bufs[c.i]
		take := min(n-got, r.size()-c.pos) &^ (align - 1)
		if r.Region == nil || (r.Off+c.pos)%align != 0 || take == 0 {
			break
		}
		segs = append(segs, r.Region.Seg(r.Off+c.pos, take))
		c.pos += take
		got += take
		if got%base.StoreBlock == 0 {
			save, keep, kept = *c, len(segs), got
		}
	}
	*c = save // give back what does not fill a block
	return segs[:keep], kept
}

// advance moves past n bytes.
func (c *cursor) advance(n int64) {
	for n > 0 {
		c.skipEmpty()
		take := min(n, c.bufs[c.i].size()-c.pos)
		c.pos += take
		n -= take
	}
}

// inRegion reports whether the next byte lies in a region.
func (c *cursor) inRegion() bool {
	c.skipEmpty()
	return c.i < len(c.bufs) && c.bufs[c.i].Region != nil
}

// left is what is left of the present range.
func (c *cursor) left() int64 { return c.bufs[c.i].size() - c.pos }
