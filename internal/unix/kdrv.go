package unix

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The interface of our kernel module, as kmod/uapi/ugds.h defines it. A test holds
// the sizes, offsets and numbers against that header. What the fields mean stands
// there.

// Limits and values of the module's interface.
const (
	KdrvABIVersion  = 1
	KdrvMapMax      = 1 << 36 // bytes of one mapping
	KdrvAllocMax    = 4 << 20 // bytes of one allocation
	KdrvSegmentsMax = 4096    // segments of one KdrvSegments
	KdrvStopMsMax   = 130000
	KdrvNVIDIAPage  = 64 << 10 // bytes, what KdrvDoNVIDIA is made of

	KdrvMmapStatus = 1 << 40 // file offset of the status page

	KdrvCapDMABuf = 1 << 0
	KdrvCapReset  = 1 << 1
	KdrvCapNVIDIA = 1 << 2

	KdrvStopReset     = 1 << 0 // flag of KdrvStop
	KdrvImportMovable = 1 << 0 // flag of KdrvImport
)

// KdrvIOMMU tells who translates the addresses of a controller.
type KdrvIOMMU uint32

// The kinds of translation.
const (
	KdrvIOMMUNone KdrvIOMMU = iota
	KdrvIOMMUIdentity
	KdrvIOMMULazy
	KdrvIOMMUStrict
)

// String names the kind, as the module's attribute does.
func (k KdrvIOMMU) String() string {
	if k > KdrvIOMMUStrict {
		return "unknown"
	}
	return [...]string{"none", "identity", "lazy", "strict"}[k]
}

// KdrvState is the state of a controller, as far as the kernel decides it.
type KdrvState uint32

// The states.
const (
	KdrvStopped KdrvState = iota
	KdrvRunning
	KdrvIsolated
	KdrvGone
)

// KdrvWhy is why a state came about or a request was refused.
type KdrvWhy uint32

// Reasons that callers tell apart: an exporter does not pin, the module lacks it.
const (
	KdrvWhyExporterPin KdrvWhy = 13
	KdrvWhyNotBuilt    KdrvWhy = 17
)

// kdrvWhys says each in words; the order is that of the header.
var kdrvWhys = [...]string{
	"",
	"the exporter took its memory back",
	"the bus reported an error",
	"somebody else reset the device",
	"the device was unplugged or its driver unbound",
	"the machine is shutting down",
	"address, length and pieces must be whole pages",
	"it is larger than the module allows",
	"it would exceed the limit of locked memory",
	"the kernel would copy the memory instead of mapping it",
	"the pages cannot be pinned",
	"the kernel cannot map it for the device",
	"the exporter does not let this device attach",
	"the exporter does not pin the memory",
	"the exporter does not map the memory for this device",
	"the range is not inside the dma-buf",
	"a former owner's controller could not be stopped",
	"the module was built without it",
}

// String says why, in words.
func (w KdrvWhy) String() string {
	if int(w) >= len(kdrvWhys) {
		return "for a reason that this version does not know"
	}
	return kdrvWhys[w]
}

// KdrvInfo is struct ugds_info.
type KdrvInfo struct {
	ABIVersion       uint32
	IOMMU            KdrvIOMMU
	Caps             uint64
	BARSize          uint64
	TableStart       uint64
	TableEnd         uint64
	Vectors          uint32
	PageSize         uint32
	PCIAddress       uint32
	NUMANode         int32
	Vendor           uint16
	Device           uint16
	SubsystemVendor  uint16
	SubsystemDevice  uint16
	ReservedForLater [4]uint64
}

// KdrvStop is struct ugds_stop.
type KdrvStop struct{ Flags, TimeoutMs, How, Reserved uint32 }

// KdrvMap is struct ugds_map.
type KdrvMap struct {
	Addr, Len               uint64
	Flags, Region, Segments uint32
	Why                     KdrvWhy
}

// KdrvImport is struct ugds_import.
type KdrvImport struct {
	FD               int32
	Flags            uint32
	Offset, Len      uint64
	Region, Segments uint32
	Why              KdrvWhy
	Reserved         uint32
}

// KdrvAlloc is struct ugds_alloc.
type KdrvAlloc struct {
	Len, BusAddr, MmapOffset uint64
	Region                   uint32
	Why                      KdrvWhy
}

// KdrvNVIDIA is struct ugds_nvidia.
type KdrvNVIDIA struct {
	Addr, Len               uint64
	Flags, Region, Segments uint32
	Why                     KdrvWhy
}

// KdrvSegment is struct ugds_segment.
type KdrvSegment struct{ Addr, Len uint64 }

type kdrvSegments struct {
	Region, First, Count, Reserved uint32
	List                           uint64
}

type kdrvUnmap struct{ Region, Reserved uint32 }

type kdrvVector struct {
	Vector  uint32
	Eventfd int32
}

type kdrvEvents struct {
	Eventfd  int32
	Reserved uint32
}

