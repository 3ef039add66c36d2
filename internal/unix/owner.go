package unix

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Inherit gives the file behind f, which this process has just made at path, the owner
// and group of its directory. Only root can do that, so that its work in somebody
// else's directory leaves nothing there which that one cannot use; for others it does
// nothing. It does nothing either when f is not what path names, or has a second name:
// who owns the directory could otherwise have files of others given to himself. Errors
// are Errnos.
func Inherit(f *FD, path string) error {
	if unix.Geteuid() != 0 {
		return nil
	}
	dir, err := Open(filepath.Dir(path), unix.O_PATH|Directory, 0)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	var of, at, up unix.Stat_t
	if err := unix.Fstat(dir.Int(), &up); err != nil {
		return err
	}
	if err := unix.Fstatat(dir.Int(), filepath.Base(path), &at, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if err := unix.Fstat(f.Int(), &of); err != nil { // last: it counts the names
		return err
	}
	if of.Uid == up.Uid && of.Gid == up.Gid {
		return nil
	}
	if at.Ino != of.Ino || at.Dev != of.Dev || of.Mode&unix.S_IFMT == unix.S_IFREG && of.Nlink != 1 {
		return nil
	}
	return unix.Fchown(f.Int(), int(up.Uid), int(up.Gid))
}

// KeepOwner gives the file behind f, which is to replace the regular file path, that
// one's group, its owner if this process may, and its permissions. Without a regular file
// at path, or when this process may not, f stays as it is. Errors are Errnos.
func KeepOwner(f *FD, path string) error {
	old, err := ownerOf(path)
	if err != nil {
		return err
	}
	return old.Give(f)
}

// Owner is whose a file is to be, and with which permissions. Nil is nobody: a file
// stays as it was made.
type Owner struct {
	uid, gid int
	mode     uint32
	modeToo  bool // else the permissions stay as they were made
}

// OwnerFor gives the owner for a new file at path: that of the regular file which is
// there now, with its permissions; else, for root, that of the directory; else nobody.
// Errors are Errnos.
func OwnerFor(path string) (*Owner, error) {
	old, err := ownerOf(path)
	if err != nil || old != nil || unix.Geteuid() != 0 {
		return old, err
	}
	var up unix.Stat_t
	switch err := unix.Stat(filepath.Dir(path), &up); {
	case err == unix.ENOENT:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &Owner{uid: int(up.Uid), gid: int(up.Gid)}, nil
}

// ownerOf is the owner of the regular file at path, nobody if there is none.
func ownerOf(path string) (*Owner, error) {
	var old unix.Stat_t
	switch err := unix.Lstat(path, &old); {
	case err == unix.ENOENT, err == nil && old.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &Owner{int(old.Uid), int(old.Gid), old.Mode & 0o777, true}, nil
}

// Give gives the file behind f, which this process has just made, the group and the
// permissions, and the owner if this process may. It goes by the descriptor: what stands
// at its path by then does not matter. Errors are Errnos.
func (o *Owner) Give(f *FD) error {
	if o == nil {
		return nil
	}
	err := unix.Fchown(f.Int(), o.uid, o.gid)
	if err == unix.EPERM {
		err = unix.Fchown(f.Int(), -1, o.gid)
	}
	if err == unix.EPERM {
		return nil // its permissions would be those of another group
	}
	if err != nil || !o.modeToo {
		return err
	}
	return unix.Fchmod(f.Int(), o.mode)
}

// Whose tells whose path is, for a process that may not open it: in words, and the
// owner's number. Where path cannot be seen, or is not there, the directory counts that
// can. It is "" where nothing can be told.
func Whose(path string) (text string, uid uint32) {
	for {
		if st, err := StatPath(path); err == nil {
			return fmt.Sprintf("%s is of user %d, mode %04o, this process of user %d", path, st.UID, st.Mode, os.Geteuid()), st.UID
		}
		if path == filepath.Dir(path) {
			return "", 0
		}
		path = filepath.Dir(path)
	}
}
