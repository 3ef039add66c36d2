package store

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/ugds-store/ugds/internal/base"
)

// superVersion is the version of the on-disk format.
const superVersion = 1

var (
	superMagic = [8]byte{'u', 'G', 'D', 'S', 's', 'u', 'p', 0}
	markMagic  = [8]byte{'u', 'G', 'D', 'S', 'm', 'r', 'k', 0}
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// superblock is the identity of a device and of the store that it belongs to.
type superblock struct {
	Version  uint32
	Seq      uint64 // rises with each write of the set of copies
	Epoch    uint64
	StoreID  ID
	DeviceID ID
	Index    uint32 // position of this device in the pool
	Created  int64  // Unix seconds
	FPKey    [16]byte
	SlabSize int64
	Layout   DeviceLayout
	Devices  []ID // of the pool, in order
}

var le = binary.LittleEndian

// encode writes copy copyNo into b, which is one zeroed block.
func (s *superblock) encode(b []byte, copyNo int) {
	copy(b[0:], superMagic[:])
	le.PutUint32(b[8:], s.Version)
	le.PutUint32(b[12:], uint32(copyNo))
	le.PutUint64(b[16:], s.Seq)
	le.PutUint64(b[24:], s.Epoch)
	copy(b[32:], s.StoreID[:])
	copy(b[48:], s.DeviceID[:])
	le.PutUint32(b[64:], s.Index)
	le.PutUint32(b[68:], uint32(len(s.Devices)))
	le.PutUint64(b[72:], uint64(s.Created))
	copy(b[80:], s.FPKey[:])
	le.PutUint64(b[96:], uint64(s.SlabSize))
	le.PutUint64(b[104:], uint64(s.Layout.Capacity))
	le.PutUint64(b[112:], uint64(s.Layout.TableOff))
	le.PutUint64(b[120:], uint64(s.Layout.TableBytes))
	le.PutUint64(b[128:], uint64(s.Layout.SlabOff))
	le.PutUint32(b[136:], s.Layout.Slabs)
	le.PutUint32(b[140:], marksCount)
	le.PutUint64(b[144:], marksOff)
	for i, id := range s.Devices {
		copy(b[512+16*i:], id[:])
	}
	le.PutUint32(b[base.StoreBlock-4:], crc32.Checksum(b[:base.StoreBlock-4], castagnoli))
}

// decodeSuper reads one copy. ErrCorrupt when it is not a valid superblock;
// ErrNotSupported when it is one of a later version.
func decodeSuper(b []byte) (*superblock, error) {
	if [8]byte(b[:8]) != superMagic {
		return nil, base.Errorf("read", "superblock", ErrCorrupt, "no magic")
	}
	if crc32.Checksum(b[:base.StoreBlock-4], castagnoli) != le.Uint32(b[base.StoreBlock-4:]) {
		return nil, base.Errorf("read", "superblock", ErrCorrupt, "checksum")
	}
	s := &superblock{
		Version: le.Uint32(b[8:]), Seq: le.Uint64(b[16:]), Epoch: le.Uint64(b[24:]),
		StoreID: ID(b[32:48]), DeviceID: ID(b[48:64]), Index: le.Uint32(b[64:]),
		Created: int64(le.Uint64(b[72:])), FPKey: [16]byte(b[80:96]), SlabSize: int64(le.Uint64(b[96:])),
		Layout: DeviceLayout{ID: ID(b[48:64]), Capacity: int64(le.Uint64(b[104:])),
			TableOff: int64(le.Uint64(b[112:])), TableBytes: int64(le.Uint64(b[120:])),
			SlabOff: int64(le.Uint64(b[128:])), Slabs: le.Uint32(b[136:])},
	}
	if s.Version != superVersion {
		return nil, base.Errorf("read", "superblock", ErrNotSupported,
			"format version %d, this program knows %d", s.Version, superVersion)
	}
	n := le.Uint32(b[68:])
	if n == 0 || n > MaxStoreDevices || s.Index >= n {
		return nil, base.Errorf("read", "superblock", ErrCorrupt, "device %d of %d", s.Index, n)
	}
	for i := range int(n) {
		s.Devices = append(s.Devices, ID(b[512+16*i:528+16*i]))
	}
	if err := s.checkGeometry(); err != nil {
		return nil, err
	}
	return s, nil
}

// checkGeometry refuses numbers that the format cannot have made.
func (s *superblock) checkGeometry() error {
	want := DeviceLayout{}
	if ok := s.SlabSize >= MinForcedSlab && s.SlabSize <= MaxSlabBytes && s.SlabSize&(s.SlabSize-1) == 0 &&
		s.Layout.Capacity >= MinDeviceBytes; ok {
		want = divide(s.Layout.Capacity, s.SlabSize)
		want.ID, want.Target = s.Layout.ID, s.Layout.Target
	}
	if s.Layout != want {
		return base.Errorf("read", "superblock", ErrCorrupt, "geometry %+v does not follow from capacity and slab size", s.Layout)
	}
	if s.DeviceID != s.Devices[s.Index] {
		return base.Errorf("read", "superblock", ErrCorrupt, "device identity is not the one in its own list")
	}
	return nil
}

// quorum is what the four copies of a device say together.
type quorum struct {
	super *superblock // the winner; nil if none
	seq   uint64      // highest sequence number seen in a valid copy
	valid int         // valid copies of any sequence
	whole bool        // the winner has two valid copies: writing is allowed
	// order is the order in which the copies are to be written: what is not the
	// winner's first, so that two copies of the winner stay until two newer ones
	// are durable.
	order  [superCopies]int
	faults [superCopies]error // what is wrong with single copies
}

// judge applies the rule: the newest sequence with two valid copies wins; a
// lone copy opens read-only; none, or two identities, is refused.
func judge(target string, copies [superCopies][]byte) (quorum, error) {
	var q quorum
	var newer error
	count := map[uint64]int{}
	best := map[uint64]*superblock{}
	var seqs [superCopies]uint64
	for i, b := range copies {
		s, err := decodeSuper(b)
		if err != nil {
			if newer == nil && !isCorrupt(err) {
				newer = err
			}
			q.faults[i] = err
			continue
		}
		q.valid++
		for _, o := range best {
			if o.StoreID != s.StoreID || o.DeviceID != s.DeviceID {
				return q, base.WithHint(base.Errorf("open", target, ErrMismatch, "superblock copies of two %s", ownersOf(copies)),
					"a part of another device was written over this one: bring it back from a copy; "+emptyHint)
			}
		}
		seqs[i] = s.Seq
		count[s.Seq]++
		best[s.Seq] = s
		q.seq = max(q.seq, s.Seq)
	}
	if q.valid == 0 {
		if newer != nil {
			return q, base.Wrap("open", target, newer)
		}
		return q, base.WithHint(base.Errorf("open", target, ErrCorrupt, "no valid superblock"),
			"if it was a device of a store, bring it back from a copy; "+emptyHint)
	}
	for seq, s := range best {
		n := count[seq]
		better := q.super == nil || n >= 2 && !q.whole || (n >= 2) == q.whole && seq > q.super.Seq
		if better {
			q.super, q.whole = s, n >= 2
		}
	}
	q.order = writeOrder(seqs, q.super.Seq)
	return q, nil
}

// ownersOf tells to whom each valid copy belongs: stores, or devices of one store.
func ownersOf(copies [superCopies][]byte) string {
	var first *superblock
	what, ids := "devices", [superCopies]string{}
	for i, b := range copies {
		s, err := decodeSuper(b)
		if err != nil {
			continue
		}
		if first == nil {
			first = s
		}
		if s.StoreID != first.StoreID {
			what = "stores"
		}
		ids[i] = fmt.Sprintf("device %v of store %v", s.DeviceID, s.StoreID)
	}
	for i, id := range ids {
		if id != "" {
			what += fmt.Sprintf("; copy %d: %s", i, id)
		}
	}
	return strings.Replace(what, ";", ":", 1)
}

// writeOrder puts the copies that are not of the winning sequence first. seqs
// holds 0 for invalid ones.
func writeOrder(seqs [superCopies]uint64, winner uint64) (order [superCopies]int) {
	n := 0
	for _, mine := range []bool{false, true} {
		for i, seq := range seqs {
			if (seq == winner) == mine {
				order[n] = i
				n++
			}
		}
	}
	return order
}

// encodeMark writes a commit mark into b, which is one zeroed block.
func encodeMark(b []byte, store, dev ID, m mark) {
	copy(b, markMagic[:])
	le.PutUint32(b[8:], superVersion)
	copy(b[16:], store[:])
	copy(b[32:], dev[:])
	le.PutUint64(b[48:], m.Epoch)
	le.PutUint64(b[56:], m.Seq)
	le.PutUint64(b[64:], m.Gen)
	le.PutUint32(b[base.StoreBlock-4:], crc32.Checksum(b[:base.StoreBlock-4], castagnoli))
}

// mark is a commit mark: "generation Gen was committed before this was written".
type mark struct {
	Epoch, Seq, Gen uint64
}

// decodeMark reads a mark; false for anything that is not a valid mark of this
// store and device. A torn mark is simply not there.
func decodeMark(b []byte, store, dev ID) (mark, bool) {
	if [8]byte(b[:8]) != markMagic || le.Uint32(b[8:]) != superVersion ||
		ID(b[16:32]) != store || ID(b[32:48]) != dev ||
		crc32.Checksum(b[:base.StoreBlock-4], castagnoli) != le.Uint32(b[base.StoreBlock-4:]) {
		return mark{}, false
	}
	return mark{le.Uint64(b[48:]), le.Uint64(b[56:]), le.Uint64(b[64:])}, true
}
