package file

import (
	"os"
	"path/filepath"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// Create makes the file path of size bytes, a positive multiple of 4 KiB, with
// permissions 0600, and makes its name durable. Space is reserved for all of it
// unless sparse is set. It never touches an existing file (ErrExists); on any
// error nothing is left behind. A full file system gives ErrNoSpace.
func Create(path string, size int64, sparse bool) error {
	if size <= 0 || size%base.StoreBlock != 0 {
		return base.Errorf("create", path, base.ErrInvalid,
			"size %d must be a positive multiple of %d", size, base.StoreBlock)
	}
	f, err := unix.Open(path, unix.ReadWrite|unix.CreateNew, 0o600)
	if err != nil {
		return createError(path, size, err)
	}
	if err = allocate(f, size, sparse); err == nil {
		err = unix.Fsync(f)
	}
	_ = f.Close()
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		_ = os.Remove(path)
		return createError(path, size, err)
	}
	return nil
}

func allocate(f *unix.FD, size int64, sparse bool) error {
	if err := unix.Truncate(f, size); err != nil || sparse {
		return err
	}
	err := unix.Fallocate(f, unix.Reserve, 0, size)
	if err != unix.EOPNOTSUPP {
		return err
	}
	zeros := make([]byte, base.MiB) // a file system that cannot reserve: write it all
	for off := int64(0); off < size; {
		n, err := unix.Pwrite(f, zeros[:min(size-off, int64(len(zeros)))], off)
		if err != nil {
			return err
		}
		off += int64(n)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := unix.Open(dir, unix.ReadOnly|unix.Directory, 0)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return unix.Fsync(d)
}

func createError(path string, size int64, err error) error {
	switch err {
	case unix.EEXIST:
		return base.WithHint(base.Errorf("create", path, base.ErrExists, "%w", err),
			"remove it or choose another path")
	case unix.ENOSPC, unix.EDQUOT, unix.EFBIG:
		free := ""
		if fs, e := unix.StatFS(filepath.Dir(path)); e == nil {
			free = ", " + base.FormatBytes(fs.FreeBytes) + " are free"
		}
		return base.WithHint(base.Errorf("create", path, base.ErrNoSpace, "%s needed%s: %w",
			base.FormatBytes(size), free, err), "free space, or choose a smaller size")
	}
	return base.Wrap("create", path, err)
}
