package nvme

import (
	"fmt"

	"github.com/ugds-store/ugds/internal/base"
)

// Offsets of the controller properties in BAR 0, in bytes (Base 3.1.4).
const (
	RegCAP    = 0x00 // controller capabilities, 64 bits
	RegVS     = 0x08 // version
	RegINTMS  = 0x0c // interrupt mask set
	RegINTMC  = 0x10 // interrupt mask clear
	RegCC     = 0x14 // controller configuration
	RegCSTS   = 0x1c // controller status
	RegNSSR   = 0x20 // NVM subsystem reset
	RegAQA    = 0x24 // admin queue attributes
	RegASQ    = 0x28 // admin submission queue base address, 64 bits
	RegACQ    = 0x30 // admin completion queue base address, 64 bits
	RegCMBLOC = 0x38 // controller memory buffer location
	RegCMBSZ  = 0x3c // controller memory buffer size
	RegCRTO   = 0x68 // controller ready timeouts
	// RegDoorbells is where the doorbells begin (PCIe 3.1.2).
	RegDoorbells = 0x1000
)

// NSSRReset is the value that, written to NSSR, resets the NVM subsystem:
// "NVMe" in ASCII (Base 3.1.4.7).
const NSSRReset = 0x4e564d65

// Limits of what the driver accepts in CAP.
const (
	// MaxDSTRD is the largest doorbell stride exponent: a page for each doorbell.
	// The field goes to 15, but no controller spreads its doorbells over more.
	MaxDSTRD = 10
	// TimeoutUnitMs is the unit of CAP.TO, in milliseconds.
	TimeoutUnitMs = 500
	// minPageShift is the exponent of the smallest memory page, 4 KiB.
	minPageShift = 12
)

// FieldError is a register or identify field with a value that makes no sense or
// that this driver cannot work with. It wraps the class: ErrDeviceGone when all
// bits are set, ErrCorrupt for nonsense, ErrNotSupported for the rest.
type FieldError struct {
	Field string // for example "CAP.MPSMIN"
	Value uint64
	Why   string
	Class error
}

// Error names the field and its value.
func (e *FieldError) Error() string {
	return fmt.Sprintf("%s: %s = %#x: %s", e.Class, e.Field, e.Value, e.Why)
}

// Unwrap is the class.
func (e *FieldError) Unwrap() error { return e.Class }

func gone(field string, v uint64) error {
	return &FieldError{field, v, "all bits are set: the device does not answer", base.ErrDeviceGone}
}

func nonsense(field string, v uint64, why string) error {
	return &FieldError{field, v, why, base.ErrCorrupt}
}

func unsupported(field string, v uint64, why string) error {
	return &FieldError{field, v, why, base.ErrNotSupported}
}

// CAP is the Controller Capabilities property (Base 3.1.4.1).
type CAP uint64

// field gives bits lo and up, as many as the mask has.
func (c CAP) field(lo uint, mask uint64) uint64 { return uint64(c) >> lo & mask }

// QueueEntries is the largest number of entries of an I/O queue: MQES, which is
// zero-based, plus one. 2 to 65,536 in a CAP that passed Check.
func (c CAP) QueueEntries() uint32 { return uint32(c.field(0, 0xffff)) + 1 }

// CQR tells whether queues must be physically contiguous.
func (c CAP) CQR() bool { return c.field(16, 1) != 0 }

// WeightedRoundRobin tells whether that arbitration is supported (AMS bit 0).
func (c CAP) WeightedRoundRobin() bool { return c.field(17, 1) != 0 }

// TimeoutMs is the longest time that the controller may take to change
// CSTS.RDY, in milliseconds (TO).
func (c CAP) TimeoutMs() uint32 { return uint32(c.field(24, 0xff)) * TimeoutUnitMs }

// DSTRD is the exponent of the doorbell stride.
func (c CAP) DSTRD() uint8 { return uint8(c.field(32, 15)) }

// NSSRS tells whether the NVM subsystem reset is supported.
func (c CAP) NSSRS() bool { return c.field(36, 1) != 0 }

// CSS are the supported command sets; see the CSS constants.
func (c CAP) CSS() uint8 { return uint8(c.field(37, 0xff)) }

// Bits of CAP.CSS.
const (
	CSSNVM     = 1 << 0 // the NVM command set
	CSSIO      = 1 << 6 // command sets chosen by Identify, the NVM command set included
	CSSNoIO    = 1 << 7 // none, says the specification; controllers with I/O command sets set it too
	cssMeaning = CSSNVM | CSSIO
)

