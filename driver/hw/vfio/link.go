package vfio

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

const driverName = "vfio-pci"

// system is where the kernel shows devices, and what it says of a group. Tests have
// a tree of their own.
type system struct {
	sysfs  string
	dev    string // the folder of device nodes
	viable func(group *unix.FD) (bool, error)
}

var linux = system{"/sys", "/dev", unix.VFIOGroupViable}

// device is the folder of a PCI device.
func (s system) device(address string) string { return deviceDir(s.sysfs, address) }

func deviceDir(sysfs, address string) string { return sysfs + "/bus/pci/devices/" + address }

// link is a device that is open through VFIO, with an address space of its own.
type link struct {
	in      system
	name    string // "pci:0000:01:00.0"
	address string // as sysfs names it
	dev     *unix.FD
	memory  addressSpace
	ranges  [][2]uint64 // usable bus addresses, first and last
	flags   uint32      // of the device
}

// addressSpace is what a device sees of this process's memory. Addresses and sizes are
// multiples of a page, in bytes. It is not safe for concurrent use.
type addressSpace interface {
	// ranges are the bus addresses that the device can use, first and last, and the unit
	// in bytes in which they are mapped, 0 if it is not known.
	ranges() (usable [][2]uint64, unit uint64, err error)
	// mapPages makes n bytes at addr reachable at the address bus, to read and write.
	mapPages(addr, bus, n uint64) error
	// unmapPages undoes mapPages, and gives how many bytes are unmapped.
	unmapPages(bus, n uint64) (uint64, error)
	// limits says what the locked-memory limit counts, and which memory cannot be mapped.
	limits() (locked, refused string)
	// close ends it; the device is closed already.
	close() error
}

// openLink opens the device at a PCI address such as "0000:01:00.0".
func openLink(in system, address string) (*link, error) {
	l := &link{in: in, name: "pci:" + address, address: address}
	if err := l.open(); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *link) open() error {
	if err := l.in.bound(l.address); err != nil {
		return err
	}
	node := NodeOf(l.in.sysfs, l.in.dev, l.address)
	by := l.openType1
	if node.IOMMUFD {
		by = l.openIOAS
	}
	err := by(node.Path)
	if err != nil {
		return err
	}
	if l.flags, err = unix.VFIODeviceFlags(l.dev); err != nil {
		return base.Wrap("open", l.name, err)
	}
	if l.flags&unix.VFIODevicePCI == 0 {
		return base.Errorf("open", l.name, base.ErrNotSupported, "it is not a PCI device")
	}
	return l.measure()
}

// measure asks for the bus addresses, and refuses those that cannot be used.
func (l *link) measure() error {
	usable, unit, err := l.memory.ranges()
	switch l.ranges = usable; {
	case err != nil:
		return base.Wrap("open", l.name, err)
	case len(usable) == 0:
		return base.Errorf("open", l.name, base.ErrNotSupported, "the kernel does not tell which bus addresses are usable; it is older than 5.4")
	case unit > hw.PageSize:
		return base.WithHint(base.Errorf("open", l.name, base.ErrNotSupported, "memory is mapped in units of %d bytes here, and in such of %d by this driver",
			unit, hw.PageSize), "boot a kernel whose pages have %d bytes", hw.PageSize)
	}
	return nil
}

// Translated refuses, with ErrNotSupported, a device that no IOMMU translates for: it has
// no group, or one that VFIO made up for its mode without. sysfs is usually /sys.
func Translated(sysfs, address string) error {
	why, group := "no IOMMU translates for it", deviceDir(sysfs, address)+"/iommu_group"
	if _, err := os.Readlink(group); err == nil {
		name, _ := os.ReadFile(group + "/name")
		if strings.TrimSpace(string(name)) != "vfio-noiommu" {
			return nil
		}
		why += ", and VFIO's enable_unsafe_noiommu_mode is not used: it would reach all memory"
	}
	return base.WithHint(base.Errorf("open", "pci:"+address, base.ErrNotSupported, "%s", why),
		"enable the IOMMU in the firmware and with intel_iommu=on, or use the kernel module")
}

