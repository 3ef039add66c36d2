package nvme

import "fmt"

// IdentifyNamespace is the answer to Identify with CNS 00h (NVM 4.1.5.1).
type IdentifyNamespace struct {
	NSZE          Le64  // size, blocks
	NCAP          Le64  // capacity, blocks: how many may be allocated at once
	NUSE          Le64  // blocks allocated now
	NSFEAT        uint8 // bit 4: the preferred write and deallocate fields are there
	NLBAF         uint8 // formats, zero-based
	FLBAS         uint8 // the format in use
	MC, DPC       uint8
	DPS           uint8 // protection information type in bits 2:0
	NMIC          uint8 // bit 0: may be shared by several controllers
	RESCAP, FPI   uint8
	DLFEAT        uint8 // what deallocated blocks read as, in bits 2:0
	NAWUN         Le16  // atomic write unit, blocks, zero-based
	NAWUPF        Le16
	NACWU         Le16
	NABSN         Le16
	NABO          Le16
	NABSPF        Le16
	NOIOB         Le16 // optimal I/O boundary, blocks; 0: none
	NVMCAP        Le128
	NPWG, NPWA    Le16 // preferred write granularity and alignment, blocks, zero-based
	NPDG, NPDA    Le16 // the same for deallocation
	NOWS          Le16
	_             [18]byte
	ANAGRPID      Le32
	_             [3]byte
	NSATTR        uint8 // bit 0: write protected
	NVMSETID      Le16
	ENDGID        Le16
	NGUID         [16]byte
	EUI64         [8]byte
	LBAF          [64]LBAFormat
	VendorUnknown [3712]byte
}

// LBAFormat is one supported format of a namespace (NVM 4.1.5.1).
type LBAFormat struct {
	MS    Le16  // metadata, bytes a block
	LBADS uint8 // block size, as a power of two
	RP    uint8 // relative performance, 0 is best, in bits 1:0
}

// Limits of the block sizes that the driver takes, as powers of two: 512 bytes to
// 4 KiB, the unit of the store.
const (
	MinBlockShift = 9
	MaxBlockShift = 12
)

// Format is the format in use and its index, 0 to 63. Bits 6:5 of FLBAS extend
// the index when there are more than 16 formats.
func (ns *IdentifyNamespace) Format() (f LBAFormat, index uint8) {
	index = ns.FLBAS & 15
	if ns.NLBAF >= 16 {
		index |= ns.FLBAS >> 1 & 0x30
	}
	return ns.LBAF[index], index
}

// ExtendedLBA tells whether metadata follows each block in the data buffer.
func (ns *IdentifyNamespace) ExtendedLBA() bool { return ns.FLBAS&(1<<4) != 0 }

// Shared tells whether other controllers may use the namespace.
func (ns *IdentifyNamespace) Shared() bool { return ns.NMIC&1 != 0 }

// WriteProtected tells whether writes are refused now.
func (ns *IdentifyNamespace) WriteProtected() bool { return ns.NSATTR&1 != 0 }

// Active tells whether the namespace exists and is attached.
func (ns *IdentifyNamespace) Active() bool { return ns.NSZE.Get() != 0 }

// Geometry is what the driver needs to know of a namespace.
type Geometry struct {
	BlockShift uint   // block size, as a power of two
	Blocks     uint64 // size; Blocks<<BlockShift fits an int64
	Boundary   uint32 // NOIOB, blocks; 0: none
}

// Geometry decodes the size and the format in use, and refuses what the driver
// cannot work with (C-20): metadata and protection information change how much
// memory a transfer touches. The error is a *FieldError.
func (ns *IdentifyNamespace) Geometry() (Geometry, error) {
	f, index := ns.Format()
	g := Geometry{BlockShift: uint(f.LBADS), Blocks: ns.NSZE.Get(), Boundary: uint32(ns.NOIOB.Get())}
	switch {
	case !ns.Active():
		return Geometry{}, nonsense("IDENTIFY.NSZE", 0, "the namespace is not active")
	case uint16(index) > uint16(ns.NLBAF):
		return Geometry{}, nonsense("IDENTIFY.FLBAS", uint64(ns.FLBAS), fmt.Sprintf("only %d formats", uint16(ns.NLBAF)+1))
	case f.MS.Get() != 0:
		return Geometry{}, unsupported("IDENTIFY.LBAF.MS", uint64(f.MS.Get()),
			"blocks with metadata: format the namespace without")
	case ns.DPS&7 != 0:
		return Geometry{}, unsupported("IDENTIFY.DPS", uint64(ns.DPS),
			"end-to-end protection information: format the namespace without")
	case f.LBADS < MinBlockShift || f.LBADS > MaxBlockShift:
		return Geometry{}, unsupported("IDENTIFY.LBAF.LBADS", uint64(f.LBADS),
			fmt.Sprintf("blocks of other than 2^%d to 2^%d bytes", MinBlockShift, MaxBlockShift))
	case g.Blocks > maxCapacity>>g.BlockShift:
		return Geometry{}, unsupported("IDENTIFY.NSZE", g.Blocks, "more bytes than a 63-bit offset reaches")
	}
	return g, nil
}
