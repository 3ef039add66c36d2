package nvme

import (
	"fmt"
	"math"
)

// IdentifyController is the answer to Identify with CNS 01h (Base 5.1.13.2.1).
// Fields that the driver does not use are left out; r-fields fill the space.
type IdentifyController struct {
	VID, SSVID    Le16     // PCI vendor and subsystem vendor
	SN            [20]byte // serial number
	MN            [40]byte // model number
	FR            [8]byte  // firmware revision
	RAB           uint8    // recommended arbitration burst
	IEEE          [3]byte
	CMIC          uint8 // bit 1: the subsystem may have several controllers
	MDTS          uint8 // largest data transfer: 2^MDTS pages of 2^MPSMIN; 0: no limit
	CNTLID        Le16
	VER           Le32
	RTD3R         Le32 // resume latency, microseconds
	RTD3E         Le32 // entry latency, microseconds: how long a shutdown may take
	OAES          Le32 // asynchronous events that can be enabled
	CTRATT        Le32
	_             [11]byte
	CNTRLTYPE     uint8
	FGUID         [16]byte
	CRDT          [3]Le16 // command retry delays, units of 100 milliseconds
	_             [122]byte
	OACS          Le16  // optional admin commands
	ACL           uint8 // abort command limit, zero-based
	AERL          uint8 // asynchronous event request limit, zero-based
	FRMW          uint8
	LPA           uint8 // log page attributes
	ELPE          uint8 // error log entries, zero-based
	NPSS          uint8 // power states, zero-based
	AVSCC         uint8
	APSTA         uint8 // bit 0: autonomous power state transitions
	WCTEMP        Le16  // warning temperature, kelvin; 0: not reported
	CCTEMP        Le16  // critical temperature, kelvin; 0: not reported
	_             [242]byte
	SQES, CQES    uint8 // entry sizes: required in bits 3:0, largest in bits 7:4
	MAXCMD        Le16
	NN            Le32 // largest namespace identifier
	ONCS          Le16 // optional I/O commands
	FUSES         Le16
	FNA           uint8
	VWC           uint8 // volatile write cache
	AWUN          Le16  // atomic write unit, blocks, zero-based
	AWUPF         Le16  // the same across a power loss
	_             [6]byte
	SGLS          Le32 // SGL support
	MNAN          Le32
	_             [224]byte
	SUBNQN        [256]byte
	_             [1024]byte
	PSD           [32]PowerState
	VendorUnknown [1024]byte
}

// PowerState is one power state descriptor (Base 5.1.13.2.1).
type PowerState struct {
	MP    Le16 // largest power
	_     uint8
	Flags uint8 // bit 0 MXPS: unit 0.0001 W instead of 0.01 W; bit 1 NOPS: not operational
	ENLAT Le32  // entry latency, microseconds
	EXLAT Le32  // exit latency, microseconds
	_     [20]byte
}

// Operational tells whether the controller does I/O in this state.
func (p *PowerState) Operational() bool { return p.Flags&2 == 0 }

// MicroWatts is the largest power in this state, or 0 when it is not reported.
func (p *PowerState) MicroWatts() uint64 {
	unit := uint64(10000)
	if p.Flags&1 != 0 {
		unit = 100
	}
	return uint64(p.MP.Get()) * unit
}

// Serial is the serial number.
func (id *IdentifyController) Serial() string { return text(id.SN[:]) }

// Model is the model number.
func (id *IdentifyController) Model() string { return text(id.MN[:]) }

// Firmware is the firmware revision.
func (id *IdentifyController) Firmware() string { return text(id.FR[:]) }

// Bits of ONCS (Base 5.1.13.2.1).
const (
	ONCSCompare     = 1 << 0
	ONCSDSM         = 1 << 2
	ONCSWriteZeroes = 1 << 3
	ONCSVerify      = 1 << 7
)

