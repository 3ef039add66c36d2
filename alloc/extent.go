package alloc

import (
	"fmt"

	"github.com/ugds-store/ugds/internal/base"
)

// Limits of a packed Extent.
const (
	MaxDevices     = 1 << 8
	MaxStartBlock  = 1<<36 - 1 // 256 TiB a device
	MaxExtentBlock = 1<<20 - 1 // just under 4 GiB an extent
)

// Extent is a run of 4 KiB blocks on one device: one slot of a slab, or a run of
// whole slabs.
type Extent struct {
	Dev    uint8  // index of the device in the pool
	Start  uint64 // first block on that device
	Blocks uint32 // length in blocks, at least 1
}

// Off is the first byte on the device.
func (e Extent) Off() int64 { return int64(e.Start) * base.StoreBlock }

// Bytes is the capacity.
func (e Extent) Bytes() int64 { return int64(e.Blocks) * base.StoreBlock }

// Pack puts the extent into 64 bits: device 8, start 36, blocks 20. The fields
// must be inside the limits; Valid tells.
func (e Extent) Pack() uint64 { return uint64(e.Dev)<<56 | e.Start<<20 | uint64(e.Blocks) }

// Unpack undoes Pack.
func Unpack(v uint64) Extent {
	return Extent{Dev: uint8(v >> 56), Start: v >> 20 & MaxStartBlock, Blocks: uint32(v & MaxExtentBlock)}
}

// Valid tells whether the fields are inside the limits of Pack.
func (e Extent) Valid() bool {
	return e.Start <= MaxStartBlock && e.Blocks > 0 && e.Blocks <= MaxExtentBlock
}

// String prints device:start+blocks.
func (e Extent) String() string { return fmt.Sprintf("%d:%d+%d", e.Dev, e.Start, e.Blocks) }
