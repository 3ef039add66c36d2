package kdrv

import (
	"errors"
	"reflect"
	"sync/atomic"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/unix"
)

// Alloc implements hw.Memory: pages of the kernel, near the device. At most 4 MiB,
// the largest piece of memory that is contiguous without an IOMMU; ErrNoSpace beyond,
// and when the kernel has no piece of the size.
func (d *Device) Alloc(size int64, owner string) (*hw.Buffer, error) {
	switch {
	case size < 1:
		return nil, base.Errorf("allocate", owner, base.ErrInvalid, "%d bytes", size)
	case size > unix.KdrvAllocMax:
		return nil, base.Errorf("allocate", owner, base.ErrNoSpace, "%d bytes in one piece, the module gives up to %d", size, unix.KdrvAllocMax)
	}
	if err := d.usableMemory("allocate from"); err != nil {
		return nil, err
	}
	a := unix.KdrvAlloc{Len: uint64(size)}
	if err := unix.KdrvDoAlloc(d.fd, &a); err != nil {
		if unix.ErrnoOf(err) == unix.ENOMEM && a.Why == 0 {
			return nil, base.Errorf("allocate "+base.FormatBytes(size)+" for", owner, base.ErrNoSpace, "no such piece of memory: %w", err)
		}
		return nil, d.refused("allocate "+base.FormatBytes(size)+" for", owner, a.Why, err)
	}
	n := base.AlignUp(size, int64(d.info.PageSize))
	mem, err := unix.MmapShared(d.fd, int64(a.MmapOffset), n)
	if err != nil {
		err = errors.Join(err, d.end(a.Region))
		if d.state() == unix.KdrvGone { // between the two requests
			return nil, base.Errorf("map", owner, base.ErrDeviceGone, "%w", err)
		}
		return nil, base.Wrap("map", owner, err)
	}
	d.live.Add(1)
	dma.Account(owner, n)
	return hw.NewBuffer(mem[:size:size], a.BusAddr, func() {
		dma.Account(owner, -n)
		_ = d.end(a.Region) // what can fail is that the device has gone, and the region with it
		_ = unix.Munmap(mem)
		d.live.Add(-1)
	}), nil
}

// usableMemory is usable, but memory may be mapped while the device is cut off.
func (d *Device) usableMemory(op string) error {
	err := d.usable(op)
	if errors.Is(err, base.ErrIsolated) {
		return nil
	}
	return err
}

// end ends a region; one that the kernel has ended already is none of ours.
func (d *Device) end(region uint32) error {
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if d.closed.Load() {
		return nil
	}
	err := unix.KdrvUnmap(d.fd, region)
	if unix.ErrnoOf(err) == unix.ENOENT && d.state() == unix.KdrvGone {
		return nil
	}
	return err
}

// refused makes an error of what the module says.
func (d *Device) refused(op, object string, why unix.KdrvWhy, err error) error {
	class := map[unix.Errno]error{unix.ENODEV: base.ErrDeviceGone, unix.EOPNOTSUPP: base.ErrNotSupported,
		unix.EINVAL: base.ErrInvalid, unix.ENOSPC: base.ErrNoSpace, unix.ERANGE: base.ErrOutOfRange, unix.EBUSY: base.ErrBusy}[unix.ErrnoOf(err)]
	switch {
	case class == nil && why == 0:
		return base.Wrap(op, object, err)
	case class == nil:
		return base.Errorf(op, object, err, "%s", why)
	case class == base.ErrBusy:
		return base.WithHint(base.Errorf(op, object, class, "the addresses that the kernel offers are those of memory that was taken back: %w", err),
			"detach that memory, or ask again: each time other addresses are tried")
	}
	return base.Errorf(op, object, class, "%s: %w", why, err)
}

// mapping is memory that the device can reach: some regions of the kernel, one
// behind the other, of which the caller's memory begins and ends in the middle.
type mapping struct {
	d       *Device
	regions []uint32
	segs    []hw.Seg
	dead    atomic.Bool
	seen    atomic.Uint32 // revocations of the device when this was last looked at
	foreign bool          // memory of an exporter, who may take it back
}

