package unix

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The user interface of VFIO, from include/uapi/linux/vfio.h of Linux 6.12: a
// container holds the mappings of an IOMMU, a group is what the IOMMU can tell
// apart, a device belongs to a group.

// ioctl numbers: _IO(';', 100 + n).
const (
	vfioGetAPIVersion   = 0x3b64 + 0
	vfioCheckExtension  = 0x3b64 + 1
	vfioSetIOMMU        = 0x3b64 + 2
	vfioGroupGetStatus  = 0x3b64 + 3
	vfioGroupSetContain = 0x3b64 + 4
	vfioGroupGetDevice  = 0x3b64 + 6
	vfioDeviceGetInfo   = 0x3b64 + 7
	vfioDeviceGetRegion = 0x3b64 + 8
	vfioDeviceGetIRQ    = 0x3b64 + 9
	vfioDeviceSetIRQs   = 0x3b64 + 10
	vfioDeviceReset     = 0x3b64 + 11
	vfioIOMMUGetInfo    = 0x3b64 + 12
	vfioIOMMUMap        = 0x3b64 + 13
	vfioIOMMUUnmap      = 0x3b64 + 14
)

// Values of VFIO that callers name.
const (
	VFIOAPIVersion = 0
	VFIOType1v2    = 3 // the kind of IOMMU that PCs and servers have

	VFIODeviceReset = 1 << 0 // flags of a device
	VFIODevicePCI   = 1 << 1

	VFIORegionMmap = 1 << 2 // a flag of a region

	VFIOPCIBAR0   = 0 // regions of a PCI device; BAR n is region n
	VFIOPCIConfig = 7

	VFIOPCIMSIX    = 2 // kinds of interrupts of a PCI device
	VFIOPCIError   = 3
	VFIOPCIRequest = 4

	VFIOMapRead  = 1 << 0 // the device may read the memory
	VFIOMapWrite = 1 << 1
)

const (
	vfioGroupViable = 1 << 0

	vfioIRQDataNone    = 1 << 0
	vfioIRQDataEventfd = 1 << 2
	vfioIRQTrigger     = 1 << 5

	vfioInfoCaps      = 1 << 1 // of vfio_iommu_type1_info.flags
	vfioRegionCaps    = 1 << 3
	vfioCapIOVARange  = 1
	vfioCapDMAAvail   = 3
	vfioCapSparseMmap = 1
)

type vfioGroupStatus struct{ Argsz, Flags uint32 }

type vfioDeviceInfo struct{ Argsz, Flags, Regions, IRQs, CapOffset, Pad uint32 }

type vfioRegionInfo struct {
	Argsz, Flags, Index, CapOffset uint32
	Size, Offset                   uint64
}

type vfioIRQInfo struct{ Argsz, Flags, Index, Count uint32 }

type vfioIRQSet struct{ Argsz, Flags, Index, Start, Count uint32 }

type vfioDMAMap struct {
	Argsz, Flags      uint32
	Vaddr, IOVA, Size uint64
}

type vfioDMAUnmap struct {
	Argsz, Flags uint32
	IOVA, Size   uint64
}

type vfioIOMMUInfo struct {
	Argsz, Flags   uint32
	PageSizes      uint64
	CapOffset, Pad uint32
}

// vfioCaps is the room for the chain of capabilities behind a structure, in bytes.
const vfioCaps = 4096

func ioctlInt(f *FD, req, arg uintptr) (int, error) {
	return retryInt(func() (int, error) {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(f.Int()), req, arg)
		if errno != 0 {
			return 0, errno
		}
		return int(n), nil
	})
}

// VFIOVersion is the version of the interface that a container speaks.
func VFIOVersion(container *FD) (int, error) { return ioctlInt(container, vfioGetAPIVersion, 0) }

// VFIOExtension tells whether a container knows a kind of IOMMU.
func VFIOExtension(container *FD, kind int) bool {
	n, err := ioctlInt(container, vfioCheckExtension, uintptr(kind))
	return err == nil && n > 0
}

// VFIOSetIOMMU chooses the kind of IOMMU of a container that has a group.
func VFIOSetIOMMU(container *FD, kind int) error {
	_, err := ioctlInt(container, vfioSetIOMMU, uintptr(kind))
	return err
}

