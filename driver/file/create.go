package file

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// Create makes the file path of size bytes, a positive multiple of 4 KiB, with
// permissions 0600, and makes its name durable. Space is reserved for all of it
// unless sparse is set. The name appears when the file is whole, where the file
// system can do that. It never touches an existing file (ErrExists), and makes none
// that MayCreate refuses; on any error nothing is left behind. A full file system gives ErrNoSpace.
// What root makes belongs to the owner and group of the directory, where that has owners.
func Create(path string, size int64, sparse bool) error {
	if size <= 0 || size%base.StoreBlock != 0 {
		return base.Errorf("create", path, base.ErrInvalid,
			"size %d must be a positive multiple of %d", size, base.StoreBlock)
	}
	if _, err := os.Lstat(path); err == nil {
		return createError(path, size, unix.EEXIST)
	}
	if err := MayCreate(path); err != nil {
		return err
	}
	owner, err := unix.OwnerFor(path)
	if err != nil {
		return createError(path, size, err)
	}
	f, named, err := newFile(path)
	if err != nil {
		return createError(path, size, err)
	}
	_ = owner.Give(f) // a file system without owners leaves it as it is
	if err = fill(f, path, size, sparse, &named); err != nil {
		if named {
			_ = os.Remove(path)
		}
		return createError(path, size, err)
	}
	return nil
}

// MayCreate refuses, with ErrNotFound, a new file among the device nodes in /dev: it would
// lie in memory, and the name is most likely a disk's, misspelt. /dev/shm and what else
// is mounted there is not meant. The folders of path need not exist.
func MayCreate(path string) error {
	at, err := filepath.Abs(path)
	if err != nil {
		return base.Wrap("create", path, err)
	}
	real, err := filepath.EvalSymlinks(at)
	for err != nil && at != "/" {
		at = filepath.Dir(at)
		real, err = filepath.EvalSymlinks(at)
	}
	below := func(dir string) bool { return real == dir || strings.HasPrefix(real, dir+"/") }
	if err != nil || !below("/dev") || below("/dev/shm") {
		return nil
	}
	a, aerr := unix.StatPath(real)
	b, berr := unix.StatPath("/dev")
	if aerr != nil || berr != nil || a.Dev != b.Dev {
		return nil
	}
	return base.WithHint(base.Errorf("create", path, base.ErrNotFound, "there is no such device, and a file there would lie in memory"),
		"check the name (lsblk shows the disks), or make the file elsewhere")
}

// newFile makes the file, without a name where that is possible; elsewhere a kill
// may leave it unfinished.
func newFile(path string) (f *unix.FD, named bool, err error) {
	if _, err := os.Stat("/proc/self/fd"); err == nil { // a name comes through it
		if f, err := unix.OpenUnnamed(filepath.Dir(path), 0o600); err == nil {
			return f, false, nil
		}
	}
	f, err = unix.Open(path, unix.ReadWrite|unix.CreateNew, 0o600)
	return f, err == nil, err
}

// fill gives f its size, and its name if it has none, and closes it.
func fill(f *unix.FD, path string, size int64, sparse bool, named *bool) error {
	defer func() { _ = f.Close() }()
	if err := allocate(f, filepath.Dir(path), size, sparse); err != nil {
		return err
	}
	if err := unix.Fsync(f); err != nil {
		return err
	}
	if !*named {
		if err := unix.Link(f, path); err != nil {
			return err
		}
		*named = true
	}
	return syncDir(filepath.Dir(path))
}

// allocate gives f, which lies in dir, its size. What does not fit is refused before
// the first block is taken: a reservation that fails would leave everybody else on
// that disk without space until it is undone.
func allocate(f *unix.FD, dir string, size int64, sparse bool) error {
	if err := unix.Truncate(f, size); err != nil || sparse {
		return err
	}
	if fs, err := unix.StatFS(dir); err == nil && fs.TotalBytes > 0 && fs.FreeBytes < size {
		return unix.ENOSPC
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
	case unix.EFBIG:
		return base.WithHint(base.Errorf("create", path, base.ErrNoSpace, "%s needed: %w", base.FormatBytes(size), err),
			"the limit of this process (ulimit -f) or of the file system is smaller")
	case unix.ENOSPC, unix.EDQUOT:
		free := ""
		if fs, e := unix.StatFS(filepath.Dir(path)); e == nil {
			free = ", " + base.FormatBytes(fs.FreeBytes) + " are free"
		}
		return base.WithHint(base.Errorf("create", path, base.ErrNoSpace, "%s needed%s: %w",
			base.FormatBytes(size), free, err), "free space, or choose a smaller size")
	}
	return base.Wrap("create", path, err)
}
