package meta

import (
	"errors"
	iofs "io/fs"
	"slices"

	"github.com/ugds-store/ugds/internal/base"
)

// ownNames are what Create makes, in the order in which Destroy removes it.
var ownNames = []string{identityName, identityTemp, ballastName, databaseName, lockName, creatingName}

// Owns tells whether name in a metadata directory is one that this package makes,
// and Destroy removes.
func Owns(name string) bool { return slices.Contains(ownNames, name) }

// Unfinished tells whether o.Dir holds what an interrupted Create left, which the
// next one takes: no store ever used it.
func Unfinished(o Options) bool {
	names, err := o.withDefaults().FS.List(o.Dir)
	return err == nil && unfinished(names)
}

func unfinished(names []string) bool {
	return slices.Contains(names, creatingName) && !slices.Contains(names, identityName)
}

// Destroy removes a metadata directory's content, the identity first, so that a
// crash in between leaves nothing that Open would take. It removes only what
// Create makes, also what a crashed Create left; the directory itself stays.
// Errors: ErrNotFound when there is no directory, ErrLocked when it has an
// owner or a reader, also one whose lock file was removed, as far as that can be seen.
func Destroy(o Options) error {
	o = o.withDefaults()
	if o.ReadOnly {
		return base.Errorf("destroy metadata", o.Dir, base.ErrReadOnly, "opened read-only")
	}
	if _, err := o.FS.List(o.Dir); err != nil {
		if errors.Is(err, iofs.ErrNotExist) {
			return base.Errorf("destroy metadata", o.Dir, base.ErrNotFound, "there is no such directory")
		}
		return ioError("destroy metadata", o, o.Dir, err)
	}
	lock, err := takeLock(o, false)
	switch {
	case err == nil:
		defer lock.release()
	case !errors.Is(err, iofs.ErrNotExist) && !errors.Is(err, errNotRegular): // nobody has such a lock
		return err
	}
	if err := unowned(o, true); err != nil {
		return err
	}
	for _, name := range ownNames {
		if err := o.FS.RemoveAll(o.path(name)); err != nil && !errors.Is(err, iofs.ErrNotExist) {
			return ioError("destroy metadata", o, o.path(name), err)
		}
		if err := syncDir(o.FS, o.Dir); err != nil {
			return ioError("destroy metadata", o, o.Dir, err)
		}
	}
	return nil
}
