package vfio

import (
	"errors"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/unix"
)

// maxMap bounds one mapping, in bytes: what rounding up to pages cannot overflow.
const maxMap = 1 << 46

// mapPages makes whole pages of the process reachable and gives their bus address.
func (d *Device) mapPages(addr, n uint64) (bus uint64, err error) {
	align, remainder := uint64(hw.PageSize), uint64(0)
	if n >= large {
		align, remainder = large, addr%large
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return 0, base.Errorf("map memory for", d.id.Target, base.ErrClosed, "the device is closed")
	}
	bus, ok := d.space.take(n, align, remainder)
	if !ok {
		return 0, base.Errorf("map memory for", d.id.Target, base.ErrNoSpace, "no %s of bus addresses are free", base.FormatBytes(int64(n)))
	}
	if err := d.link.memory.mapPages(addr, bus, n); err != nil {
		d.space.give(bus)
		return 0, d.mapError(n, err)
	}
	return bus, nil
}

// mapError says what the kernel's answer means.
func (d *Device) mapError(n uint64, err error) error {
	what := base.FormatBytes(int64(n)) + " for " + d.id.Target
	locked, refused := d.link.memory.limits()
	switch unix.ErrnoOf(err) {
	case unix.ENOMEM:
		return base.WithHint(base.Wrap("map", what, err), "%s", locked)
	case unix.ENOSPC:
		return base.WithHint(base.Errorf("map", what, base.ErrNoSpace, "%w", err),
			"too many mappings; vfio_iommu_type1.dma_entry_limit is the limit")
	case unix.EFAULT:
		return base.Errorf("map", what, base.ErrNotSupported, "%s: %w", refused, err)
	}
	return base.Wrap("map", what, err)
}

// unmapPages undoes mapPages. After Close the kernel has done it.
func (d *Device) unmapPages(bus, n uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	got, err := d.link.memory.unmapPages(bus, n)
	if err == nil && got != n {
		err = base.Errorf("unmap", d.id.Target, base.ErrCorrupt, "%d of %d bytes at %#x", got, n, bus)
	}
	if err != nil {
		return base.Wrap("unmap memory of", d.id.Target, err) // the addresses stay taken
	}
	d.space.give(bus)
	return nil
}

// Alloc implements hw.Memory.
func (d *Device) Alloc(size int64, owner string) (*hw.Buffer, error) {
	if size <= 0 || size > maxMap {
		return nil, base.Errorf("allocate", owner, base.ErrInvalid, "%d bytes", size)
	}
	mem, err := dma.Alloc(size, owner)
	if err != nil {
		return nil, err
	}
	b, n := mem.Bytes(), uint64(base.AlignUp(size, hw.PageSize))
	bus, err := d.mapPages(unix.Addr(b), n)
	if err != nil {
		mem.Free()
		return nil, err
	}
	return hw.NewBuffer(b, bus, func() {
		if d.unmapPages(bus, n) == nil {
			mem.Free()
		} // else the device may still reach it: it stays
	}), nil
}

// mapping is memory that is mapped as one run of bus addresses.
type mapping struct {
	d      *Device
	seg    [1]hw.Seg
	bus, n uint64 // the whole pages
	window []byte // mapped for this purpose, or nil
	done   bool
}

// Segments implements hw.Mapping.
func (m *mapping) Segments() []hw.Seg { return m.seg[:] }

// Unmap implements hw.Mapping.
func (m *mapping) Unmap() error {
	if m.done {
		panic("vfio: unmapped twice")
	}
	m.done = true
	if err := m.d.unmapPages(m.bus, m.n); err != nil {
		return err
	}
	if m.window != nil {
		return base.Wrap("unmap window of", m.d.id.Target, unix.Munmap(m.window))
	}
	return nil
}

// Map implements hw.Memory. The pages around mem that it shares with other memory
// are mapped too: a device has no smaller unit.
func (d *Device) Map(mem []byte) (hw.Mapping, error) {
	if len(mem) == 0 || len(mem) > maxMap {
		return nil, base.Errorf("map memory for", d.id.Target, base.ErrInvalid, "%d bytes", len(mem))
	}
	return d.mapRange(unix.Addr(mem), uint64(len(mem)))
}

func (d *Device) mapRange(addr, n uint64) (*mapping, error) {
	offset := addr % hw.PageSize
	whole := (offset + n + hw.PageSize - 1) &^ (hw.PageSize - 1)
	bus, err := d.mapPages(addr-offset, whole)
	if err != nil {
		return nil, err
	}
	return &mapping{d: d, seg: [1]hw.Seg{{Addr: bus + offset, Len: n}}, bus: bus, n: whole}, nil
}

// MapFD implements hw.Memory, for memfds, for dma-bufs whose exporter lets the CPU
// map a BAR, and for a Window of a Peer. ErrNotSupported for dma-bufs of other
// memory: VFIO pins only what the CPU can map, and not RAM behind such a mapping.
// By iommufd (Node) that is so for BARs too.
func (d *Device) MapFD(fd int, off, n int64) (hw.Mapping, error) {
	if n <= 0 || off < 0 || off%hw.PageSize != 0 || n > maxMap {
		return nil, base.Errorf("map a descriptor for", d.id.Target, base.ErrInvalid, "%d bytes at %d", n, off)
	}
	f, err := unix.Dup(fd)
	if err != nil {
		return nil, base.Wrap("map a descriptor for", d.id.Target, err)
	}
	defer f.Close()
	window, err := unix.MmapShared(f, off, n)
	if err != nil {
		return nil, base.Errorf("map a descriptor for", d.id.Target, base.ErrNotSupported, "the CPU cannot map it: %w", err)
	}
	m, err := d.mapRange(unix.Addr(window), uint64(n))
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(window))
	}
	m.window = window
	return m, nil
}