// Bits of OAES and of the asynchronous event configuration feature.
const (
	EventSMART     = 0x1f   // critical warnings, bits 4:0 of the feature alone
	EventNamespace = 1 << 8 // namespace attribute notices
	EventFirmware  = 1 << 9 // firmware activation notices
)

// VolatileCache tells whether writes may sit in a volatile cache (VWC bit 0).
func (id *IdentifyController) VolatileCache() bool { return id.VWC&1 != 0 }

// FlushAll tells whether one Flush may name all namespaces (VWC bits 2:1).
func (id *IdentifyController) FlushAll() bool { return id.VWC>>1&3 == 3 }

// SGLSupport says how data pointers may use SGLs (SGLS bits 1:0 and 18).
type SGLSupport struct {
	Supported bool
	Align     uint32 // of the address and length of data blocks, bytes: 1 or 4
	BitBucket bool   // the bit bucket descriptor is supported
}

// SGL decodes SGLS.
func (id *IdentifyController) SGL() SGLSupport {
	s := id.SGLS.Get()
	switch s & 3 {
	case 1:
		return SGLSupport{true, 1, s&(1<<16) != 0}
	case 2:
		return SGLSupport{true, 4, s&(1<<16) != 0}
	}
	return SGLSupport{}
}

// RetryDelayMs is the delay, in milliseconds, that a status with the given CRD
// index asks for before the command is sent again; 0 for none.
func (id *IdentifyController) RetryDelayMs(crd uint8) uint32 {
	if crd == 0 || crd > 3 {
		return 0
	}
	return uint32(id.CRDT[crd-1].Get()) * 100
}

// Stripe is the size, in bytes, that commands of a controller with QuirkStripe
// should not cross multiples of; 0 for none, or for more than 1 GiB. pageShift is CAP's smallest memory page.
func (id *IdentifyController) Stripe(pageShift uint) uint64 {
	n := uint(id.VendorUnknown[3])
	if n == 0 || n+pageShift > 30 {
		return 0
	}
	return 1 << (n + pageShift)
}

// MultiController tells whether the subsystem may have another controller.
func (id *IdentifyController) MultiController() bool { return id.CMIC&2 != 0 }

// Check refuses identify data that the driver cannot work with. The error is a
// *FieldError.
func (id *IdentifyController) Check() error {
	switch {
	case id.SQES&15 > IOSQES || id.SQES>>4 < IOSQES:
		return unsupported("IDENTIFY.SQES", uint64(id.SQES), "submission queue entries of 64 bytes are not possible")
	case id.CQES&15 > IOCQES || id.CQES>>4 < IOCQES:
		return unsupported("IDENTIFY.CQES", uint64(id.CQES), "completion queue entries of 16 bytes are not possible")
	case id.NN.Get() == 0:
		return nonsense("IDENTIFY.NN", 0, "the controller has no namespaces")
	case id.CNTRLTYPE > 1:
		return unsupported("IDENTIFY.CNTRLTYPE", uint64(id.CNTRLTYPE), "not an I/O controller")
	}
	return nil
}

// MaxTransfer is the largest data transfer of one command, in bytes, as MDTS
// says (Base 5.1.13.2.1): a power of two, or 0 for "no limit" (B-12).
// minPageShift is CAP.MinPageShift.
func (id *IdentifyController) MaxTransfer(minPageShift uint) uint64 {
	if id.MDTS == 0 {
		return 0
	}
	return 1 << min(uint(id.MDTS)+minPageShift, 63)
}

// NSIDAll names all namespaces.
const NSIDAll = 0xffffffff

// NamespaceList is the answer to Identify with CNS 02h and the Changed Attached
// Namespace List log page: identifiers in rising order, ended by 0.
type NamespaceList [1024]Le32

// IDs is the list as numbers. ErrCorrupt when it is not in rising order: a
// reader that follows such a list from page to page might never end.
func (l *NamespaceList) IDs() ([]uint32, error) {
	var out []uint32
	var last uint32
	for i := range l {
		id := l[i].Get()
		if id == 0 {
			break
		}
		if id <= last {
			return nil, nonsense("IDENTIFY.NSID", uint64(id), fmt.Sprintf("follows %d in the namespace list", last))
		}
		out, last = append(out, id), id
	}
	return out, nil
}

