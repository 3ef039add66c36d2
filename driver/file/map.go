package file

import (
	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// MapRead implements driver.Mapper. The mapping sees what direct writes left only
// where the kernel has dropped the pages of before, as it does at each write: a
// mapping that a GPU has pinned keeps the old ones. So an owner ends a window before
// it writes there. ErrNotSupported for block devices.
func (d *Device) MapRead(off, n int64) ([]byte, func() error, error) {
	if d.h.stat.Kind != unix.KindRegular {
		return nil, nil, base.Errorf("map", d.h.info.Target, base.ErrNotSupported, "it is a %s", d.h.stat.Kind)
	}
	if s := d.State(); s != driver.StateReady {
		return nil, nil, base.Errorf("map", d.h.info.Target, base.ErrIsolated, "it is %s", s)
	}
	if !base.CheckRange(off, n, d.h.info.Capacity) || n == 0 {
		return nil, nil, base.Errorf("map", d.h.info.Target, base.ErrOutOfRange, "%d bytes at %d of %d", n, off, d.h.info.Capacity)
	}
	return mapRead(d.h.fd, d.h.info.Target, off, n)
}

// MapRead implements driver.Mapper. The range may end beyond the end of the file;
// nothing of that may be touched.
func (f *File) MapRead(off, n int64) ([]byte, func() error, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if err := f.closed("map"); err != nil {
		return nil, nil, err
	}
	switch {
	case f.kind != unix.KindRegular || f.access == ForWriting:
		return nil, nil, base.Errorf("map", f.path, base.ErrNotSupported, "it is a %s, or only for writing", f.kind)
	case off < 0 || n <= 0 || off+n < off:
		return nil, nil, base.Errorf("map", f.path, base.ErrInvalid, "%d bytes at %d", n, off)
	}
	return mapRead(f.plain, f.path, off, n)
}

// Stamp implements driver.Stamper.
func (f *File) Stamp() (driver.Stamp, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if err := f.closed("describe"); err != nil {
		return driver.Stamp{}, err
	}
	st, err := unix.FStat(f.plain)
	return driver.Stamp{Size: st.Size, Dev: uint64(st.Dev.Major)<<32 | uint64(st.Dev.Minor), Ino: st.Ino, Change: st.Change},
		base.Wrap("describe", f.path, err)
}

func mapRead(fd *unix.FD, name string, off, n int64) ([]byte, func() error, error) {
	b, err := unix.MmapRead(fd, off, n)
	if err == unix.EINVAL {
		return nil, nil, base.Errorf("map", name, base.ErrMisaligned, "offset %d: %w", off, err)
	}
	if err != nil {
		return nil, nil, base.Wrap("map", name, err)
	}
	return b, func() error { return unix.Munmap(b) }, nil
}
