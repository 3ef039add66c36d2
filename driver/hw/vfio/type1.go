package vfio

import (
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// type1 is the address space of a container that holds one group.
type type1 struct{ group, container *unix.FD }

// openType1 opens a device by the node of its group.
func (l *link) openType1(path string) (err error) {
	t := &type1{}
	l.memory = t
	if err := l.openGroup(t, path); err != nil {
		return err
	}
	if err := t.openContainer(containerOf(l.in.dev)); err != nil {
		return base.Wrap("open", l.name, err)
	}
	l.dev, err = unix.VFIODevice(t.group, l.address)
	return base.Wrap("open", l.name, err)
}

// openGroup opens a group, which only one process at a time can.
func (l *link) openGroup(t *type1, path string) (err error) {
	if t.group, err = unix.Open(path, unix.ReadWrite, 0); err != nil {
		switch unix.ErrnoOf(err) {
		case unix.EBUSY:
			return l.locked(path, 0, unseen)
		case unix.EACCES, unix.EPERM:
			return base.WithHint(base.Wrap("open", l.name+": "+path, err), "give yourself the group: chown $USER %s", path)
		case unix.ENOENT:
			return base.WithHint(base.Wrap("open", l.name+": "+path, err), "show this container the node, and %s", containerOf(l.in.dev))
		}
		return base.Wrap("open", l.name+": "+path, err)
	}
	viable, err := l.in.viable(t.group)
	if err == nil && !viable {
		return NotViable("open", l.name, Neighbours(l.in.sysfs, l.address))
	}
	return base.Wrap("open", l.name+": "+path, err)
}

// openContainer gives the group a container with a type 1 IOMMU.
func (t *type1) openContainer(path string) (err error) {
	if t.container, err = unix.Open(path, unix.ReadWrite, 0); err != nil {
		return base.Wrap("open", path, err)
	}
	version, err := unix.VFIOVersion(t.container)
	if err != nil {
		return err
	}
	if version != unix.VFIOAPIVersion || !unix.VFIOExtension(t.container, unix.VFIOType1v2) {
		return base.Errorf("use", path, base.ErrNotSupported, "version %d, type 1 IOMMU: %v (module vfio_iommu_type1)", version,
			unix.VFIOExtension(t.container, unix.VFIOType1v2))
	}
	if err := unix.VFIOSetContainer(t.group, t.container); err != nil {
		return base.Wrap("put the group into", path, err)
	}
	if err := unix.VFIOSetIOMMU(t.container, unix.VFIOType1v2); err != nil {
		if unix.ErrnoOf(err) == unix.EPERM {
			return base.WithHint(base.Wrap("attach to", "the IOMMU", err),
				"the machine does not remap interrupts; vfio_iommu_type1.allow_unsafe_interrupts=1 accepts that")
		}
		return base.Wrap("attach to", "the IOMMU", err)
	}
	return nil
}

// ranges implements addressSpace.
func (t *type1) ranges() ([][2]uint64, uint64, error) {
	i, err := unix.VFIOIOMMUOf(t.container)
	return i.Ranges, i.PageSizes & -i.PageSizes, err // the smallest
}

// mapPages implements addressSpace.
func (t *type1) mapPages(addr, bus, n uint64) error {
	return unix.VFIOMap(t.container, addr, bus, n, unix.VFIOMapRead|unix.VFIOMapWrite)
}

// unmapPages implements addressSpace.
func (t *type1) unmapPages(bus, n uint64) (uint64, error) { return unix.VFIOUnmap(t.container, bus, n) }

// limits implements addressSpace.
func (t *type1) limits() (locked, refused string) {
	return "the locked-memory limit counts mapped memory: raise ulimit -l", "VFIO cannot pin this kind of memory"
}

// close implements addressSpace.
func (t *type1) close() error { return closeAll(t.group, t.container) }