// Overflowed tells whether a changed-namespace list had no room for all changes
// (Base 5.1.12.1.5): then everything may have changed.
func (l *NamespaceList) Overflowed() bool { return l[0].Get() == NSIDAll }

// Descriptor types of the namespace identification descriptors.
const (
	NIDTEUI64 = 1
	NIDTNGUID = 2
	NIDTUUID  = 3
	NIDTCSI   = 4
)

// nidtSize is how many bytes a descriptor of a type has; 0 for an unknown type.
var nidtSize = [256]int{NIDTEUI64: 8, NIDTNGUID: 16, NIDTUUID: 16, NIDTCSI: 1}

// NamespaceID is what identifies a namespace in the world. A field of zeros is
// not reported.
type NamespaceID struct {
	EUI64 [8]byte
	NGUID [16]byte
	UUID  [16]byte
	CSI   uint8 // command set; 0 is the NVM command set
}

// Command sets by their identifier (Base 2.0, figure 281).
const (
	CSINVM      = 0
	CSIKeyValue = 1
	CSIZoned    = 2
)

// CSIName names a command set for messages.
func CSIName(csi uint8) string {
	switch csi {
	case CSINVM:
		return "the NVM command set"
	case CSIKeyValue:
		return "the key value command set"
	case CSIZoned:
		return "the command set of zoned namespaces"
	}
	return fmt.Sprintf("command set %d", csi)
}

// ParseDescriptors decodes the answer to Identify with CNS 03h (Base
// 5.1.13.2.4): a list of type, length, two reserved bytes and the value. Unknown
// types are skipped. ErrCorrupt when a known type has another length than it
// must, or a descriptor passes the end of b.
func ParseDescriptors(b []byte) (NamespaceID, error) {
	var id NamespaceID
	for len(b) >= 4 && b[0] != 0 {
		nidt, n := b[0], int(b[1])
		if n > len(b)-4 {
			return NamespaceID{}, nonsense("IDENTIFY.NIDL", uint64(n), "the descriptor passes the end of the data")
		}
		if want := nidtSize[nidt]; want != 0 && n != want {
			return NamespaceID{}, nonsense("IDENTIFY.NIDL", uint64(n), fmt.Sprintf("type %d has %d bytes", nidt, want))
		}
		switch value := b[4 : 4+n]; nidt {
		case NIDTEUI64:
			copy(id.EUI64[:], value)
		case NIDTNGUID:
			copy(id.NGUID[:], value)
		case NIDTUUID:
			copy(id.UUID[:], value)
		case NIDTCSI:
			id.CSI = value[0]
		}
		b = b[4+n:]
	}
	return id, nil
}

// String is the strongest identifier that the namespace has, or "".
func (id NamespaceID) String() string {
	switch {
	case id.UUID != [16]byte{}:
		u := id.UUID
		return fmt.Sprintf("uuid.%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
	case id.NGUID != [16]byte{}:
		return fmt.Sprintf("nguid.%x", id.NGUID)
	case id.EUI64 != [8]byte{}:
		return fmt.Sprintf("eui.%x", id.EUI64)
	}
	return ""
}

// IdentifyControllerNVM is the answer to Identify with CNS 06h and the NVM
// command set (NVM 4.1.5.4). Limits of 0 mean that none is reported.
type IdentifyControllerNVM struct {
	VSL   uint8 // largest verify, a power of two of 2^MPSMIN pages
	WZSL  uint8 // largest write zeroes, the same unit
	WUSL  uint8
	DMRL  uint8 // most ranges of a Dataset Management command
	DMRSL Le32  // most blocks of one range
	DMSL  Le64  // most blocks of all ranges together
	_     [IdentifySize - 16]byte
}

// maxCapacity keeps every byte offset inside an int64.
const maxCapacity = math.MaxInt64