// Map implements hw.Memory. The kernel maps whole pages, so the device could reach
// what is around mem too.
func (d *Device) Map(mem []byte) (hw.Mapping, error) {
	if len(mem) == 0 {
		return nil, base.Errorf("map memory for", d.id.Target, base.ErrInvalid, "no bytes")
	}
	if err := d.usableMemory("map memory for"); err != nil {
		return nil, err
	}
	page := uint64(d.info.PageSize)
	first := uint64(reflect.ValueOf(mem).Pointer())
	end := (first + uint64(len(mem)) + page - 1) &^ (page - 1)
	m := &mapping{d: d}
	d.live.Add(1)
	for at := first &^ (page - 1); at < end; {
		a := unix.KdrvMap{Addr: at, Len: min(end-at, unix.KdrvMapMax)}
		err := unix.KdrvDoMap(d.fd, &a)
		if err == nil {
			err = m.add(a.Region, a.Segments)
		}
		if unix.ErrnoOf(err) == unix.ENOENT { // the regions went with the device
			err = base.Errorf("map memory for", d.id.Target, base.ErrDeviceGone, "%w", err)
		}
		if err != nil {
			return nil, errors.Join(d.refused("map "+base.FormatBytes(int64(len(mem)))+" for", d.id.Target, a.Why, err), m.Unmap())
		}
		at += a.Len
	}
	m.trim(first&(page-1), uint64(len(mem)))
	return m, nil
}

// MapFD implements hw.Memory for dma-bufs; a memfd becomes one through udmabuf.
// Offset and length that are not whole pages give ErrMisaligned.
func (d *Device) MapFD(fd int, off, n int64) (hw.Mapping, error) {
	if n < 1 || off < 0 {
		return nil, base.Errorf("import a dma-buf for", d.id.Target, base.ErrInvalid, "%d bytes at %d", n, off)
	}
	if page := int64(d.info.PageSize); off%page != 0 || n%page != 0 {
		return nil, base.Errorf("import a dma-buf for", d.id.Target, base.ErrMisaligned,
			"%d bytes at %d, pages have %d", n, off, page)
	}
	if err := d.usableMemory("import a dma-buf for"); err != nil {
		return nil, err
	}
	m := d.foreign()
	a := unix.KdrvImport{FD: int32(fd), Offset: uint64(off), Len: uint64(n)}
	err := unix.KdrvDoImport(d.fd, &a)
	if err != nil && a.Why == unix.KdrvWhyExporterPin {
		// It moves its memory when it likes; then the mapping ends.
		a = unix.KdrvImport{FD: int32(fd), Offset: uint64(off), Len: uint64(n), Flags: unix.KdrvImportMovable}
		err = unix.KdrvDoImport(d.fd, &a)
	}
	if err != nil {
		return nil, d.refused("import a dma-buf for", d.id.Target, a.Why, err)
	}
	if err := m.list("import a dma-buf for", a.Region, a.Segments); err != nil {
		return nil, err
	}
	return m, nil
}

// MapNVIDIA maps n bytes at an address in CUDA, of memory that this process has
// allocated on an NVIDIA GPU, for where the driver cannot export it as a dma-buf; MapFD
// is the better way. The kernel maps whole pages of 64 KiB, so the device could reach
// what is around them too. Freeing the memory revokes the mapping. ErrNotSupported
// when the module was built without NVIDIA's driver, or that refuses the memory.
// It has only run with a module that plays that driver.
func (d *Device) MapNVIDIA(addr uint64, n int64) (hw.Mapping, error) {
	const op = "map memory of a GPU for"
	const page = unix.KdrvNVIDIAPage
	if n < 1 || addr > 1<<63 {
		return nil, base.Errorf(op, d.id.Target, base.ErrInvalid, "%d bytes at %#x", n, addr)
	}
	if err := d.usableMemory(op); err != nil {
		return nil, err
	}
	m := d.foreign()
	first := addr &^ (page - 1)
	a := unix.KdrvNVIDIA{Addr: first, Len: (addr+uint64(n)+page-1)&^(page-1) - first}
	err := unix.KdrvDoNVIDIA(d.fd, &a)
	if unix.ErrnoOf(err) == unix.ENOTTY { // a module older than the request
		a.Why, err = unix.KdrvWhyNotBuilt, unix.EOPNOTSUPP
	}
	if err != nil {
		return nil, d.refused(op, d.id.Target, a.Why, err)
	}
	if err := m.list(op, a.Region, a.Segments); err != nil {
		return nil, err
	}
	m.trim(addr-first, uint64(n))
	return m, nil
}