// bound refuses a device that is not bound to our driver, or that no IOMMU translates for.
func (s system) bound(address string) error {
	name, dir := "pci:"+address, s.device(address)
	if _, err := os.Stat(dir); err != nil || filepath.Base(address) != address {
		return base.Errorf("open", name, base.ErrNotFound, "there is no such PCI device")
	}
	if err := Translated(s.sysfs, address); err != nil {
		return err
	}
	driver, _ := os.Readlink(dir + "/driver")
	if filepath.Base(driver) != driverName {
		now := "no driver"
		if driver != "" {
			now = filepath.Base(driver)
		}
		return base.WithHint(base.Errorf("open", name, base.ErrInvalid, "it is bound to %s, not to %s", now, driverName),
			"docs/hardware.md says how to bind it")
	}
	return nil
}

// unseen is for the owner of whom nothing can be seen.
const unseen = "another process has it"

// locked is the error for a device that somebody has, who is named as far as can be seen,
// or else called as otherwise says. Of a group that is the one process that has its node
// open; a device's own node is also open, for a moment, in those that find it taken. mine
// is how many descriptors of the node are of this attempt: more are of an earlier one.
func (l *link) locked(path string, mine int, otherwise string) error {
	var pid int
	var who []string
	if st, err := unix.StatPath(path); err == nil {
		if unix.OpenHere(st) > mine {
			return base.WithHint(base.Errorf("open", l.name, base.ErrLocked, "this process has it, or another device of its IOMMU group"),
				"close that first: a group has one owner, so that one store cannot have two controllers of it")
		}
		for _, pid = range unix.Openers(st) {
			who = append(who, fmt.Sprintf("process %d (%s)", pid, unix.ProcName(pid)))
		}
	}
	if len(who) != 1 {
		pid = 0
	}
	if len(who) > 0 {
		otherwise = strings.Join(who, " or ") + " has it"
	}
	err := base.Errorf("open", l.name, base.ErrLocked, "%s", otherwise)
	return base.WithHint(err, "%s", base.OwnerHint(pid))
}

// Neighbour is another device of an IOMMU group, with the driver that keeps the group
// from VFIO.
type Neighbour struct{ Address, Driver, Class string }

// classBridge begins the class of PCI bridges, whose driver does no DMA.
const classBridge = "0x0604"

// Neighbours lists the devices of a device's group that keep it from VFIO: those of
// drivers that do DMA. sysfs is usually /sys.
func Neighbours(sysfs, address string) (out []Neighbour) {
	dirs, _ := os.ReadDir(deviceDir(sysfs, address) + "/iommu_group/devices")
	for _, d := range dirs {
		to, err := os.Readlink(deviceDir(sysfs, d.Name()) + "/driver")
		if err != nil {
			continue // none has it
		}
		class, _ := os.ReadFile(deviceDir(sysfs, d.Name()) + "/class")
		n := Neighbour{d.Name(), filepath.Base(to), strings.TrimSpace(string(class))}
		if n.Driver != driverName && n.Driver != "pci-stub" && !strings.HasPrefix(n.Class, classBridge) {
			out = append(out, n)
		}
	}
	return out
}

// NotViable is the error for a device whose group VFIO cannot have because of others.
func NotViable(op, object string, others []Neighbour) error {
	var names, addresses []string
	for _, n := range others {
		names, addresses = append(names, n.Address+" ("+n.Driver+")"), append(addresses, n.Address)
	}
	if len(names) == 0 { // it has changed meanwhile, or sysfs is not to be seen
		return base.Errorf(op, object, base.ErrGroupNotViable, "other drivers have devices of it")
	}
	return base.WithHint(base.Errorf(op, object, base.ErrGroupNotViable, "other drivers have devices of it: %s", strings.Join(names, ", ")),
		"unbind %s from their drivers, or bind the controller to the kernel module", strings.Join(addresses, " and "))
}

// close gives everything back. The kernel resets the device and takes its mappings
// away, in this order, whatever state it is in.
func (l *link) close() (err error) {
	err = closeAll(l.dev)
	if l.memory != nil {
		err = errors.Join(err, l.memory.close())
	}
	l.dev, l.memory = nil, nil
	return base.Wrap("close", l.name, err)
}

// closeAll closes descriptors, of which those that were not opened are nil.
func closeAll(files ...*unix.FD) (err error) {
	for _, f := range files {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// attribute reads a number that sysfs has about the device; unknown when it has not.
func (l *link) attribute(name string, unknown int64) int64 {
	text, err := os.ReadFile(l.in.device(l.address) + "/" + name)
	if err != nil {
		return unknown
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 0, 64)
	if err != nil {
		return unknown
	}
	return n
}
