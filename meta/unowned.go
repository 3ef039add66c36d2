package meta

import (
	"errors"
	iofs "io/fs"
	"path/filepath"
	"time"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// How long a process may have a file open for writing and be no owner: one that is just
// being started may have a copy of a descriptor that was closed.
const (
	writerGrace = 200 * time.Millisecond
	writerPoll  = 5 * time.Millisecond
)

// Unowned refuses, with ErrLocked, a directory that has a living owner or, unless
// o.ReadOnly is set, a reader: by its lock and, where that was removed, by the files that
// an owner has open, as far as this process can see those. It changes nothing; without a
// directory there is no owner.
func Unowned(o Options) error {
	o = o.withDefaults()
	lock, err := takeLock(o, o.ReadOnly)
	switch {
	case err == nil:
		if err := lock.release(); err != nil {
			return err
		}
	case errors.Is(err, base.ErrLocked):
		return err
	}
	return unowned(o, !o.ReadOnly)
}

// unowned refuses a directory on a disk in which some process has a file open for writing:
// as its log is while an owner lives. LOCK does not count: that it is open means nothing.
// For who destroys the directory, who reads there counts as well, and so does a LOCK that
// was removed, all that a reader may have open.
func unowned(o Options, destroy bool) error {
	if st, err := o.FS.Stat(o.Dir); err != nil || st.Sys() == nil {
		return nil
	}
	var files []unix.Stat
	_ = filepath.WalkDir(o.Dir, func(path string, d iofs.DirEntry, err error) error { // what cannot be read is passed over
		if err == nil && d.Type().IsRegular() && filepath.Base(path) != lockName {
			if st, err := unix.StatPath(path); err == nil {
				files = append(files, st)
			}
		}
		return nil
	})
	if len(files) == 0 {
		return nil
	}
	users, what := unix.Writers, "open for writing"
	if destroy {
		users, what = func(files []unix.Stat) []int { return unix.Users(files, realPath(o.path(lockName))) }, "open"
	}
	for end := time.Now().Add(writerGrace); ; time.Sleep(writerPoll) {
		pids := users(files)
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(end) {
			err := base.Errorf("open metadata", o.Dir, base.ErrLocked, "pid %d (%s) has it %s, and its file %s was removed or replaced",
				pids[0], unix.ProcName(pids[0]), what, lockName)
			return base.WithHint(err, "%s", base.OwnerHint(pids[0]))
		}
	}
}

// realPath is a path in a directory as the kernel shows it.
func realPath(path string) string {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return path
	}
	return filepath.Join(dir, filepath.Base(path))
}
