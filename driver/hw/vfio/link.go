package vfio

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

const driverName = "vfio-pci"

// system is where the kernel shows devices, and what it says of a group. Tests have
// a tree of their own.
type system struct {
	sysfs  string
	groups string // the folder of the groups and of the container
	viable func(group *unix.FD) (bool, error)
}

var linux = system{"/sys", "/dev/vfio", unix.VFIOGroupViable}

// device is the folder of a PCI device.
func (s system) device(address string) string { return deviceDir(s.sysfs, address) }

func deviceDir(sysfs, address string) string { return sysfs + "/bus/pci/devices/" + address }

// link is a device that is open through VFIO: a container of its own, with the
// device's group in it.
type link struct {
	in        system
	name      string // "pci:0000:01:00.0"
	address   string // as sysfs names it
	container *unix.FD
	group     *unix.FD
	dev       *unix.FD
	iommu     unix.VFIOIOMMU
	flags     uint32 // of the device
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
	number, err := l.in.groupOf(l.address)
	if err != nil {
		return err
	}
	if err := l.openGroup(l.in.groups + "/" + number); err != nil {
		return err
	}
	if err := l.openContainer(); err != nil {
		return base.Wrap("open", l.name, err)
	}
	if l.dev, err = unix.VFIODevice(l.group, l.address); err != nil {
		return base.Wrap("open", l.name, err)
	}
	if l.flags, err = unix.VFIODeviceFlags(l.dev); err != nil {
		return base.Wrap("open", l.name, err)
	}
	if l.flags&unix.VFIODevicePCI == 0 {
		return base.Errorf("open", l.name, base.ErrNotSupported, "it is not a PCI device")
	}
	l.iommu, err = unix.VFIOIOMMUOf(l.container)
	if err == nil && len(l.iommu.Ranges) == 0 {
		err = base.Errorf("open", l.name, base.ErrNotSupported, "the kernel does not tell which bus addresses are usable; it is older than 5.4")
	}
	return base.Wrap("open", l.name, err)
}

// groupOf finds the group of a device that is bound to our driver.
func (s system) groupOf(address string) (string, error) {
	name, dir := "pci:"+address, s.device(address)
	if _, err := os.Stat(dir); err != nil || filepath.Base(address) != address {
		return "", base.Errorf("open", name, base.ErrNotFound, "there is no such PCI device")
	}
	driver, _ := os.Readlink(dir + "/driver")
	group, err := os.Readlink(dir + "/iommu_group")
	switch {
	case err != nil:
		return "", base.WithHint(base.Errorf("open", name, base.ErrNotSupported, "no IOMMU translates for it"),
			"enable the IOMMU in the firmware and with intel_iommu=on, or use the kernel module")
	case filepath.Base(driver) != driverName:
		now := "no driver"
		if driver != "" {
			now = filepath.Base(driver)
		}
		return "", base.WithHint(base.Errorf("open", name, base.ErrInvalid, "it is bound to %s, not to %s", now, driverName),
			"docs/hardware.md says how to bind it")
	}
	return filepath.Base(group), nil
}

// openGroup opens a group, which only one process at a time can.
func (l *link) openGroup(path string) error {
	var err error
	if l.group, err = unix.Open(path, unix.ReadWrite, 0); err != nil {
		switch unix.ErrnoOf(err) {
		case unix.EBUSY:
			pid, who := holder(path)
			return base.WithHint(base.Errorf("open", l.name, base.ErrLocked, "%s has it", who), "%s", base.OwnerHint(pid))
		case unix.EACCES, unix.EPERM:
			return base.WithHint(base.Wrap("open", l.name+": "+path, err), "give yourself the group: chown $USER %s", path)
		}
		return base.Wrap("open", l.name+": "+path, err)
	}
	viable, err := l.in.viable(l.group)
	if err == nil && !viable {
		return NotViable("open", l.name, Neighbours(l.in.sysfs, l.address))
	}
	return base.Wrap("open", l.name+": "+path, err)
}

// holder names the process that has a group open, as far as it can be seen.
func holder(path string) (pid int, who string) {
	st, err := unix.StatPath(path)
	if err == nil {
		for _, pid := range unix.Openers(st) {
			return pid, fmt.Sprintf("process %d (%s)", pid, unix.ProcName(pid))
		}
	}
	return 0, "another process"
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

// openContainer gives the group a container with a type 1 IOMMU.
func (l *link) openContainer() (err error) {
	path := l.in.groups + "/vfio"
	if l.container, err = unix.Open(path, unix.ReadWrite, 0); err != nil {
		return base.Wrap("open", path, err)
	}
	version, err := unix.VFIOVersion(l.container)
	if err != nil {
		return err
	}
	if version != unix.VFIOAPIVersion || !unix.VFIOExtension(l.container, unix.VFIOType1v2) {
		return base.Errorf("use", path, base.ErrNotSupported, "version %d, type 1 IOMMU: %v (module vfio_iommu_type1)", version,
			unix.VFIOExtension(l.container, unix.VFIOType1v2))
	}
	if err := unix.VFIOSetContainer(l.group, l.container); err != nil {
		return base.Wrap("put the group into", path, err)
	}
	if err := unix.VFIOSetIOMMU(l.container, unix.VFIOType1v2); err != nil {
		if unix.ErrnoOf(err) == unix.EPERM {
			return base.WithHint(base.Wrap("attach to", "the IOMMU", err),
				"the machine does not remap interrupts; vfio_iommu_type1.allow_unsafe_interrupts=1 accepts that")
		}
		return base.Wrap("attach to", "the IOMMU", err)
	}
	return nil
}

// close gives everything back. The kernel resets the device and takes its mappings
// away, in this order, whatever state it is in.
func (l *link) close() (err error) {
	for _, f := range []**unix.FD{&l.dev, &l.group, &l.container} {
		if *f != nil {
			err = errors.Join(err, (*f).Close())
			*f = nil
		}
	}
	return base.Wrap("close", l.name, err)
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