// CMBS tells whether there is a controller memory buffer.
func (c CAP) CMBS() bool { return c.field(57, 1) != 0 }

// MinPageShift is the exponent of the smallest memory page size (MPSMIN).
func (c CAP) MinPageShift() uint { return uint(c.field(48, 15)) + minPageShift }

// MaxPageShift is the exponent of the largest memory page size (MPSMAX).
func (c CAP) MaxPageShift() uint { return uint(c.field(52, 15)) + minPageShift }

// Check tells whether the driver can work with the capabilities. It must pass
// before any field is used (B-08): a BAR that is not mapped reads as zeros, a
// device that is gone as ones. The error is a *FieldError.
func (c CAP) Check() error {
	v := uint64(c)
	switch {
	case v == ^uint64(0):
		return gone("CAP", v)
	case v == 0:
		return nonsense("CAP", v, "reads as zero: the registers are not mapped or not powered")
	case c.QueueEntries() < MinQueueEntries:
		return nonsense("CAP.MQES", c.field(0, 0xffff), "a queue needs at least two entries")
	case c.field(24, 0xff) == 0:
		return nonsense("CAP.TO", 0, "no time to become ready")
	case c.MinPageShift() > c.MaxPageShift():
		return nonsense("CAP.MPSMIN", c.field(48, 15), fmt.Sprintf("is more than MPSMAX, %d", c.field(52, 15)))
	case c.DSTRD() > MaxDSTRD:
		return nonsense("CAP.DSTRD", uint64(c.DSTRD()), fmt.Sprintf("a doorbell stride above 2^%d bytes", 2+MaxDSTRD))
	case c.CSS()&cssMeaning == 0:
		return unsupported("CAP.CSS", uint64(c.CSS()), "the controller has no NVM command set")
	}
	return nil
}

// CAPFields are the parts of a CAP, for models of a controller and tests.
type CAPFields struct {
	MQES           uint16 // zero-based
	CQR, WRR       bool
	TO             uint8 // units of TimeoutUnitMs
	DSTRD          uint8
	NSSRS          bool
	CSS            uint8
	MPSMIN, MPSMAX uint8
	CMBS           bool
}

// MakeCAP encodes the capabilities, whether they make sense or not.
func MakeCAP(f CAPFields) CAP {
	v := uint64(f.MQES) | uint64(f.TO)<<24 | uint64(f.DSTRD&15)<<32 | uint64(f.CSS)<<37 |
		uint64(f.MPSMIN&15)<<48 | uint64(f.MPSMAX&15)<<52
	for _, b := range []struct {
		on bool
		at uint
	}{{f.CQR, 16}, {f.WRR, 17}, {f.NSSRS, 36}, {f.CMBS, 57}} {
		if b.on {
			v |= 1 << b.at
		}
	}
	return CAP(v)
}

// SQDoorbell is the offset of the tail doorbell of submission queue qid in BAR
// 0, in bytes (PCIe 3.1.2.1). dstrd is CAP.DSTRD.
func SQDoorbell(qid uint16, dstrd uint8) uint64 {
	return RegDoorbells + 2*uint64(qid)<<(2+dstrd)
}

// CQDoorbell is the offset of the head doorbell of completion queue qid in BAR
// 0, in bytes (PCIe 3.1.2.2).
func CQDoorbell(qid uint16, dstrd uint8) uint64 {
	return RegDoorbells + (2*uint64(qid)+1)<<(2+dstrd)
}

// VS is the Version property (Base 3.1.4.2).
type VS uint32

// MakeVS encodes a version.
func MakeVS(major uint16, minor, tertiary uint8) VS {
	return VS(uint32(major)<<16 | uint32(minor)<<8 | uint32(tertiary))
}

// AtLeast tells whether the controller follows the given version or a newer one.
func (v VS) AtLeast(major uint16, minor uint8) bool { return v >= MakeVS(major, minor, 0) }

// String is for example "1.4" or "1.2.1".
func (v VS) String() string {
	s := fmt.Sprintf("%d.%d", v>>16, v>>8&0xff)
	if t := v & 0xff; t != 0 {
		s += fmt.Sprintf(".%d", t)
	}
	return s
}

// Check refuses a version that no controller has. The error is a *FieldError.
func (v VS) Check() error {
	switch {
	case v == ^VS(0):
		return gone("VS", uint64(v))
	case v < MakeVS(1, 0, 0) || v >= MakeVS(16, 0, 0):
		return nonsense("VS", uint64(v), "not a version of the specification")
	}
	return nil
}
