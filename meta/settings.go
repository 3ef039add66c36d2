package meta

import (
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/ugds-store/ugds/internal/base"
)

// Pebble writes its settings into a file OPTIONS-N at each open for writing and, at the
// next open, refuses a database whose newest one it cannot read, or which names another
// order of keys. Nothing depends on it here: the settings are those of this program, and
// the MANIFEST names the order of keys as well. So a damaged one may be removed.

// ErrOptionsDamaged is the cause of the ErrCorrupt that Open gives when nothing but the
// newest OPTIONS file stands against it, which DropOptions removes.
var ErrOptionsDamaged = errors.New("the file with Pebble's settings is damaged")

// optionsLimit is how many bytes of an OPTIONS file are looked at; one has about 3 KB.
const optionsLimit = 1 << 20

// damagedOptions is the newest OPTIONS file and why Pebble refuses it, or nil. It is read
// as Pebble's Open does.
func damagedOptions(o Options) (path string, why error) {
	db := o.path(databaseName)
	names, err := o.FS.List(db)
	if err != nil {
		return "", nil
	}
	newest := uint64(0)
	for _, name := range names {
		num, ok := strings.CutPrefix(name, "OPTIONS-")
		if n, err := strconv.ParseUint(num, 10, 64); ok && err == nil && n > newest {
			newest, path = n, o.FS.PathJoin(db, name)
		}
	}
	if path == "" {
		return "", nil
	}
	f, err := openRegular(o.FS, path)
	if errors.Is(err, errNotRegular) {
		return path, base.Errorf("open", path, base.ErrCorrupt, "%w", err) // as fenceFS.Open says it
	}
	if err != nil {
		return path, nil
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, optionsLimit))
	if err != nil {
		return path, nil
	}
	ours := pebble.Options{Comparer: pebble.DefaultComparer, Merger: pebble.DefaultMerger}
	return path, ours.CheckCompatibility(db, string(text))
}

// optionsError is openError for an OPTIONS file that made Pebble fail with err, else nil.
func optionsError(o Options, err error) error {
	path, why := damagedOptions(o)
	if why == nil || !strings.Contains(err.Error(), why.Error()) {
		return nil
	}
	e := base.Errorf("open metadata", path, base.ErrCorrupt, "%w: %w", ErrOptionsDamaged, plain(err))
	return base.WithHint(e, "no value is lost by that: `ugdsctl fsck --repair --yes` removes the file, and the next open for writing makes a new one")
}

// DropOptions removes the OPTIONS file that made Open fail with ErrOptionsDamaged, and
// nothing if there is none: the next open for writing makes a new one. Errors: those of
// the file system, ErrLocked, ErrReadOnly.
func DropOptions(o Options) (err error) {
	const op = "remove settings"
	o = o.withDefaults()
	if o.ReadOnly {
		return base.Errorf(op, o.Dir, base.ErrReadOnly, "opened read-only")
	}
	lock, err := takeLock(o, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.release()) }()
	path, why := damagedOptions(o)
	if why == nil {
		return nil
	}
	if err := o.FS.Remove(path); err != nil {
		return ioError(op, o, path, err)
	}
	return ioError(op, o, o.path(databaseName), syncDir(o.FS, o.path(databaseName)))
}
