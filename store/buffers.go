package store

import (
	"github.com/ugds-store/ugds/driver"
	gpuxfer "github.com/ugds-store/ugds/gpu/xfer"
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

// hold keeps the regions from being closed until release: what the processor copies is
// held by no command (I3). ErrClosed for one that was closed; then none is held.
func (b Buffers) hold() error {
	for i := range b {
		if r := b[i].Region; r != nil {
			if err := r.Hold(r.Generation()); err != nil {
				b[:i].release()
				return err
			}
		}
	}
	return nil
}

// release ends hold.
func (b Buffers) release() {
	for i := range b {
		if r := b[i].Region; r != nil {
			r.Release()
		}
	}
}

// cursor walks through buffers in order.
type cursor struct {
	bufs Buffers
	gpu  []gpuRange // what is known of each that is GPU memory; nil if none is
	i    int
	pos  int64 // inside bufs[i]
}

// place is the region that holds the next byte, and where; nil if none does.
func (c *cursor) place() (*driver.Region, int64) {
	r := &c.bufs[c.i]
	if p := c.peer(); p != nil {
		return p.Region(), p.At(r.GPU) + r.Off + c.pos
	}
	return r.Region, r.Off + c.pos
}

// peer is the present range as devices reach it, if it is GPU memory that any does.
func (c *cursor) peer() *gpuxfer.Peer {
	if c.gpu == nil {
		return nil
	}
	return c.gpu[c.i].peer
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
	begin, first := *c, len(segs)
	limit := first + driver.MaxSegs
	for got < n && len(segs) < limit {
		c.skipEmpty()
		if c.i == len(c.bufs) {
			break
		}
		r, at := c.place()
		take := min(n-got, c.left()) &^ (align - 1)
		if r == nil || at%align != 0 || take == 0 {
			break
		}
		if c.gpu != nil && got > 0 && segs[len(segs)-1].Region != r {
			break // one kind of memory a transfer
		}
		segs = append(segs, r.Seg(at, take))
		c.pos += take
		got += take
	}
	// Give back what does not fill a block.
	kept := got &^ (base.StoreBlock - 1)
	*c = begin
	c.advance(kept)
	for over := got - kept; over > 0; {
		last := &segs[len(segs)-1]
		cut := min(over, last.Len)
		over -= cut
		if last.Len -= cut; last.Len == 0 {
			segs = segs[:len(segs)-1]
		}
	}
	return segs, kept
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

// inRegion reports whether the next byte lies in a region, or in GPU memory that
// devices reach.
func (c *cursor) inRegion() bool {
	c.skipEmpty()
	return c.i < len(c.bufs) && (c.bufs[c.i].Region != nil || c.peer() != nil)
}

// left is what is left of the present range.
func (c *cursor) left() int64 { return c.bufs[c.i].size() - c.pos }
