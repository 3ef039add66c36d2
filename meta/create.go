package meta

import (
	"errors"
	iofs "io/fs"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/ugds-store/ugds/internal/base"
)

// Create makes the metadata directory, mode 0700, with an empty database for
// the store of id, and is durable when it returns. A directory that exists must
// be empty, else ErrExists. What a failed Create made is removed again; a crash
// may leave a directory without identity, which neither Open nor Create takes.
func Create(o Options, id Identity) (err error) {
	o = o.withDefaults()
	if o.ReadOnly {
		return base.Errorf("create metadata", o.Dir, base.ErrReadOnly, "opened read-only")
	}
	if _, err := id.encode(); err != nil {
		return err
	}
	made, err := makeDir(o)
	if err != nil {
		return ioError("create metadata", o, o.Dir, err)
	}
	defer func() {
		if err != nil {
			removeMade(o, made)
		}
	}()
	if err := writeFile(o.FS, o.path(lockName), nil); err != nil {
		return ioError("create metadata", o, o.path(lockName), err)
	}
	lock, err := takeLock(o, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.release()) }()
	if err := createDatabase(o, lock, id); err != nil {
		return err
	}
	restoreBallast(o, o.FS)
	return writeIdentity(o.FS, o, id)
}

// createDatabase makes the database with its singletons.
func createDatabase(o Options, lock *dirLock, id Identity) error {
	d, err := openLocked(o, lock, true)
	if err != nil {
		return err
	}
	go d.committer()
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
	err = d.send(b)
	d.lock = &dirLock{free: func() error { return nil }} // Create keeps its own
	d.shutDown()
	return errors.Join(ioError("create metadata", o, o.Dir, err), d.closeErr)
}

// makeDir makes o.Dir, synced into its parents, and reports whether it was new.
func makeDir(o Options) (made bool, err error) {
	names, err := o.FS.List(o.Dir)
	switch {
	case err == nil && len(names) > 0:
		err := base.Errorf("create metadata", o.Dir, base.ErrExists, "the directory is not empty")
		return false, base.WithHint(err, "choose another one, or remove what is in it")
	case err == nil:
		return false, nil
	case !errors.Is(err, iofs.ErrNotExist):
		return false, err
	}
	var parents []string // those whose listing changes
	for dir := o.FS.PathDir(o.Dir); ; dir = o.FS.PathDir(dir) {
		parents = append(parents, dir)
		if _, err := o.FS.Stat(dir); err == nil || dir == o.FS.PathDir(dir) {
			break
		}
	}
	if err := o.FS.MkdirAll(o.Dir, 0o700); err != nil {
		return false, err
	}
	for _, dir := range parents {
		if err := syncDir(o.FS, dir); err != nil {
			return true, err
		}
	}
	return true, nil
}

// removeMade removes what a failed Create left, as far as that goes.
func removeMade(o Options, dirToo bool) {
	if dirToo {
		_ = o.FS.RemoveAll(o.Dir)
		return
	}
	for _, name := range []string{databaseName, lockName, ballastName, identityTemp, identityName} {
		_ = o.FS.RemoveAll(o.path(name))
	}
}

var _ vfs.FS = (*fenceFS)(nil)
