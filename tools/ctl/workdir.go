package ctl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// runningName is a file in the directory of a bench or demo while that works there. The
// directory is locked as long, so that one with the file and without the lock was left
// by a process that was killed.
const runningName = "RUNNING"

// workDir is the directory in which a bench or demo makes its files.
type workDir struct {
	path  string
	there string                 // the nearest directory of path that was there before
	ours  bool                   // a temporary one, removed whole
	lock  *unix.FD               // nil where the file system has no locks
	clean func(dir string) error // removes what the work makes
}

// workDir makes the directory named, or a temporary one below temp whose name begins
// with prefix. One that is named must not exist or be empty, so that the end can remove
// what was made and no more. What killed processes left, in the same place or below temp,
// is removed first, with a line about it.
func (e *Env) workDir(verb, named, temp, prefix string, clean func(dir string) error) (*workDir, error) {
	w := &workDir{path: named, there: existing(named), ours: named == "", clean: clean}
	var err error
	if w.ours {
		e.removeLeft(temp, prefix)
		if w.path, err = os.MkdirTemp(temp, prefix); err != nil {
			return nil, base.WithHint(base.Wrap(verb, "temporary directory in "+temp, pathCause(err)), "TMPDIR names another place")
		}
	} else if err = e.takeNamed(verb, named, clean); err != nil {
		return nil, err
	}
	if w.lock, err = lockDir(w.path); errors.Is(err, syscall.EAGAIN) { // begun in this moment
		return nil, inUse(verb, named)
	}
	if err := os.WriteFile(filepath.Join(w.path, runningName), nil, 0o600); err != nil {
		return nil, errors.Join(base.Wrap(verb, w.path, pathCause(err)), w.close(false))
	}
	return w, nil
}

// takeNamed makes a directory, or takes an empty one, or one that can be emptied.
func (e *Env) takeNamed(verb, dir string, clean func(dir string) error) error {
	if err := mayFill(verb, dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return base.Wrap(verb, dir, pathCause(err))
	}
	if left, err := leftBehind(dir); err != nil {
		return inUse(verb, dir)
	} else if left {
		if err := errors.Join(clean(dir), os.Remove(filepath.Join(dir, runningName))); err != nil {
			return err
		}
		fmt.Fprintf(e.Stderr, "ugdsctl: removed from %s what a process that was killed left\n", Plain(dir))
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return base.Wrap(verb, dir, pathCause(err))
	}
	if len(entries) > 0 {
		return base.WithHint(base.Errorf(verb, dir, base.ErrExists, "the directory is not empty"), "name a new one")
	}
	return nil
}

func inUse(verb, dir string) error {
	return base.WithHint(base.Errorf(verb, dir, base.ErrInUse, "another one works there"), "wait for it, or name another directory")
}

// removeLeft removes temporary directories of this user whose process was killed.
// What cannot be removed does not matter: the work goes elsewhere.
func (e *Env) removeLeft(temp, prefix string) {
	entries, _ := os.ReadDir(temp)
	for _, entry := range entries {
		dir := filepath.Join(temp, entry.Name())
		if !entry.IsDir() || !strings.HasPrefix(entry.Name(), prefix) {
			continue
		}
		st, err := unix.StatPath(dir)
		if err != nil || int(st.UID) != os.Getuid() {
			continue
		}
		if left, err := leftBehind(dir); err == nil && left && os.RemoveAll(dir) == nil {
			fmt.Fprintf(e.Stderr, "ugdsctl: removed %s, which a process that was killed left\n", Plain(dir))
		}
	}
}

// leftBehind tells whether the process that worked in dir was killed. An error means
// that one works there, or that this cannot be found out.
func leftBehind(dir string) (bool, error) {
	if _, err := os.Lstat(filepath.Join(dir, runningName)); err != nil {
		return false, nil
	}
	f, err := lockDir(dir)
	if err != nil {
		return false, err
	}
	return true, f.Close()
}

// forgetKilled takes dir away from what a killed process left there: it is the place of
// a new store now, which no bench or demo may remove.
func forgetKilled(dir string) {
	if left, err := leftBehind(dir); err == nil && left {
		_ = os.Remove(filepath.Join(dir, runningName)) // nothing else is lost if it stays
	}
}

func lockDir(dir string) (*unix.FD, error) {
	f, err := unix.Open(dir, unix.ReadOnly|unix.Directory, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.TryFlock(f, unix.LockExclusive); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// close ends the work. It removes what was made unless that is to be kept, the directory
// as well.
func (w *workDir) close(keep bool) error {
	var errs []error
	if !keep {
		errs = append(errs, w.clean(w.path))
	}
	if err := os.Remove(filepath.Join(w.path, runningName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, base.Wrap("remove", runningName, err))
	}
	switch {
	case keep:
	case w.ours:
		errs = append(errs, os.RemoveAll(w.path))
	default:
		removeMade(w.path, w.there)
	}
	if w.lock != nil {
		errs = append(errs, w.lock.Close())
	}
	return errors.Join(errs...)
}
