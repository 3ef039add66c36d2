package meta

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta/metatest"
)

func memFS() *metatest.FS { return metatest.NewMem() }

func readFile(t testing.TB, fs vfs.FS, path string) []byte {
	t.Helper()
	f, err := fs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func overwrite(t testing.TB, fs vfs.FS, path string, b []byte) {
	t.Helper()
	if err := writeFile(fs, path, b, ""); err != nil {
		t.Fatal(err)
	}
}

func TestIdentity(t *testing.T) {
	fs := memFS()
	o := Options{Dir: "/m", FS: fs}
	if _, err := ReadIdentity(o); !errors.Is(err, base.ErrNotFound) {
		t.Fatalf("no directory: %v", err)
	}
	if _, err := Open(o); !errors.Is(err, base.ErrNotFound) {
		t.Fatalf("no directory: %v", err)
	}
	closeDB(t, newDB(t, o))
	if id, err := ReadIdentity(o); err != nil || !reflect.DeepEqual(id, testID) {
		t.Fatal(id, err)
	}
	next := testID
	next.Epoch, next.Devices = 8, nil
	if err := WriteIdentity(o, next); err != nil {
		t.Fatal(err)
	}
	if id, err := ReadIdentity(o); err != nil || !reflect.DeepEqual(id, next) {
		t.Fatal(id, err)
	}
	ro := o
	ro.ReadOnly = true
	if err := WriteIdentity(ro, next); !errors.Is(err, base.ErrReadOnly) {
		t.Fatal(err)
	}
	next.Devices = make([][16]byte, MaxDevices+1)
	if err := WriteIdentity(o, next); !errors.Is(err, base.ErrInvalid) {
		t.Fatal(err)
	}
	next.Devices = next.Devices[:MaxDevices]
	if err := WriteIdentity(o, next); err != nil {
		t.Fatal(err)
	}
}

func TestIdentityDamaged(t *testing.T) {
	fs := memFS()
	o := Options{Dir: "/m", FS: fs}
	closeDB(t, newDB(t, o))
	good := readFile(t, fs, "/m/IDENTITY")
	refused := func(what any, b []byte) {
		t.Helper()
		overwrite(t, fs, "/m/IDENTITY", b)
		if _, err := ReadIdentity(o); !errors.Is(err, base.ErrCorrupt) {
			t.Errorf("%v: %v", what, err)
		}
		if _, err := Open(o); !errors.Is(err, base.ErrCorrupt) {
			t.Errorf("%v: %v", what, err)
		}
	}
	for i := range good {
		for _, x := range []byte{1, 0x80, 0xff} {
			b := append([]byte(nil), good...)
			b[i] ^= x
			refused(i, b)
		}
		refused("cut", good[:i])
	}
	refused("longer", append(good[:len(good):len(good)], 0))
	overwrite(t, fs, "/m/IDENTITY", good)
	closeDB(t, openDB(t, o))
}

// TestIdentityAtomic fails every change of a replacement and cuts power at each.
func TestIdentityAtomic(t *testing.T) {
	fs := metatest.NewCrashFS()
	o := Options{Dir: "/m", FS: fs}
	closeDB(t, newDB(t, o))
	next := testID
	next.Epoch = 99
	oneOf := func(fs vfs.FS) {
		t.Helper()
		id, err := ReadIdentity(Options{Dir: "/m", FS: fs})
		if err != nil || !reflect.DeepEqual(id, testID) && !reflect.DeepEqual(id, next) {
			t.Fatal(id, err)
		}
	}
	rng := newRand(t)
	fs.Before(func(metatest.Op) {
		for _, percent := range []int{0, 50, 100} {
			oneOf(fs.Clone(rng, percent))
		}
	})
	failures := 0
	for k := int64(1); ; k++ {
		fs.FailAt(k, nil, false)
		err := WriteIdentity(o, next)
		oneOf(fs)
		fs.Clear()
		if err == nil {
			break
		}
		failures++
		if err := WriteIdentity(o, testID); err != nil {
			t.Fatal(err)
		}
	}
	if failures < 5 {
		t.Errorf("only %d steps failed", failures)
	}
	if id, err := ReadIdentity(Options{Dir: "/m", FS: fs.Clone(rng, 0)}); err != nil || !reflect.DeepEqual(id, next) {
		t.Errorf("after success and a power cut: %+v %v", id, err)
	}
}

// TestLostLock: the lock file holds nothing; a writer makes a lost one again, a
// reader says who does.
func TestLostLock(t *testing.T) {
	fs := metatest.NewCrashFS()
	o := Options{Dir: "/m", FS: fs}
	closeDB(t, newDB(t, o))
	if err := fs.Remove("/m/LOCK"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Dir: "/m", FS: fs, ReadOnly: true}); !errors.Is(err, base.ErrCorrupt) || !strings.Contains(err.Error(), "for writing") {
		t.Errorf("a reader: %v", err)
	}
	closeDB(t, openDB(t, o))
	if _, err := fs.Stat("/m/LOCK"); err != nil {
		t.Error(err)
	}
	closeDB(t, openDB(t, Options{Dir: "/m", FS: fs, ReadOnly: true}))
}

// TestFIFOs: none of the files that an open reads is waited for when it is a FIFO, and
// Destroy removes it like the others.
func TestFIFOs(t *testing.T) {
	for _, name := range []string{"LOCK", "IDENTITY", "db/MANIFEST-*", "db/OPTIONS-*", "db/*.log"} {
		for _, readOnly := range []bool{false, true} {
			o := Options{Dir: filepath.Join(t.TempDir(), "m")}
			closeDB(t, newDB(t, o))
			found, err := filepath.Glob(filepath.Join(o.Dir, name))
			if err != nil || len(found) == 0 {
				t.Fatal(name, err)
			}
			for _, path := range found {
				if err := errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			o.ReadOnly = readOnly
			done := make(chan error, 1)
			go func() { _, err := Open(o); done <- err }()
			select {
			case err = <-done:
			case <-time.After(20 * time.Second):
				t.Fatalf("%s: the open waits", name)
			}
			if !errors.Is(err, base.ErrCorrupt) || !strings.Contains(err.Error(), "not a regular file") {
				t.Errorf("%s, read-only %v: %v", name, readOnly, err)
			}
			if err := Destroy(Options{Dir: o.Dir}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if left, err := os.ReadDir(o.Dir); len(left) > 0 || err != nil {
				t.Errorf("%s: %v, %v", name, left, err)
			}
		}
	}
}

// TestUnfinished: only what no store ever used is taken for an interrupted Create.
func TestUnfinished(t *testing.T) {
	for names, want := range map[string]bool{
		"": false, "CREATING": true, "CREATING LOCK db IDENTITY.tmp": true, "CREATING IDENTITY": false, "LOCK": false,
	} {
		if got := unfinished(strings.Fields(names)); got != want {
			t.Errorf("%q: %v", names, got)
		}
		for _, name := range strings.Fields(names) {
			if !Owns(name) {
				t.Errorf("%s is not known", name)
			}
		}
	}
	if Owns("notes") {
		t.Error("notes")
	}
}
