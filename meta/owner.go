package meta

import (
	"errors"
	iofs "io/fs"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// A metadata directory belongs to one user, and root may work in it as well. What
// root makes there gets the directory's owner, or that user could not open the store
// any more. Where that is not possible, as on a file system without owners, the file
// stays as it was made: an open that fails because of it says so.

// create is fs.Create with the owner that a new file ought to have.
func create(fs vfs.FS, path string) (vfs.File, error) {
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err == nil {
		inherit(f, path)
	}
	return f, err
}

// inherit gives a file or directory that was just made at path the owner of the
// directory that it is in.
func inherit(f vfs.File, path string) {
	if fd := f.Fd(); fd != vfs.InvalidFd {
		_ = unix.Inherit(unix.NewFD(int(fd), path), path)
	}
}

// inheritDir is inherit for a directory of a real file system. It was made by its name,
// which may be that of something else by now: only a directory is opened.
func inheritDir(path string) {
	if f, err := unix.Open(path, unix.Directory|unix.NoFollow, 0); err == nil {
		_ = unix.Inherit(f, path)
		_ = f.Close()
	}
}

// keepOwner gives f, which will replace path, that file's owner and permissions.
func keepOwner(f vfs.File, path string) {
	if fd := f.Fd(); fd != vfs.InvalidFd {
		_ = unix.KeepOwner(unix.NewFD(int(fd), path), path)
	}
}

// denied adds to err, if it tells that this process may not open a file of dir, whose
// that is and what helps.
func denied(dir string, err error) error {
	var at *iofs.PathError
	if !errors.Is(err, iofs.ErrPermission) || !errors.As(err, &at) {
		return err
	}
	me := uint32(os.Geteuid())
	whose, uid := unix.Whose(at.Path)
	if whose == "" {
		return err
	}
	if up, uerr := unix.StatPath(dir); uid != me && uerr == nil && up.UID == me {
		return base.WithHint(err, "%s; as root: chown -R --reference=%s %s", whose, dir, dir)
	}
	return base.WithHint(err, "%s: work as that user or as root, or have the owner let this one in", whose)
}
