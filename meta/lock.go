package meta

import (
	"errors"
	"io"
	iofs "io/fs"
	"reflect"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// dirLock is the lock of a metadata directory: exclusive for an owner, shared
// for read-only openers. On the disk it is flock on the file LOCK, which the
// kernel frees when the process ends, and which works between two openers of
// one process too. On other file systems it is a table of this process.
// Pebble's own lock knows no readers and is not taken.
//
// Who removes or replaces the file LOCK lets a second owner in, whatever the first one
// has locked. So an exclusive lock on the disk knows which file it is on, and lost tells
// when that is not LOCK any more: it is asked behind every commit, before that is answered
// (a microsecond beside a sync), and before every change of the directory by name. Those to
// files that are open only reach what is this owner's.
type dirLock struct {
	file  *lockFile // nil where nothing can be compared
	once  sync.Once
	free  func() error
	after []*fenceFS // whose last change must have ended first
}

// release gives the lock back, later if changes are still under way. It may be
// called more than once.
func (l *dirLock) release() (err error) {
	l.once.Do(func() {
		if len(l.after) == 0 {
			err = l.free()
			return
		}
		go func() {
			for _, fs := range l.after {
				fs.waitDrained(nil)
				fs.closeFiles()
			}
			_ = l.free()
		}()
	})
	return err
}

// lockFile is the file that is locked.
type lockFile struct {
	path string
	st   unix.Stat
}

// lost is nil, or ErrLocked when LOCK is gone or another file than the one that was
// locked: somebody else may work in the directory, or may have made a new store of it.
func (l *dirLock) lost() error {
	if l == nil || l.file == nil {
		return nil
	}
	st, err := unix.StatPath(l.file.path)
	why := "it was replaced"
	switch {
	case err == nil && st.Ino == l.file.st.Ino && st.Dev == l.file.st.Dev:
		return nil
	case err == syscall.ENOENT || err == syscall.ENOTDIR:
		why = "it was removed"
	case err != nil:
		return nil // that tells nothing
	}
	err = base.Errorf("keep the lock", l.file.path, base.ErrLocked, "%s while this process had the metadata open, which may be another store's now", why)
	return base.WithHint(err, "never remove LOCK; open the store again to see what is left")
}

// ErrLockLost is the cause of the ErrCorrupt that opening for reading gives when only
// the lock file is missing, which RestoreLock makes again.
var ErrLockLost = errors.New("the file is missing")

// takeLock takes the lock of o.Dir or fails with ErrLocked at once. It writes
// nothing: Create makes the file.
func takeLock(o Options, shared bool) (*dirLock, error) {
	path := o.path(lockName)
	f, err := openRegular(o.FS, path)
	if err != nil {
		if errors.Is(err, errNotRegular) {
			err = base.Errorf("lock", path, base.ErrCorrupt, "%w", err)
			return nil, base.WithHint(err, "nothing is lost: remove it, and the next open for writing makes it again")
		}
		if errors.Is(err, iofs.ErrNotExist) {
			err = base.Errorf("lock", path, base.ErrCorrupt, "%w: %w", ErrLockLost, err)
			if unix.MayWrite(o.Dir) == syscall.EROFS {
				// It cannot be done without: others may have mounted the same for writing.
				return nil, base.WithHint(err, "nothing is lost, but this file system is read-only: copy the directory to another one, "+
					"make an empty file LOCK in the copy, and name that with --meta")
			}
			return nil, base.WithHint(err, "`ugdsctl fsck --repair --yes` makes it again, and so does each open for writing")
		}
		return nil, denied(o.Dir, base.Wrap("open metadata", o.Dir, err))
	}
	if fd := f.Fd(); fd != vfs.InvalidFd {
		return flock(f, fd, path, shared)
	}
	if err := f.Close(); err != nil {
		return nil, base.Wrap("lock", path, err)
	}
	return tableLock(o, path, shared)
}

func flock(f io.Closer, fd uintptr, path string, shared bool) (*dirLock, error) {
	how := unix.LockExclusive
	if shared {
		how = unix.LockShared
	}
	on := unix.NewFD(int(fd), path) // the descriptor stays f's
	err := unix.TryFlock(on, how)
	if err == nil {
		// Unlocked first: a process that was forked and has not yet become another
		// program has the open file as well.
		l := &dirLock{free: func() error { return errors.Join(unix.Unflock(on), f.Close()) }}
		if st, err := unix.FStat(on); err == nil && !shared {
			l.file = &lockFile{path, st}
		}
		if l.lost() != nil { // replaced since it was opened, as a format does it
			return nil, errors.Join(lockedError(path, shared), l.release())
		}
		return l, nil
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = lockedError(path, shared)
	} else {
		err = base.Wrap("lock", path, err)
	}
	return nil, errors.Join(err, f.Close())
}

func lockedError(path string, shared bool) error {
	if shared {
		err := base.Errorf("open metadata", path, base.ErrLocked, "its owner has it open")
		return base.WithHint(err, "ask the owning process, or stop it first")
	}
	err := base.Errorf("open metadata", path, base.ErrLocked, "another process, or this one, has it open")
	return base.WithHint(err, "one owner at a time; find it with lsof or fuser")
}

type tableKey struct {
	root vfs.FS
	path string
}

// locks are those on file systems without descriptors. A count of -1 is an
// owner, a positive one are readers.
var locks struct {
	sync.Mutex
	held map[tableKey]int
}

func tableLock(o Options, path string, shared bool) (*dirLock, error) {
	key := tableKey{vfs.Root(o.FS), path}
	if !reflect.TypeOf(key.root).Comparable() {
		return nil, base.Errorf("lock", path, base.ErrNotSupported, "file system %T cannot be told from others", key.root)
	}
	locks.Lock()
	defer locks.Unlock()
	if locks.held == nil {
		locks.held = map[tableKey]int{}
	}
	n := locks.held[key]
	if n < 0 || n > 0 && !shared {
		return nil, lockedError(path, shared)
	}
	step := -1
	if shared {
		step = 1
	}
	locks.held[key] = n + step
	return &dirLock{free: func() error {
		locks.Lock()
		defer locks.Unlock()
		if locks.held[key] -= step; locks.held[key] == 0 {
			delete(locks.held, key)
		}
		return nil
	}}, nil
}
