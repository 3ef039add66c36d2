package gpu

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"

	"github.com/ugds-store/ugds/internal/base"
)

// SumBytes is the size of an entry of a table of checksums, in bytes.
const SumBytes = 24

// sumWords is what the 16 bytes at the end of a range are a multiple of: the GPU
// takes whole vectors, and what it makes is corrected here.
const sumWords = 16

// unpad[k] is x^32 without the k bytes of zeros that follow a range.
var unpad = func() (t [sumWords]uint32) {
	for k := range t {
		t[k] = base.ShiftCRC32C(1<<31, int64(32-8*k))
	}
	return t
}()

// unpad0 is the same for ranges that end with a vector, as most do.
var unpad0 = sync.OnceValue(func() *base.CRC32CShift { return base.NewCRC32CShift(32) })

// PutSum writes entry i of the table that begins at b[0]: the range [p, p+n).
func PutSum(b []byte, i int, p Ptr, n int64) {
	if n == 0 {
		p = 0 // nothing is looked at
	}
	e := b[i*SumBytes : (i+1)*SumBytes]
	binary.LittleEndian.PutUint64(e, uint64(p))
	binary.LittleEndian.PutUint64(e[8:], uint64(n))
	binary.LittleEndian.PutUint64(e[16:], 0)
}

// sumEntry is entry i: its range, and what Stream.Sum stored.
func sumEntry(b []byte, i int) (p Ptr, n int64, part uint32) {
	e := b[i*SumBytes : (i+1)*SumBytes]
	return Ptr(binary.LittleEndian.Uint64(e)), int64(binary.LittleEndian.Uint64(e[8:])), binary.LittleEndian.Uint32(e[16:])
}

// pad is the number of bytes from the end of the range to the next vector.
func pad(p Ptr, n int64) int { return int(-(uint64(p) + uint64(n)) % sumWords) }

// EachSum gives the ranges of a table to fn, in order, until one fails, and
// stores the checksums as Stream.Sum does. It is for backends without a kernel.
func EachSum(b []byte, count int, fn func(p Ptr, n int64) (crc uint32, err error)) error {
	for i := range count {
		p, n, _ := sumEntry(b, i)
		crc, err := fn(p, n)
		if err != nil {
			return err
		}
		part := base.ShiftCRC32C(crc^onesBefore(n), int64(8*pad(p, n)-32))
		binary.LittleEndian.PutUint32(b[i*SumBytes+16:], part)
	}
	return nil
}

// onesBefore is what the checksum of n bytes has of its initial value and of the
// inversion at its end.
func onesBefore(n int64) uint32 { return ^base.ShiftCRC32C(^uint32(0), n%(1<<31-1)*8) }

// SumItem is one range of a call of a Summer, and its answer.
type SumItem struct {
	Ptr Ptr
	N   int64  // bytes
	CRC uint32 // CRC-32C (Castagnoli), as hash/crc32 gives it; of 0 bytes it is 0
}

// How a Summer shares out work: large ranges are cut, so that every multiprocessor
// has some, into pieces that are not so small that putting them together costs
// more than reading them.
const (
	sumPieces   = 1024
	sumMinPiece = 128 * base.KiB
	sumTable    = 4096 // entries of one launch
)

// Summer computes checksums of memory that a GPU reaches, on the GPU. It owns a
// stream and a little pinned memory, so that a call allocates nothing on the GPU
// and may be made while streams wait for cells. One goroutine at a time may use it.
type Summer struct {
	stream Stream
	table  HostMemory
	last   uint64 // the tick behind the last launch
	pieces []sumPiece
	shift  *base.CRC32CShift // by unit
	unit   int64

	onesOf int64 // for which length ones is: many ranges are often of one
	ones   uint32
}

// sumPiece is a part of an item, and what the GPU made of it.
type sumPiece struct {
	p    Ptr
	n    int64
	part uint32
}

