package meta

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
)

// TestLockTaken: an owner whose file LOCK is removed or replaced answers no further commit
// with success, changes nothing by name, and goes on to read.
func TestLockTaken(t *testing.T) {
	for name, take := range map[string]func(lock string) error{
		"removed":  os.Remove,
		"replaced": func(lock string) error { return errors.Join(os.Remove(lock), os.WriteFile(lock, nil, 0o600)) },
		"all of it": func(lock string) error {
			return os.Rename(filepath.Dir(lock), filepath.Dir(lock)+".old")
		},
	} {
		for _, first := range []string{"commit", "identity"} {
			o := Options{Dir: filepath.Join(t.TempDir(), "m")}
			d := newDB(t, o)
			put(t, d, 1, 1, "a")
			if err := take(filepath.Join(o.Dir, lockName)); err != nil {
				t.Fatal(err)
			}
			if first == "identity" {
				if err := d.WriteIdentity(Identity{}); !errors.Is(err, base.ErrReadOnly) {
					t.Errorf("%s: identity: %v", name, err)
				}
			} else if err := tryPut(d, 1, 2, "b"); !errors.Is(err, base.ErrUnknown) || !errors.Is(err, base.ErrLocked) {
				t.Errorf("%s: commit: %v", name, err)
			}
			if err := d.Fenced(); !errors.Is(err, base.ErrLocked) {
				t.Errorf("%s: %v", name, err)
			}
			if err := tryPut(d, 1, 3, "c"); !errors.Is(err, base.ErrReadOnly) {
				t.Errorf("%s: the next commit: %v", name, err)
			}
			if got := len(scan(t, d)); got != 1 {
				t.Errorf("%s: %d objects are seen", name, got)
			}
			if err := d.Close(t.Context()); err != nil {
				t.Errorf("%s: close: %v", name, err)
			}
			if _, err := os.Stat(filepath.Join(o.Dir, identityTemp)); err == nil {
				t.Errorf("%s: a file was made", name)
			}
		}
	}
}

// TestOwnerWithoutLock: a living owner is found by the files that it has open when its
// lock file was removed, or another one made in its place.
func TestOwnerWithoutLock(t *testing.T) {
	o := Options{Dir: filepath.Join(t.TempDir(), "m")}
	d := newDB(t, o)
	lock := filepath.Join(o.Dir, lockName)
	if err := Unowned(o); !errors.Is(err, base.ErrLocked) {
		t.Errorf("with its lock: %v", err)
	}
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(o); !errors.Is(err, base.ErrLocked) {
		t.Errorf("open: %v", err)
	}
	if _, err := os.Stat(lock); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an open made the lock again: %v", err)
	}
	refused := func(what string) {
		t.Helper()
		for _, readOnly := range []bool{false, true} {
			if err := Unowned(Options{Dir: o.Dir, ReadOnly: readOnly}); !errors.Is(err, base.ErrLocked) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := Destroy(o); !errors.Is(err, base.ErrLocked) {
			t.Errorf("%s: destroy: %v", what, err)
		}
	}
	refused("without a lock")
	if err := os.WriteFile(lock, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("with another lock")
	_ = d.Close(t.Context()) // it may find its lock lost
	if err := Unowned(o); err != nil {
		t.Errorf("closed: %v", err)
	}
	reader := openDB(t, Options{Dir: o.Dir, ReadOnly: true})
	if err := Unowned(Options{Dir: o.Dir, ReadOnly: true}); err != nil {
		t.Errorf("a reader: %v", err)
	}
	if err := Unowned(o); !errors.Is(err, base.ErrLocked) {
		t.Errorf("a reader, for writing: %v", err)
	}
	closeDB(t, reader)
	if err := Destroy(o); err != nil {
		t.Error(err)
	}
	if err := Unowned(o); err != nil {
		t.Errorf("an empty directory: %v", err)
	}
}

// TestReaderWithoutLock: a living reader whose lock file was removed or replaced spares the
// directory from being destroyed, though not from being opened.
func TestReaderWithoutLock(t *testing.T) {
	for _, flushed := range []bool{false, true} {
		for _, replaced := range []bool{false, true} {
			o := Options{Dir: filepath.Join(t.TempDir(), "m")}
			d := newDB(t, o)
			put(t, d, 1, 1, "a")
			closeDB(t, d)
			if flushed {
				closeDB(t, openDB(t, o))
			}
			reader := openDB(t, Options{Dir: o.Dir, ReadOnly: true})
			scan(t, reader)
			lock := filepath.Join(o.Dir, lockName)
			err := os.Remove(lock)
			if replaced {
				err = errors.Join(err, os.WriteFile(lock, nil, 0o600))
			}
			if err != nil {
				t.Fatal(err)
			}
			for what, err := range map[string]error{"unowned": Unowned(o), "destroy": Destroy(o)} {
				if !errors.Is(err, base.ErrLocked) {
					t.Errorf("%s, flushed %v, replaced %v: %v", what, flushed, replaced, err)
				}
			}
			closeDB(t, openDB(t, o))
			_ = reader.Close(t.Context()) // it may find its files gone
			if err := Destroy(o); err != nil {
				t.Errorf("closed: %v", err)
			}
		}
	}
}
