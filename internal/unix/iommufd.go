package unix

import (
	"runtime"
	"unsafe"
)

// The user interface of iommufd and of VFIO's character devices, from
// include/uapi/linux/iommufd.h and vfio.h of Linux 6.12: /dev/iommu holds address
// spaces, a device that is opened as a file of its own is bound to it and attached to
// one of them.

// ioctl numbers: _IO(';', n).
const (
	vfioDeviceBind   = 0x3b64 + 18
	vfioDeviceAttach = 0x3b64 + 19

	iommuIOASAlloc  = 0x3b81
	iommuIOASRanges = 0x3b84
	iommuIOASMap    = 0x3b85
	iommuIOASUnmap  = 0x3b86
)

// Flags of iommu_ioas_map.
const (
	iommuMapFixed = 1 << 0 // at the bus address that is given
	iommuMapWrite = 1 << 1 // the device may write the memory
	iommuMapRead  = 1 << 2
)

type vfioBindIOMMUFD struct {
	Argsz, Flags uint32
	IOMMUFD      int32
	DevID        uint32
}

type vfioAttachIOMMUFD struct{ Argsz, Flags, PT uint32 }

type iommuAllocArg struct{ Size, Flags, ID uint32 }

type iommuRange struct{ First, Last uint64 }

type iommuRangesArg struct {
	Size, ID, Count, Reserved uint32
	Ranges, Alignment         uint64
}

type iommuMapArg struct {
	Size, Flags, ID, Reserved uint32
	Addr, Length, IOVA        uint64
}

type iommuUnmapArg struct {
	Size, ID     uint32
	IOVA, Length uint64
}

// VFIOBind gives a device that was opened as a file to an open /dev/iommu, which makes
// it usable, until the device is closed. EINVAL: it is somebody's already, or it is not
// coherent with the caches; EBUSY: its group is open; EPERM: another driver or another
// /dev/iommu has a device of its IOMMU group, or interrupts are not remapped.
func VFIOBind(dev, iommu *FD) error {
	b := vfioBindIOMMUFD{Argsz: uint32(unsafe.Sizeof(vfioBindIOMMUFD{})), IOMMUFD: int32(iommu.Int())}
	return Ioctl(dev, vfioDeviceBind, &b)
}

// VFIOAttach makes a bound device see an address space.
func VFIOAttach(dev *FD, ioas uint32) error {
	a := vfioAttachIOMMUFD{Argsz: uint32(unsafe.Sizeof(vfioAttachIOMMUFD{})), PT: ioas}
	return Ioctl(dev, vfioDeviceAttach, &a)
}

// IOASAlloc makes an address space, which ends with its /dev/iommu.
func IOASAlloc(iommu *FD) (ioas uint32, err error) {
	a := iommuAllocArg{Size: uint32(unsafe.Sizeof(iommuAllocArg{}))}
	err = Ioctl(iommu, iommuIOASAlloc, &a)
	return a.ID, err
}

// iommuRanges is how many ranges of bus addresses are asked for.
const iommuRanges = 256

// IOASRanges are the bus addresses that the devices of an address space can use, first
// and last of each range, and the unit in bytes in which they are mapped.
func IOASRanges(iommu *FD, ioas uint32) (out [][2]uint64, unit uint64, err error) {
	room := make([]iommuRange, iommuRanges)
	var pin runtime.Pinner
	pin.Pin(&room[0]) // the kernel gets its address inside a structure
	defer pin.Unpin()
	a := iommuRangesArg{Size: uint32(unsafe.Sizeof(iommuRangesArg{})), ID: ioas, Count: iommuRanges,
		Ranges: uint64(uintptr(unsafe.Pointer(&room[0])))}
	err = Ioctl(iommu, iommuIOASRanges, &a)
	if err != nil && err != EMSGSIZE { // there are more than are needed
		return nil, 0, err
	}
	for _, r := range room[:min(a.Count, iommuRanges)] {
		out = append(out, [2]uint64{r.First, r.Last})
	}
	return out, a.Alignment, nil
}

// IOASMap makes n bytes of this process at addr reachable, for reads and writes, for the
// devices of an address space at the bus address iova; all three are multiples of a page.
// The pages are pinned and count against RLIMIT_MEMLOCK, of all processes of the user
// together: ENOMEM. EFAULT: memory that is no RAM, such as a BAR.
func IOASMap(iommu *FD, ioas uint32, addr, iova, n uint64) error {
	m := iommuMapArg{Size: uint32(unsafe.Sizeof(iommuMapArg{})), Flags: iommuMapFixed | iommuMapRead | iommuMapWrite,
		ID: ioas, Addr: addr, Length: n, IOVA: iova}
	return Ioctl(iommu, iommuIOASMap, &m)
}

// IOASUnmap undoes IOASMap, and tells how many bytes it has unmapped.
func IOASUnmap(iommu *FD, ioas uint32, iova, n uint64) (uint64, error) {
	u := iommuUnmapArg{uint32(unsafe.Sizeof(iommuUnmapArg{})), ioas, iova, n}
	err := Ioctl(iommu, iommuIOASUnmap, &u)
	return u.Length, err
}