// VFIOGroupViable tells whether all devices of a group belong to VFIO, so that it
// can be used.
func VFIOGroupViable(group *FD) (bool, error) {
	s := vfioGroupStatus{Argsz: uint32(unsafe.Sizeof(vfioGroupStatus{}))}
	err := Ioctl(group, vfioGroupGetStatus, &s)
	return s.Flags&vfioGroupViable != 0, err
}

// VFIOSetContainer puts a group into a container.
func VFIOSetContainer(group, container *FD) error {
	n := int32(container.Int())
	return Ioctl(group, vfioGroupSetContain, &n)
}

// VFIODevice opens a device of a group, by its name in sysfs.
func VFIODevice(group *FD, name string) (*FD, error) {
	b := append([]byte(name), 0)
	n, err := retryInt(func() (int, error) { // an address is a number only in the call itself
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(group.Int()), vfioGroupGetDevice, uintptr(unsafe.Pointer(&b[0])))
		if errno != 0 {
			return 0, errno
		}
		return int(n), nil
	})
	if err != nil {
		return nil, err
	}
	return NewFD(n, name), nil
}

// VFIODeviceFlags are the flags of a device.
func VFIODeviceFlags(dev *FD) (uint32, error) {
	i := vfioDeviceInfo{Argsz: uint32(unsafe.Sizeof(vfioDeviceInfo{}))}
	err := Ioctl(dev, vfioDeviceGetInfo, &i)
	return i.Flags, err
}

// VFIOArea is a part of a region, in bytes.
type VFIOArea struct{ Offset, Size uint64 }

// VFIORegion is a window of a device: a BAR, or the configuration space.
type VFIORegion struct {
	Flags  uint32
	Size   uint64     // bytes
	Offset int64      // in the descriptor of the device
	Mmap   []VFIOArea // what may be mapped; nil with VFIORegionMmap is all of it
}

// VFIORegionOf describes a region of a device.
func VFIORegionOf(dev *FD, index uint32) (VFIORegion, error) {
	var b struct {
		vfioRegionInfo
		Caps [vfioCaps]byte
	}
	b.Argsz, b.Index = uint32(unsafe.Sizeof(b)), index
	if err := Ioctl(dev, vfioDeviceGetRegion, &b); err != nil {
		return VFIORegion{}, err
	}
	r := VFIORegion{Flags: b.Flags, Size: b.Size, Offset: int64(b.Offset)}
	if b.Flags&vfioRegionCaps == 0 {
		return r, nil
	}
	err := eachCap(b.CapOffset, uint32(unsafe.Sizeof(b.vfioRegionInfo)), b.Caps[:], func(id uint16, body []byte) {
		if id == vfioCapSparseMmap {
			for _, p := range pairs(body) {
				r.Mmap = append(r.Mmap, VFIOArea{p[0], p[1]})
			}
		}
	})
	return r, err
}

// eachCap walks the chain of capabilities. Offsets count from the beginning of the
// structure, of which head bytes come before caps. Each begins with an id of 16
// bits, a version, and the offset of the next; body is what follows.
func eachCap(at, head uint32, caps []byte, fn func(id uint16, body []byte)) error {
	const header = 8
	for n := 0; at != 0; n++ {
		if at < head || uint64(at-head)+header > uint64(len(caps)) || n > len(caps)/header {
			return fmt.Errorf("capability at %#x: %w", at, EINVAL)
		}
		c := caps[at-head:]
		fn(binary.NativeEndian.Uint16(c), c[header:])
		at = binary.NativeEndian.Uint32(c[4:])
	}
	return nil
}

// pairs reads a count, 4 bytes of nothing, and so many pairs of 64-bit numbers.
func pairs(body []byte) (out [][2]uint64) {
	if len(body) < 8 {
		return nil
	}
	n := binary.NativeEndian.Uint32(body)
	for b := body[8:]; n > 0 && len(b) >= 16; n, b = n-1, b[16:] {
		out = append(out, [2]uint64{binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint64(b[8:])})
	}
	return out
}

