package vfio

import (
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// ioas is an address space of iommufd. Source: Documentation/userspace-api/iommufd.rst
// of Linux.
type ioas struct {
	iommu *unix.FD // a /dev/iommu of its own
	id    uint32
}

// openIOAS opens a device by its own character device.
func (l *link) openIOAS(path string) (err error) {
	s, iommu := &ioas{}, iommuOf(l.in.dev)
	l.memory = s
	if l.dev, err = openNode(l.name, path); err != nil {
		return err
	}
	if s.iommu, err = openNode(l.name, iommu); err != nil {
		return err
	}
	if err := unix.VFIOBind(l.dev, s.iommu); err != nil {
		return l.bindError(path, err)
	}
	if s.id, err = unix.IOASAlloc(s.iommu); err != nil {
		return base.Wrap("make an address space for", l.name, err)
	}
	return base.Wrap("attach to an address space", l.name, unix.VFIOAttach(l.dev, s.id))
}

func openNode(name, path string) (*unix.FD, error) {
	f, err := unix.Open(path, unix.ReadWrite, 0)
	switch unix.ErrnoOf(err) {
	case unix.EACCES, unix.EPERM:
		return nil, base.WithHint(base.Wrap("open", name+": "+path, err), "give yourself the node: chown $USER %s", path)
	case unix.ENOENT: // NodeOf has seen the device's own
		return nil, base.WithHint(base.Wrap("open", name+": "+path, err), "modprobe iommufd, or show this container %s", path)
	}
	return f, base.Wrap("open", name+": "+path, err)
}

// bindError says what the kernel's answer to a bind means. The node can be opened by
// many, but bound by one.
func (l *link) bindError(path string, err error) error {
	switch unix.ErrnoOf(err) {
	case unix.EINVAL:
		return l.locked(path, 1, "another process has it, or its memory accesses are not coherent with the caches, which iommufd demands")
	case unix.EBUSY: // its group is open
		return l.locked(groupNode(l.in.sysfs, l.in.dev, l.address), 0, unseen)
	case unix.EPERM:
		if others := Neighbours(l.in.sysfs, l.address); len(others) > 0 {
			return NotViable("open", l.name, others)
		}
		return base.WithHint(base.Wrap("bind to iommufd", l.name, err),
			"this or another process has a device of its IOMMU group, or the machine does not remap interrupts; iommufd.allow_unsafe_interrupts=1 accepts that")
	}
	return base.Wrap("bind to iommufd", l.name, err)
}

// ranges implements addressSpace.
func (s *ioas) ranges() ([][2]uint64, uint64, error) { return unix.IOASRanges(s.iommu, s.id) }

// mapPages implements addressSpace.
func (s *ioas) mapPages(addr, bus, n uint64) error {
	return unix.IOASMap(s.iommu, s.id, addr, bus, n)
}

// unmapPages implements addressSpace.
func (s *ioas) unmapPages(bus, n uint64) (uint64, error) {
	return unix.IOASUnmap(s.iommu, s.id, bus, n)
}

// limits implements addressSpace.
func (s *ioas) limits() (locked, refused string) {
	return "the locked-memory limit counts what all processes of this user have mapped: raise ulimit -l",
		"iommufd maps memory of the host only, no BARs of devices"
}

// close implements addressSpace: the address space ends with its /dev/iommu.
func (s *ioas) close() error { return closeAll(s.iommu) }
