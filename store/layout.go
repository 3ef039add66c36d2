package store

import (
	"encoding/hex"

	"github.com/ugds-store/ugds/alloc"
	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// Places on a device, in bytes. docs/on-disk.md draws them.
const (
	labelOff       = 0
	superFirstOff  = 64 * base.KiB  // copies 0 and 1 lie here and superStride further
	superStride    = 64 * base.KiB  //
	superTail      = 128 * base.KiB // copies 2 and 3 begin this far before the end
	marksOff       = 256 * base.KiB
	marksCount     = 64
	testOff        = 512 * base.KiB // of gpuxfer.TestBytes: patterns of self-tests
	tableOff       = base.MiB       // slot table
	tailReserve    = 256 * base.KiB // nothing but superblocks lies in it
	slotRecordSize = 64             // bytes reserved in the slot table per block of slab space
	superCopies    = 4
)

// ID is a random identity: of a store or of one of its devices.
type ID [16]byte

// String prints the identity in hexadecimal.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText makes identities readable in JSON.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// DeviceLayout is the division of one device. Offsets and lengths are bytes.
type DeviceLayout struct {
	ID         ID     `json:"id"`
	Target     string `json:"target"`
	Capacity   int64  `json:"capacity"`
	TableOff   int64  `json:"slot_table_off"`
	TableBytes int64  `json:"slot_table_bytes"`
	SlabOff    int64  `json:"slab_off"`
	Slabs      uint32 `json:"slabs"`
}

// Layout is the geometry of a store.
type Layout struct {
	StoreID   ID             `json:"store_id"`
	Version   uint32         `json:"format_version"`
	Epoch     uint64         `json:"epoch"`
	SlabBytes int64          `json:"slab_bytes"`
	PoolBytes int64          `json:"pool_bytes"` // slab space of all devices
	Devices   []DeviceLayout `json:"devices"`
}

// superOff is the place of copy i on a device of the given capacity.
func superOff(copyNo int, capacity int64) int64 {
	if copyNo < 2 {
		return superFirstOff + int64(copyNo)*superStride
	}
	end := capacity &^ (base.StoreBlock - 1)
	return end - superTail + int64(copyNo-2)*superStride
}

// divide computes the slot table and slab area of a device. The table holds one
// record for each block of slab space, so both grow together.
func divide(capacity, slabBytes int64) DeviceLayout {
	end := capacity&^(base.StoreBlock-1) - tailReserve
	perSlab := slabBytes / base.StoreBlock * slotRecordSize
	slabs := (end - tableOff) / (slabBytes + perSlab)
	for ; slabs > 0; slabs-- {
		table := base.AlignUp(slabs*perSlab, base.StoreBlock)
		off := base.AlignUp(tableOff+table, slabBytes)
		if off+slabs*slabBytes <= end {
			return DeviceLayout{Capacity: capacity, TableOff: tableOff, TableBytes: table,
				SlabOff: off, Slabs: uint32(slabs)}
		}
	}
	return DeviceLayout{Capacity: capacity, TableOff: tableOff, SlabOff: end}
}

// allocGeometry is the pool as the allocator sees it.
func (l *Layout) allocGeometry() alloc.Geometry {
	g := alloc.Geometry{SlabBlocks: uint32(l.SlabBytes / base.StoreBlock)}
	for _, d := range l.Devices {
		g.Devices = append(g.Devices, alloc.Span{
			FirstBlock: uint64(d.SlabOff / base.StoreBlock), Slabs: d.Slabs})
	}
	return g
}

// planLayout divides the devices of a new store.
func planLayout(devs []driver.Device, forcedSlab int64) (*Layout, error) {
	if len(devs) == 0 || len(devs) > MaxStoreDevices {
		return nil, base.Errorf("format", "store", ErrInvalid, "%d devices, the limit is 1 to %d",
			len(devs), MaxStoreDevices)
	}
	if f := forcedSlab; f != 0 && (f < MinForcedSlab || f > MaxSlabBytes || f&(f-1) != 0) {
		return nil, base.Errorf("format", "store", ErrInvalid,
			"slab size %d: a power of two from %s to %s", f,
			base.FormatBytes(MinForcedSlab), base.FormatBytes(MaxSlabBytes))
	}
	var spans []DeviceSpan
	for _, d := range devs {
		in := d.Info()
		if in.BlockSize > base.StoreBlock || base.StoreBlock%in.MemAlign != 0 {
			return nil, base.Errorf("format", in.Target, ErrNotSupported,
				"logical blocks of %d bytes, memory alignment %d", in.BlockSize, in.MemAlign)
		}
		spans = append(spans, DeviceSpan{in.Target, in.Capacity})
	}
	return divideAll(spans, forcedSlab)
}

// DeviceSpan is a device that Format shall divide: its name in errors, and its bytes.
type DeviceSpan struct {
	Target   string
	Capacity int64
}

// CheckSpans tells, without the devices, whether Format could divide such ones into slabs
// of slabBytes, 0 for the size that it chooses: ErrInvalid, in the words of Format, if
// not. Safe for concurrent use.
func CheckSpans(spans []DeviceSpan, slabBytes int64) error {
	_, err := divideAll(spans, slabBytes)
	return err
}

func divideAll(spans []DeviceSpan, forcedSlab int64) (*Layout, error) {
	var pool int64
	for _, d := range spans {
		if d.Capacity < MinDeviceBytes {
			return nil, base.Errorf("format", d.Target, ErrInvalid, "%s is too small, a device has at least %s",
				base.FormatBytes(d.Capacity), base.FormatBytes(MinDeviceBytes))
		}
		pool += d.Capacity
	}
	slab := int64(alloc.SlabBlocksFor(pool, forcedSlab)) * base.StoreBlock
	l := &Layout{Version: superVersion, SlabBytes: slab}
	for _, d := range spans {
		dl := divide(d.Capacity, slab)
		dl.Target = d.Target
		if dl.Slabs == 0 {
			return nil, base.Errorf("format", dl.Target, ErrInvalid, "no room for one slab of %s", base.FormatBytes(slab))
		}
		l.PoolBytes += int64(dl.Slabs) * slab
		l.Devices = append(l.Devices, dl)
	}
	return l, nil
}
