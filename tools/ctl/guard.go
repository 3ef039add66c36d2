package ctl

import (
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// guard refuses an output file that is part of the store: a device, store.toml,
// or anything in the directory of the metadata, under whatever name. No --force
// can mean those.
func (p *parts) guard(verb, dir, file string) error {
	if file == Std || file == "" {
		return nil
	}
	what := ""
	switch {
	case p.isDevice(file):
		what = "a device of the store"
	case dir != "" && same(file, filepath.Join(dir, ConfigName)):
		what = "the store's " + ConfigName
	case p.isMeta(file):
		what = "in the store's metadata"
	default:
		return nil
	}
	return base.WithHint(base.Errorf(verb, file, base.ErrInvalid, "it is %s", what), "name another file")
}

// twice refuses a device that is named twice, under whatever names.
func (p *parts) twice() error {
	for i, target := range p.devices {
		path, ok := filePath(target)
		if !ok {
			continue
		}
		before := parts{devices: p.devices[:i]}
		if before.isDevice(path) {
			return base.Errorf("open", target, base.ErrInvalid, "it is named twice: a store has a device once")
		}
	}
	return nil
}

// same tells whether two paths lead to one file, or will.
func same(a, b string) bool {
	x, xerr := os.Stat(a)
	y, yerr := os.Stat(b)
	if xerr == nil && yerr == nil {
		return os.SameFile(x, y)
	}
	return xerr != nil && yerr != nil && resolved(a) == resolved(b)
}

// isDevice compares with the devices; nodes of one block device are one.
func (p *parts) isDevice(file string) bool {
	a, err := unix.StatPath(file)
	for _, target := range p.devices {
		path, ok := filePath(target)
		if !ok {
			continue
		}
		if same(file, path) {
			return true
		}
		b, berr := unix.StatPath(path)
		if err == nil && berr == nil && a.Kind == unix.KindBlock && b.Kind == unix.KindBlock && a.Rdev == b.Rdev {
			return true
		}
	}
	return false
}

// isMeta tells whether file is, or would be, below the metadata, or is another
// name of a file there.
func (p *parts) isMeta(file string) bool {
	for at := resolved(file); ; at = filepath.Dir(at) {
		if same(at, p.meta) {
			return true
		}
		if at == filepath.Dir(at) {
			break
		}
	}
	st, err := os.Stat(file)
	if err != nil {
		return false
	}
	found := false
	_ = filepath.WalkDir(p.meta, func(_ string, d fs.DirEntry, err error) error { // what cannot be read is passed over
		if err != nil {
			return nil
		}
		if info, err := d.Info(); err == nil && os.SameFile(st, info) {
			found = true
			return fs.SkipAll
		}
		return nil
	})
	return found
}

// resolved is the absolute path without links, as far as it exists.
func resolved(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real
	}
	if to, err := os.Readlink(abs); err == nil { // a link to what does not exist
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(abs), to)
		}
		return filepath.Join(resolved(filepath.Dir(to)), filepath.Base(to))
	}
	if abs == filepath.Dir(abs) {
		return abs
	}
	return filepath.Join(resolved(filepath.Dir(abs)), filepath.Base(abs))
}
