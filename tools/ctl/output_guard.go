package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
)

// mayOutput refuses, before any work is done for it, an output that could not be written
// when all is done, that replaces something without force, or that no force can mean: a
// part of a store, whosever, and what is in use.
func mayOutput(ctx context.Context, verb, name string, force bool) error {
	if name == Std {
		return nil
	}
	st, err := os.Stat(name)
	switch {
	case err == nil && st.IsDir():
		return usage(verb, "%s is a directory", name)
	case err == nil && st.Mode().Type() == fs.ModeDevice:
		return mayOverwrite(ctx, verb, name, force)
	case err == nil && st.Mode()&fs.ModeCharDevice != 0 && !force && keepsBytes(name):
		return overDevice(verb, name, "character", "")
	case err == nil && !st.Mode().IsRegular():
		return nil // a terminal, a pipe
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return base.Wrap(verb, name, pathCause(err))
	case isDescriptor(name):
		return usage(verb, "%s leads to a file that is open already: write to - instead, which is standard output", name)
	}
	if err := mayMakeIn(verb, name); err != nil {
		return err
	}
	if err := spareParts(verb, name); err != nil {
		return err
	}
	if st != nil { // first what no force can mean
		if err := file.InUse(name); err != nil {
			return err
		}
		if _, err := spareStores(ctx, verb, name); err != nil {
			return err
		}
	}
	if _, err := os.Lstat(name); err == nil && !force { // a link to nothing is there, too
		return fileExists(verb, name)
	}
	return nil
}

// isDescriptor tells of names as /dev/stdout and /dev/fd/1, which no file can replace.
func isDescriptor(name string) bool {
	for range 8 { // links that go in a circle end
		dir := resolved(filepath.Dir(name))
		if filepath.Base(dir) == "fd" && strings.HasPrefix(dir, "/proc/") {
			return true
		}
		to, err := os.Readlink(name)
		if err != nil {
			return false
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(dir, to)
		}
		name = to
	}
	return false
}

// mayOverwrite is mayOutput for a block device, which is written from its beginning on.
func mayOverwrite(ctx context.Context, verb, name string, force bool) error {
	if err := file.InUse(name); err != nil {
		return err
	}
	what, err := spareStores(ctx, verb, name)
	if err != nil || force {
		return err
	}
	return overDevice(verb, name, "block", what)
}

// fits refuses a block device that has less than n bytes.
func fits(verb, name string, n int64) error {
	if st, err := os.Stat(name); name == Std || err != nil || st.Mode().Type() != fs.ModeDevice {
		return nil
	}
	f, err := unix.Open(name, unix.ReadOnly, 0)
	if err != nil {
		return base.Wrap(verb, name, err)
	}
	has, err := unix.BlockSize64(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return base.Wrap(verb, name, err)
	}
	if has < n {
		return base.WithHint(base.Errorf(verb, name, base.ErrNoSpace, "it has %d bytes, %d are to be written", has, n), "name another file")
	}
	return nil
}

// overDevice asks for --force; what the device holds is "" if that is not known.
func overDevice(verb, name, kind, what string) error {
	lost := false
	err := base.Errorf(verb, name, base.ErrExists, "it is a %s device%s", kind, holds(what, &lost))
	return base.WithHint(err, "--force writes over it")
}

// keepsBytes tells of a character device whether what it was given before may be lost, as
// with tapes and raw flash: of all but terminals and /dev/null and its like.
func keepsBytes(name string) bool {
	const memory, firstPty, lastPty = 1, 136, 143
	st, err := unix.StatPath(name)
	if err != nil {
		return true
	}
	switch d := st.Rdev; {
	case d.Major == memory:
		return d.Minor != 3 && d.Minor != 5 && d.Minor != 7 // null, zero, full
	case d.Major >= firstPty && d.Major <= lastPty:
		return false
	default:
		to, _ := os.Readlink("/sys/dev/char/" + d.String() + "/subsystem")
		return filepath.Base(to) != "tty"
	}
}

// mayMakeIn refuses a file whose directory is not there or takes none, or lies among the
// device nodes.
func mayMakeIn(verb, name string) error {
	dir := filepath.Dir(name)
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		err := base.Errorf(verb, name, base.ErrNotFound, "there is no directory %s", dir)
		return base.WithHint(err, "make it first, or name another file")
	}
	for _, at := range []string{name, dir} { // the second, since a link there would be replaced
		if err := file.MayCreate(at); err != nil {
			return err
		}
	}
	if err := unix.MayWrite(dir); err != nil {
		err := base.Errorf(verb, name, base.ErrReadOnly, "nothing can be made in %s: %w", dir, err)
		return base.WithHint(err, "name another file")
	}
	return nil
}