// NewSummer makes one for d. ErrNotSupported where it has no kernel. Like
// NewStream it can hang while a stream of the GPU waits for a cell.
func NewSummer(d Device) (*Summer, error) {
	if err := d.Warm(); err != nil {
		return nil, err
	}
	h, err := d.AllocHost(sumTable * SumBytes)
	if err != nil {
		return nil, err
	}
	s, err := d.NewStream()
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	sum := &Summer{stream: s, table: h}
	if err := s.Sum(h.Ptr(), 0); err != nil { // it has no kernel
		return nil, errors.Join(err, sum.Close())
	}
	return sum, nil
}

// Sum computes the checksum of every item from the bytes that are there during
// the call; what other streams or devices write must have ended before. It holds
// no registration: the caller does, and the memory must stay until Sum returned
// nil, or Close. ErrTimeout when ctx ends first; the answers are then not valid.
func (s *Summer) Sum(ctx context.Context, items []SumItem) error {
	if err := s.stream.WaitTick(ctx, s.last); err != nil { // a call before may have been given up
		return err
	}
	s.plan(items)
	for from := 0; from < len(s.pieces); from += sumTable {
		if err := s.launch(ctx, s.pieces[from:min(from+sumTable, len(s.pieces))]); err != nil {
			return err
		}
	}
	rest := s.pieces
	for i := range items {
		k := 0
		for n := items[i].N; n > 0; n -= s.unit {
			k++
		}
		items[i].CRC = s.join(items[i].N, rest[:k])
		rest = rest[k:]
	}
	return nil
}

// plan cuts the items into pieces of one unit, but for the last one of each.
func (s *Summer) plan(items []SumItem) {
	var total int64
	for i := range items {
		total += items[i].N
	}
	if unit := base.AlignUp(max(1, total/sumPieces), sumMinPiece); unit != s.unit {
		s.unit, s.shift = unit, nil
	}
	s.pieces = s.pieces[:0]
	for i := range items {
		for off := int64(0); off < items[i].N; off += s.unit {
			s.pieces = append(s.pieces, sumPiece{p: items[i].Ptr + Ptr(off), n: min(s.unit, items[i].N-off)})
		}
	}
}

func (s *Summer) launch(ctx context.Context, list []sumPiece) error {
	b := s.table.Bytes()
	for i := range list {
		PutSum(b, i, list[i].p, list[i].n)
	}
	err := s.stream.Sum(s.table.Ptr(), len(list))
	if err != nil {
		return err
	}
	if s.last, err = s.stream.Tick(); err != nil {
		return err
	}
	if err := s.stream.WaitTick(ctx, s.last); err != nil {
		return err
	}
	for i := range list {
		_, _, list[i].part = sumEntry(b, i)
	}
	return nil
}

// join puts the pieces of an item of n bytes together. All but the last are of one
// unit and end at the same place in a vector, so that one correction does for all.
func (s *Summer) join(n int64, list []sumPiece) uint32 {
	if n == 0 {
		return 0
	}
	var crc uint32
	last := list[len(list)-1]
	if full := list[:len(list)-1]; len(full) > 0 {
		if s.shift == nil {
			s.shift = base.NewCRC32CShift(8 * s.unit)
		}
		for _, p := range full {
			crc = s.shift.Of(crc) ^ p.part
		}
		crc = base.ShiftCRC32C(unpadded(crc, full[0]), 8*last.n)
	}
	if s.onesOf != n {
		s.onesOf, s.ones = n, onesBefore(n)
	}
	return crc ^ unpadded(last.part, last) ^ s.ones
}

// unpadded is what part is without the zeros behind its piece.
func unpadded(part uint32, p sumPiece) uint32 {
	if k := pad(p.p, p.n); k > 0 {
		return base.MulCRC32C(part, unpad[k])
	}
	return unpad0().Of(part)
}

// Close ends the stream, after its work, and frees the memory.
func (s *Summer) Close() error {
	if err := s.stream.Close(); err != nil {
		return err
	}
	return s.table.Close()
}
