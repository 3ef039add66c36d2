package meta

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/ugds-store/ugds/internal/base"
)

// PieceBytes is the unit of payload checksums.
const PieceBytes = base.MiB

// Record says where an object lies and how to check it. Records are versioned;
// one with an unknown version or flag is refused with ErrCorrupt.
type Record struct {
	Gen             uint64   // place of the put in the store's commit order
	Length          int64    // bytes of the value, not negative
	Flags           uint32   // Flag values
	CRC             uint32   // CRC-32C of the whole value; 0 with FlagNoChecksum
	CreatedUnixNano int64    // when it was put, by the host's clock; for people
	Extents         []uint64 // packed extents in the order of the value; their meaning is the store's
	PieceCRCs       []uint32 // CRC-32C per PieceBytes; empty when one piece, or with FlagNoChecksum
}

// Flags of a record.
const (
	FlagNoChecksum uint32 = 1 << iota // the payload has no checksum

	knownFlags = FlagNoChecksum
)

// Layout of an encoded record, little-endian:
//
//	0  version (1), three zero bytes
//	4  flags u32
//	8  generation u64
//	16 length i64
//	24 created, unix nanoseconds i64
//	32 CRC-32C of the value u32
//	36 number of extents u32
//	40 number of piece checksums u32
//	44 CRC-32C over the database key and every other byte of the record u32
//	48 extents u64 …, piece checksums u32 …
const (
	recordVersion = 1
	recordHeader  = 48
)

func (r *Record) encodedLen() int { return recordHeader + 8*len(r.Extents) + 4*len(r.PieceCRCs) }

// pieces is how many piece checksums a record of this length and flags has.
func pieces(length int64, flags uint32) int64 {
	if length <= PieceBytes || flags&FlagNoChecksum != 0 {
		return 0
	}
	return (length-1)/PieceBytes + 1
}

// check reports what is wrong with the fields, or "".
func (r *Record) check() string {
	switch {
	case r.Length < 0:
		return "negative length"
	case r.Flags&^knownFlags != 0:
		return "unknown flag"
	case len(r.Extents) > MaxExtents:
		return "too many extents"
	case len(r.PieceCRCs) > MaxPieces || int64(len(r.PieceCRCs)) != pieces(r.Length, r.Flags):
		return "number of piece checksums does not fit the length"
	case r.Flags&FlagNoChecksum != 0 && r.CRC != 0:
		return "checksum although flagged as without"
	}
	return ""
}

// encode writes the record into b, which is encodedLen long, for the given
// database key.
func (r *Record) encode(dbKey, b []byte) {
	le := binary.LittleEndian
	le.PutUint32(b[0:], recordVersion)
	le.PutUint32(b[4:], r.Flags)
	le.PutUint64(b[8:], r.Gen)
	le.PutUint64(b[16:], uint64(r.Length))
	le.PutUint64(b[24:], uint64(r.CreatedUnixNano))
	le.PutUint32(b[32:], r.CRC)
	le.PutUint32(b[36:], uint32(len(r.Extents)))
	le.PutUint32(b[40:], uint32(len(r.PieceCRCs)))
	le.PutUint32(b[44:], 0)
	at := recordHeader
	for _, e := range r.Extents {
		le.PutUint64(b[at:], e)
		at += 8
	}
	for _, c := range r.PieceCRCs {
		le.PutUint32(b[at:], c)
		at += 4
	}
	le.PutUint32(b[44:], recordSum(dbKey, b))
}

// recordSum skips the four bytes of the checksum itself.
func recordSum(dbKey, b []byte) uint32 {
	return crc32.Update(sum(dbKey, b[:44]), castagnoli, b[recordHeader:])
}

// decode reads b, reusing the slices of r. It fails with ErrCorrupt.
func (r *Record) decode(dbKey, b []byte) error {
	le := binary.LittleEndian
	if len(b) < recordHeader {
		return corruptRecord(dbKey, "it has %d bytes", len(b))
	}
	if v := le.Uint32(b[0:]); v != recordVersion {
		return corruptRecord(dbKey, "version %d is unknown to this program", v)
	}
	extents, crcs := int64(le.Uint32(b[36:])), int64(le.Uint32(b[40:]))
	if int64(len(b)) != recordHeader+8*extents+4*crcs {
		return corruptRecord(dbKey, "%d bytes for %d extents and %d checksums", len(b), extents, crcs)
	}
	if got, want := recordSum(dbKey, b), le.Uint32(b[44:]); got != want {
		return corruptRecord(dbKey, "checksum %#x, want %#x", got, want)
	}
	r.Flags = le.Uint32(b[4:])
	r.Gen = le.Uint64(b[8:])
	r.Length = int64(le.Uint64(b[16:]))
	r.CreatedUnixNano = int64(le.Uint64(b[24:]))
	r.CRC = le.Uint32(b[32:])
	r.Extents, r.PieceCRCs = r.Extents[:0], r.PieceCRCs[:0]
	b = b[recordHeader:]
	for ; extents > 0; extents-- {
		r.Extents = append(r.Extents, le.Uint64(b))
		b = b[8:]
	}
	for ; crcs > 0; crcs-- {
		r.PieceCRCs = append(r.PieceCRCs, le.Uint32(b))
		b = b[4:]
	}
	if why := r.check(); why != "" {
		return corruptRecord(dbKey, "%s", why)
	}
	return nil
}

func corruptRecord(dbKey []byte, format string, args ...any) error {
	err := base.Errorf("metadata record", printKey(dbKey), base.ErrCorrupt, format, args...)
	return base.WithHint(err, "a record of a newer program, or a damaged disk; nothing was changed")
}