// mayFill refuses a directory, new or not, in which files are to be made, that lies among
// the device nodes or in a store's metadata.
func mayFill(verb, dir string) error {
	if err := file.MayCreate(dir); err != nil {
		return err
	}
	return spareParts(verb, filepath.Join(dir, "new"))
}

// spareParts refuses a path in a metadata directory, whosever, a new one as well, and that
// of a store.toml. No --force and no --yes can mean those.
func spareParts(verb, name string) error {
	what := ""
	if dir := metaAround(name); dir != "" {
		what = "in the metadata of a store, " + dir
	} else if describesStore(name) {
		what = "the " + ConfigName + " of a store"
	} else {
		return nil
	}
	return base.WithHint(base.Errorf(verb, name, base.ErrInvalid, "it is %s", what), "choose another place")
}

// metaAround is the metadata directory that path lies in, or would, "" if it does in none.
// A link counts as where it is, and as where it leads.
func metaAround(path string) string {
	for _, at := range []string{filepath.Join(resolved(filepath.Dir(path)), filepath.Base(path)), resolved(path)} {
		for dir := filepath.Dir(at); ; dir = filepath.Dir(dir) {
			if meta.Holds(dir) {
				return dir
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return ""
}

// describesStore tells whether a file names the parts of a store, under whatever name, or
// stands beside them under the name of one that does: it may be damaged.
func describesStore(name string) bool {
	data, err := unix.ReadRegular(name, configLimit)
	if err != nil {
		return false
	}
	if _, err := parseConfig(name, data); err == nil {
		return true
	}
	if filepath.Base(name) != ConfigName {
		return false
	}
	dir := filepath.Dir(name)
	_, err = os.Stat(filepath.Join(dir, dataName))
	return err == nil || meta.Holds(filepath.Join(dir, metaName))
}

// spareStores refuses an output on which a store lies, whosever, and with ErrLocked or
// ErrInUse one that somebody holds: no --force can mean those. It tells what else lies
// there, "" if that is nothing or cannot be read.
func spareStores(ctx context.Context, verb, name string) (holds string, err error) {
	d, err := file.Open(ctx, file.Options{Path: name, ReadOnly: true, Owner: "ugdsctl"})
	switch {
	case errors.Is(err, base.ErrLocked) || errors.Is(err, base.ErrInUse):
		return "", err
	case err != nil:
		return "", ctx.Err() // most are too small for a store
	}
	label, err := store.Inspect(ctx, d)
	if cerr := d.Close(ctx); err != nil || cerr != nil || label.Blank {
		return "", ctx.Err()
	}
	if !label.Ours {
		return label.Text, nil
	}
	return "", base.WithHint(base.Errorf(verb, name, base.ErrExists, "it holds %s", label.Text), "name another file")
}

func fileExists(verb, name string) error {
	return base.WithHint(base.Errorf(verb, name, base.ErrExists, "the file exists"), "--force replaces it")
}

// output gives fill the file, standard output or the device named name. A
// regular file appears when it is whole; force replaces one that exists.
func (e *Env) output(ctx context.Context, verb, name string, force bool, fill func(w io.Writer) error) error {
	if name == Std {
		return fill(e.Stdout)
	}
	st, err := os.Stat(name)
	if err != nil || st.Mode().IsRegular() {
		return writeFile(name, force, fill)
	}
	flags := os.O_WRONLY
	if st.Mode().Type() == fs.ModeDevice {
		flags |= os.O_EXCL                       // the kernel refuses a block device that is mounted or claimed
		if err := file.InUse(name); err != nil { // and tells nothing of loop devices
			return err
		}
	}
	f, err := await(ctx, 0, func() (*os.File, error) { return os.OpenFile(name, flags, 0) })
	if err != nil {
		return base.Wrap(verb, name, pathCause(err))
	}
	w := &countWriter{w: Interruptible(ctx, f)}
	err = errors.Join(fill(w), f.Close())
	if err != nil && w.n > 0 && st.Mode().Type() == fs.ModeDevice {
		return base.Wrap(verb, name, fmt.Errorf("it was written over in part, %d bytes: %w", w.n, err))
	}
	return err
}

// countWriter knows how much was written.
type countWriter struct {
	w io.Writer
	n int64
}

func (c *countWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
