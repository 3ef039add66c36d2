package store

import (
	"context"
	"errors"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

func isCorrupt(err error) bool { return errors.Is(err, ErrCorrupt) }

// blockIO reads and writes single blocks of one device: superblocks and marks.
// Not safe for concurrent use.
type blockIO struct {
	dev driver.Device
	mem *driver.Region
}

// blockIOBytes is the scratch memory of a blockIO.
const blockIOBytes = marksCount * base.StoreBlock

func newBlockIO(d driver.Device) (*blockIO, error) {
	r, err := driver.AllocRegion(blockIOBytes, "store block I/O")
	if err != nil {
		return nil, err
	}
	return &blockIO{d, r}, nil
}

func (io *blockIO) close() {
	_ = io.mem.Close() // driver.Do returns with nothing in flight
}

// read gives n bytes at off; the slice is valid until the next call.
func (io *blockIO) read(ctx context.Context, off, n int64) ([]byte, error) {
	err := driver.Do(ctx, io.dev, driver.Request{Op: driver.OpRead, Off: off, Len: n,
		Segs: []driver.Seg{io.mem.Seg(0, n)}})
	if err != nil {
		return nil, err
	}
	return io.mem.Bytes(0, n), nil
}

// scratch is a zeroed block to fill; the i-th of the scratch memory.
func (io *blockIO) scratch(i int) []byte {
	b := io.mem.Bytes(int64(i)*base.StoreBlock, base.StoreBlock)
	clear(b)
	return b
}

// writeReq is a request that writes scratch block i to off.
func (io *blockIO) writeReq(i int, off int64) driver.Request {
	return driver.Request{Op: driver.OpWrite, Off: off, Len: base.StoreBlock,
		Segs: []driver.Seg{io.mem.Seg(int64(i)*base.StoreBlock, base.StoreBlock)}}
}

// readSupers judges the four copies of the device.
func (io *blockIO) readSupers(ctx context.Context) (quorum, error) {
	in := io.dev.Info()
	var copies [superCopies][]byte
	capacity := in.Capacity
	for i := range copies {
		if i == 2 {
			capacity = capacityFrom(copies[:2], in.Capacity)
		}
		off := superOff(i, capacity)
		if off < 0 || off+base.StoreBlock > in.Capacity { // the device was cut off before it
			copies[i] = make([]byte, base.StoreBlock)
			continue
		}
		b, err := io.read(ctx, off, base.StoreBlock)
		if err != nil {
			return quorum{}, base.Wrap("read superblock of", in.Target, err)
		}
		copies[i] = append([]byte(nil), b...)
	}
	q, err := judge(in.Target, copies)
	if isCorrupt(err) && in.Capacity < MinDeviceBytes {
		return q, base.WithHint(base.Errorf("open", in.Target, ErrCorrupt,
			"the device has %d bytes, one of a store at least %d", in.Capacity, int64(MinDeviceBytes)),
			"it was cut off or is another device: bring it back from a copy, or name the right one; "+emptyHint)
	}
	if err != nil {
		return q, err
	}
	if made := q.super.Layout.Capacity; made > in.Capacity {
		return q, base.WithHint(base.Errorf("open", in.Target, ErrCorrupt,
			"the device has %d bytes, the store was made on %d", in.Capacity, made),
			"%s", base.CutOffHint(made))
	}
	q.super.Layout.Target = in.Target
	return q, nil
}

// capacityFrom is the capacity at which the store was made, which places the
// last two copies: a device may have grown since.
func capacityFrom(first [][]byte, now int64) int64 {
	for _, b := range first {
		if s, err := decodeSuper(b); err == nil && s.Layout.Capacity <= now {
			return s.Layout.Capacity
		}
	}
	return now
}

// writeSupers writes the four copies two and two in the given order, with a
// flush after each pair, so that at every moment two copies of one sequence are
// whole.
func (io *blockIO) writeSupers(ctx context.Context, s *superblock, order [superCopies]int) error {
	for pair := range 2 {
		var reqs []driver.Request
		for i := range 2 {
			n := order[pair*2+i]
			s.encode(io.scratch(n), n)
			reqs = append(reqs, io.writeReq(n, superOff(n, s.Layout.Capacity)))
		}
		if err := driver.Do(ctx, io.dev, reqs...); err != nil {
			return base.Wrap("write superblock of", io.dev.Info().Target, err)
		}
		if err := flushIfVolatile(ctx, io.dev); err != nil {
			return base.Wrap("flush", io.dev.Info().Target, err)
		}
	}
	return nil
}

func flushIfVolatile(ctx context.Context, d driver.Device) error {
	if !d.Info().VolatileCache {
		return nil
	}
	return driver.Flush(ctx, d)
}

// readMarks finds the mark with the highest generation and the highest sequence
// number in use.
func (io *blockIO) readMarks(ctx context.Context, store, dev ID) (top mark, seq uint64, err error) {
	b, err := io.read(ctx, marksOff, marksCount*base.StoreBlock)
	if err != nil {
		return mark{}, 0, base.Wrap("read marks of", io.dev.Info().Target, err)
	}
	for i := range marksCount {
		m, ok := decodeMark(b[i*base.StoreBlock:(i+1)*base.StoreBlock], store, dev)
		if !ok {
			continue
		}
		seq = max(seq, m.Seq)
		if m.Gen > top.Gen {
			top = m
		}
	}
	return top, seq, nil
}