// foreign is a mapping, yet empty, of memory that can be taken back.
func (d *Device) foreign() *mapping {
	m := &mapping{d: d, foreign: true}
	m.seen.Store(d.revoked())
	return m
}

// list is add for a region that may be gone by now. After an error nothing is mapped.
func (m *mapping) list(op string, region, n uint32) error {
	m.d.live.Add(1)
	err := m.add(region, n)
	if err == nil {
		return nil
	}
	class := map[unix.Errno]error{unix.ESTALE: base.ErrClosed, unix.ENOENT: base.ErrDeviceGone}[unix.ErrnoOf(err)]
	if class != nil { // between the two requests
		err = base.Errorf(op, m.d.id.Target, class, "the memory was taken back or the device away: %w", err)
	}
	return errors.Join(err, m.Unmap())
}

// add appends the segments of a region.
func (m *mapping) add(region, n uint32) error {
	m.regions = append(m.regions, region)
	list := make([]unix.KdrvSegment, min(n, unix.KdrvSegmentsMax))
	for at := uint32(0); at < n; {
		got, err := unix.KdrvSegments(m.d.fd, region, at, list)
		if err != nil {
			return err
		}
		if got == 0 {
			return base.Errorf("list segments of", m.d.id.Target, base.ErrMismatch, "%d of %d", at, n)
		}
		for _, s := range list[:got] {
			if k := len(m.segs) - 1; k >= 0 && m.segs[k].Addr+m.segs[k].Len == s.Addr {
				m.segs[k].Len += s.Len
			} else {
				m.segs = append(m.segs, hw.Seg(s))
			}
		}
		at += uint32(got)
	}
	return nil
}

// trim leaves n bytes after the first skip ones, which are in the first segment.
func (m *mapping) trim(skip, n uint64) {
	m.segs[0].Addr += skip
	m.segs[0].Len -= skip
	for i := range m.segs {
		if m.segs[i].Len >= n {
			m.segs[i].Len = n
			m.segs = m.segs[:i+1]
			return
		}
		n -= m.segs[i].Len
	}
}

// Segments implements hw.Mapping.
func (m *mapping) Segments() []hw.Seg { return m.segs }

// Revoked implements hw.Revocable. Only after a revocation somewhere on the device
// does it ask the kernel.
func (m *mapping) Revoked() bool {
	if !m.foreign {
		return false
	}
	if m.dead.Load() {
		return true
	}
	n := m.d.revoked()
	if n == m.seen.Load() {
		return false
	}
	_, err := unix.KdrvSegments(m.d.fd, m.regions[0], 0, nil)
	if unix.ErrnoOf(err) == unix.ESTALE {
		m.dead.Store(true)
		return true
	}
	m.seen.Store(n)
	return false
}

// Unmap implements hw.Mapping.
func (m *mapping) Unmap() error {
	if m.regions == nil && m.segs == nil && m.dead.Load() {
		panic("kdrv: unmapped twice")
	}
	var err error
	for _, r := range m.regions {
		err = errors.Join(err, m.d.end(r))
	}
	m.regions, m.segs = nil, nil
	m.dead.Store(true)
	m.d.live.Add(-1)
	return base.Wrap("unmap memory of", m.d.id.Target, err)
}