// VFIOIRQs is how many interrupts of a kind a device has.
func VFIOIRQs(dev *FD, kind uint32) (int, error) {
	i := vfioIRQInfo{Argsz: uint32(unsafe.Sizeof(vfioIRQInfo{})), Index: kind}
	err := Ioctl(dev, vfioDeviceGetIRQ, &i)
	return int(i.Count), err
}

// VFIOMaxIRQs is the largest number of interrupts that one call sets.
const VFIOMaxIRQs = 2048

// VFIOSetIRQs makes interrupts from start on raise eventfds; -1 is none. The first
// call of a kind decides how many the device gets.
func VFIOSetIRQs(dev *FD, kind uint32, start int, fds []int32) error {
	if len(fds) > VFIOMaxIRQs {
		return EINVAL
	}
	b := new(struct {
		vfioIRQSet
		FDs [VFIOMaxIRQs]int32
	})
	b.vfioIRQSet = vfioIRQSet{uint32(unsafe.Sizeof(vfioIRQSet{})) + 4*uint32(len(fds)), vfioIRQDataEventfd | vfioIRQTrigger,
		kind, uint32(start), uint32(len(fds))}
	copy(b.FDs[:], fds)
	return Ioctl(dev, vfioDeviceSetIRQs, b)
}

// VFIORaise makes the kernel act as if an interrupt had come.
func VFIORaise(dev *FD, kind uint32, n int) error {
	s := vfioIRQSet{uint32(unsafe.Sizeof(vfioIRQSet{})), vfioIRQDataNone | vfioIRQTrigger, kind, uint32(n), 1}
	return Ioctl(dev, vfioDeviceSetIRQs, &s)
}

// VFIOReset resets the function of a device and waits until it can be used again.
func VFIOReset(dev *FD) error {
	_, err := ioctlInt(dev, vfioDeviceReset, 0)
	return err
}

// VFIOIOMMU is what an IOMMU can map.
type VFIOIOMMU struct {
	PageSizes uint64      // a bit for each size
	Ranges    [][2]uint64 // usable bus addresses, first and last
	Maps      uint32      // mappings that can still be made; 0 if unknown
}

// VFIOIOMMUOf describes the IOMMU of a container.
func VFIOIOMMUOf(container *FD) (VFIOIOMMU, error) {
	var b struct {
		vfioIOMMUInfo
		Caps [vfioCaps]byte
	}
	b.Argsz = uint32(unsafe.Sizeof(b))
	if err := Ioctl(container, vfioIOMMUGetInfo, &b); err != nil {
		return VFIOIOMMU{}, err
	}
	i := VFIOIOMMU{PageSizes: b.PageSizes}
	if b.Flags&vfioInfoCaps == 0 {
		return i, nil
	}
	err := eachCap(b.CapOffset, uint32(unsafe.Sizeof(b.vfioIOMMUInfo)), b.Caps[:], func(id uint16, body []byte) {
		switch id {
		case vfioCapIOVARange:
			i.Ranges = pairs(body)
		case vfioCapDMAAvail:
			if len(body) >= 4 {
				i.Maps = binary.NativeEndian.Uint32(body)
			}
		}
	})
	return i, err
}

// VFIOMap makes n bytes of this process at addr reachable for the devices of a
// container, at the bus address iova; all three are multiples of a page. The pages
// are pinned and count against RLIMIT_MEMLOCK: ENOMEM. ENOSPC: too many mappings.
func VFIOMap(container *FD, addr, iova, n uint64, flags uint32) error {
	m := vfioDMAMap{uint32(unsafe.Sizeof(vfioDMAMap{})), flags, addr, iova, n}
	return Ioctl(container, vfioIOMMUMap, &m)
}

// VFIOUnmap undoes VFIOMap, and tells how many bytes it has unmapped.
func VFIOUnmap(container *FD, iova, n uint64) (uint64, error) {
	u := vfioDMAUnmap{Argsz: uint32(unsafe.Sizeof(vfioDMAUnmap{})), IOVA: iova, Size: n}
	err := Ioctl(container, vfioIOMMUUnmap, &u)
	return u.Size, err
}