// KdrvStatus is struct ugds_status; KdrvStatusState and KdrvStatusRevoked are the
// offsets of its words in the status page.
type KdrvStatus struct {
	Events  uint32
	State   KdrvState
	Why     KdrvWhy
	Revoked uint32
}

// Offsets in the status page, bytes.
const (
	KdrvStatusState   = 4
	KdrvStatusWhy     = 8
	KdrvStatusRevoked = 12
)

// ioctl numbers: direction, size of the argument, type, number.
const (
	kdrvWrite = 1 << 30
	kdrvRead  = 2 << 30

	kdrvInfoNr     = kdrvRead | 96<<16 | 0xC7<<8
	kdrvStartNr    = 0xC7<<8 | 1
	kdrvStopNr     = kdrvRead | kdrvWrite | 16<<16 | 0xC7<<8 | 2
	kdrvMapNr      = kdrvRead | kdrvWrite | 32<<16 | 0xC7<<8 | 3
	kdrvImportNr   = kdrvRead | kdrvWrite | 40<<16 | 0xC7<<8 | 4
	kdrvAllocNr    = kdrvRead | kdrvWrite | 32<<16 | 0xC7<<8 | 5
	kdrvSegmentsNr = kdrvRead | kdrvWrite | 24<<16 | 0xC7<<8 | 6
	kdrvUnmapNr    = kdrvWrite | 8<<16 | 0xC7<<8 | 7
	kdrvVectorNr   = kdrvWrite | 8<<16 | 0xC7<<8 | 8
	kdrvEventsNr   = kdrvWrite | 8<<16 | 0xC7<<8 | 9
	kdrvNVIDIANr   = kdrvRead | kdrvWrite | 32<<16 | 0xC7<<8 | 10
)

// KdrvGetInfo asks what the controller and the module are. It works for every
// version of the module.
func KdrvGetInfo(f *FD) (KdrvInfo, error) {
	var i KdrvInfo
	err := Ioctl(f, kdrvInfoNr, &i)
	return i, err
}

// KdrvDoStart lets the controller reach memory.
func KdrvDoStart(f *FD) error { return Ioctl(f, kdrvStartNr, (*byte)(nil)) }

// KdrvDoStop stops the controller. It takes as long as a.TimeoutMs says, and some
// seconds more for a reset.
func KdrvDoStop(f *FD, a *KdrvStop) error { return Ioctl(f, kdrvStopNr, a) }

// KdrvDoMap pins and maps memory of this process. After an error a.Why may say more.
func KdrvDoMap(f *FD, a *KdrvMap) error { return Ioctl(f, kdrvMapNr, a) }

// KdrvDoImport maps a range of a dma-buf.
func KdrvDoImport(f *FD, a *KdrvImport) error { return Ioctl(f, kdrvImportNr, a) }

// KdrvDoAlloc makes queue memory, to be mapped at a.MmapOffset.
func KdrvDoAlloc(f *FD, a *KdrvAlloc) error { return Ioctl(f, kdrvAllocNr, a) }

// KdrvDoNVIDIA maps memory of an NVIDIA GPU without a dma-buf.
func KdrvDoNVIDIA(f *FD, a *KdrvNVIDIA) error { return Ioctl(f, kdrvNVIDIANr, a) }

// KdrvSegments copies segments of a region from the given one on into list, and
// tells how many. ESTALE when the region was revoked.
func KdrvSegments(f *FD, region, first uint32, list []KdrvSegment) (int, error) {
	a := kdrvSegments{Region: region, First: first, Count: uint32(min(len(list), KdrvSegmentsMax))}
	if len(list) > 0 {
		// The kernel gets the address as a number, which does not follow a stack that
		// moves: a pinned list is not on one.
		var p runtime.Pinner
		defer p.Unpin()
		p.Pin(unsafe.SliceData(list))
		a.List = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(list))))
	}
	err := Ioctl(f, kdrvSegmentsNr, &a)
	return int(a.Count), err
}

// KdrvUnmap ends a region.
func KdrvUnmap(f *FD, region uint32) error { return Ioctl(f, kdrvUnmapNr, &kdrvUnmap{Region: region}) }

// KdrvSetVector makes interrupts of a vector raise an eventfd; -1 ends that.
func KdrvSetVector(f *FD, vector, eventfd int) error {
	return Ioctl(f, kdrvVectorNr, &kdrvVector{uint32(vector), int32(eventfd)})
}

// KdrvSetEvents makes changes of the status page raise an eventfd; -1 ends that.
func KdrvSetEvents(f *FD, eventfd int) error {
	return Ioctl(f, kdrvEventsNr, &kdrvEvents{Eventfd: int32(eventfd)})
}

// MmapReadOnly maps n bytes of f at offset off, shared, for reading only.
func MmapReadOnly(f *FD, off, n int64) ([]byte, error) {
	return unix.Mmap(f.Int(), off, int(n), unix.PROT_READ, unix.MAP_SHARED)
}
