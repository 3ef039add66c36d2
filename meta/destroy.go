package meta

import (
	"errors"
	iofs "io/fs"

	"github.com/ugds-store/ugds/internal/base"
)

// Destroy removes a metadata directory's content, the identity first, so that a
// crash in between leaves nothing that Open would take. It removes only what
// Create makes, also what a crashed Create left; the directory itself stays.
// Errors: ErrNotFound when there is no directory, ErrLocked when it has an
// owner.
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
	case !errors.Is(err, iofs.ErrNotExist):
		return err
	}
	for _, name := range []string{identityName, identityTemp, ballastName, databaseName, lockName, creatingName} {
		if err := o.FS.RemoveAll(o.path(name)); err != nil && !errors.Is(err, iofs.ErrNotExist) {
			return ioError("destroy metadata", o, o.path(name), err)
		}
		if err := syncDir(o.FS, o.Dir); err != nil {
			return ioError("destroy metadata", o, o.Dir, err)
		}
	}
	return nil
}
