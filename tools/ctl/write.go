package ctl

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// outFile is a file that is being written and is not in its place yet.
type outFile struct {
	*os.File
	name string // where it shall be
	temp string // the name that it has now, or ""
}

// writeFile makes the file name from what fill writes: durable, and whole or not
// there. With force it replaces an existing one, whose permissions it keeps. Where
// the file system can do it, the file has no name before it is whole, so that a
// kill leaves nothing; elsewhere it leaves .NAME.NUMBER.tmp.
func writeFile(name string, force bool, fill func(w io.Writer) error) error {
	return writeFileOf(nil, name, force, fill)
}

// writeFileOf is writeFile for a file that is to be the owner's, whatever is there.
func writeFileOf(owner *unix.Owner, name string, force bool, fill func(w io.Writer) error) (err error) {
	f, err := newOutFile(name)
	if err != nil {
		return base.Wrap("create", name, pathCause(err))
	}
	defer func() {
		if err != nil {
			f.Close()
			if f.temp != "" {
				os.Remove(f.temp)
			}
		}
	}()
	if old, err := os.Stat(name); err == nil && force {
		if err := f.Chmod(old.Mode().Perm()); err != nil {
			return base.Wrap("write", name, pathCause(err))
		}
	}
	// A file system without owners leaves it as it is.
	_ = owner.Give(unix.NewFD(int(f.Fd()), name)) // the descriptor stays f's
	if err := fill(f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return base.Wrap("write", name, pathCause(err))
	}
	if err := f.place(force); errors.Is(err, fs.ErrExist) {
		return fileExists("create", name)
	} else if err != nil {
		return base.Wrap("put in place", name, pathCause(err))
	}
	if err := f.Close(); err != nil {
		return base.Wrap("write", name, pathCause(err))
	}
	return syncDir(filepath.Dir(name))
}

// newOutFile makes a file beside name, without a name if that is possible.
func newOutFile(name string) (*outFile, error) {
	dir := filepath.Dir(name)
	if _, err := os.Stat("/proc/self/fd"); err == nil { // a name comes through it
		if f, err := os.OpenFile(dir, os.O_RDWR|unix.Unnamed, 0o666); err == nil {
			return &outFile{f, name, ""}, nil
		}
	}
	return namedOutFile(name)
}

// tempTries bounds the search for a name that is free.
const tempTries = 100

// namedOutFile is newOutFile on file systems that know only files with names.
func namedOutFile(name string) (f *outFile, err error) {
	f = &outFile{name: name}
	for i := range tempTries {
		f.temp = tempName(name, i)
		f.File, err = os.OpenFile(f.temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
		if !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	return f, err
}

func tempName(name string, i int) string {
	return filepath.Join(filepath.Dir(name), fmt.Sprintf(".%s.%d.tmp", filepath.Base(name), os.Getpid()*tempTries+i))
}

// place gives the file its name.
func (f *outFile) place(force bool) error {
	if f.temp == "" {
		err := f.link(f.name)
		if err == nil || !force || !errors.Is(err, fs.ErrExist) {
			return err
		}
		for i := range tempTries { // only a rename replaces
			temp := tempName(f.name, i)
			if err = f.link(temp); err == nil {
				f.temp = temp
			}
			if !errors.Is(err, fs.ErrExist) {
				break
			}
		}
		if err != nil {
			return err
		}
	}
	return os.Rename(f.temp, f.name)
}

func (f *outFile) link(name string) error {
	return unix.Link(unix.NewFD(int(f.Fd()), name), name) // the descriptor stays f's
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return base.Wrap("sync", dir, err)
	}
	defer d.Close()
	return base.Wrap("sync", dir, d.Sync())
}
