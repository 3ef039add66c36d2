package meta

import (
	"context"
	"errors"
	iofs "io/fs"

	"github.com/cockroachdb/pebble/v2"
	"github.com/ugds-store/ugds/internal/base"
)

// Create makes the metadata directory, mode 0700, with an empty database for
// the store of id, and is durable when it returns. A directory that exists must
// be empty, or hold no more than an interrupted Create left, else ErrExists.
func Create(o Options, id Identity) (err error) {
	o = o.withDefaults()
	if o.ReadOnly {
		return base.Errorf("create metadata", o.Dir, base.ErrReadOnly, "opened read-only")
	}
	if _, err := id.encode(); err != nil {
		return err
	}
	if err := makeDir(o); err != nil {
		return ioError("create metadata", o, o.Dir, err)
	}
	lock, err := beginCreate(o)
	if err != nil {
		return ioError("create metadata", o, o.Dir, err)
	}
	defer func() {
		if err != nil {
			// The next Create removes the rest, but does not touch what has an identity.
			_ = o.FS.Remove(o.path(identityName))
		}
		err = errors.Join(err, lock.release())
	}()
	if err := createDatabase(o, lock, id); err != nil {
		return err
	}
	restoreBallast(o, o.FS)
	if err := writeIdentity(o.FS, o, id); err != nil {
		return err
	}
	_ = o.FS.Remove(o.path(creatingName)) // means nothing beside an identity
	return nil
}

// beginCreate marks the directory as being made, takes its lock, and removes
// what an interrupted Create left.
func beginCreate(o Options) (*dirLock, error) {
	for _, name := range []string{creatingName, lockName} {
		if _, err := o.FS.Stat(o.path(name)); err == nil {
			continue
		}
		if err := writeFile(o.FS, o.path(name), nil, ""); err != nil {
			return nil, err
		}
		if err := syncDir(o.FS, o.Dir); err != nil {
			return nil, err
		}
	}
	lock, err := takeLock(o, false)
	if err != nil {
		return nil, err
	}
	// Another Create may have been quicker since we looked: then all of it is a store's.
	if _, err := o.FS.Stat(o.path(identityName)); !errors.Is(err, iofs.ErrNotExist) {
		if err == nil {
			err = notEmpty(o)
		}
		return nil, errors.Join(err, lock.release())
	}
	for _, name := range []string{databaseName, identityTemp} {
		if _, err := o.FS.Stat(o.path(name)); err != nil {
			continue
		}
		if err := o.FS.RemoveAll(o.path(name)); err != nil {
			return nil, errors.Join(err, lock.release())
		}
	}
	return lock, nil
}

// createDatabase makes the database with its singletons.
func createDatabase(o Options, lock *dirLock, id Identity) error {
	d, err := openLocked(o, lock, true)
	if err != nil {
		return err
	}
	b := new(pebble.Batch)
	for _, s := range []struct {
		key   []byte
		value []byte
	}{
		{keySchema, encodeSingleton(keySchema, schemaVersion)},
		{keyStore, encodeStore(id.Store)},
		{keyEpoch, encodeSingleton(keyEpoch, id.Epoch)},
		{keyLastGen, encodeSingleton(keyLastGen, 0)},
		{keyNextNS, encodeSingleton(keyNextNS, 1)},
	} {
		_ = b.Set(s.key, s.value, nil)
	}
	err = await(func(lost func(error)) (bool, error) { return d.send(b, lost) })
	d.lock = &dirLock{free: func() error { return nil }} // Create keeps its own
	return errors.Join(ioError("create metadata", o, o.Dir, err), d.Close(context.Background()))
}

func notEmpty(o Options) error {
	err := base.Errorf("create metadata", o.Dir, base.ErrExists, "the directory is not empty")
	return base.WithHint(err, "choose another one, or remove what is in it")
}

// makeDir makes o.Dir, synced into its parents, unless it is there and usable.
func makeDir(o Options) error {
	names, err := o.FS.List(o.Dir)
	switch {
	case err == nil && len(names) > 0 && !unfinished(names):
		return notEmpty(o)
	case err == nil:
		return nil
	case !errors.Is(err, iofs.ErrNotExist):
		return err
	}
	var parents []string // those whose listing changes
	for dir := o.FS.PathDir(o.Dir); ; dir = o.FS.PathDir(dir) {
		parents = append(parents, dir)
		if _, err := o.FS.Stat(dir); err == nil || dir == o.FS.PathDir(dir) {
			break
		}
	}
	if err := o.FS.MkdirAll(o.Dir, 0o700); err != nil {
		return err
	}
	for _, dir := range parents {
		if err := syncDir(o.FS, dir); err != nil {
			return err
		}
	}
	return nil
}
