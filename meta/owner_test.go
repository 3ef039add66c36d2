package meta

import (
	"errors"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/ugds-store/ugds/internal/testenv"
)

const nobody = 65534

// TestRootLeavesTheOwnerIn: root opens a store of somebody else, commits and closes
// it, and loses its lock file and its ballast in between; then all of it is still that
// one's, and IDENTITY has the permissions that it had.
func TestRootLeavesTheOwnerIn(t *testing.T) {
	testenv.NeedRoot(t)
	o := Options{Dir: filepath.Join(t.TempDir(), "m"), MemTableBytes: 24 << 10}
	if err := os.Mkdir(o.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(o.Dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	whose := func() {
		t.Helper()
		err := filepath.WalkDir(o.Dir, func(path string, e iofs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			st, err := e.Info()
			if sys := st.Sys().(*syscall.Stat_t); err == nil && (sys.Uid != nobody || sys.Gid != nobody) {
				t.Errorf("%s is of %d:%d", path, sys.Uid, sys.Gid)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	closeDB(t, newDB(t, o))
	whose()
	if err := os.Chmod(filepath.Join(o.Dir, identityName), 0o640); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{lockName, ballastName} {
		if err := os.Remove(filepath.Join(o.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	d := openDB(t, o)
	for gen := uint64(1); gen <= 200; gen++ { // some tables
		put(t, d, 1, gen, strings.Repeat("k", 200))
	}
	if err := d.WriteIdentity(testID); err != nil {
		t.Fatal(err)
	}
	closeDB(t, d)
	whose()
	if st, err := os.Stat(filepath.Join(o.Dir, identityName)); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("IDENTITY: %v, %v", st.Mode(), err)
	}
}

// TestDenied: who may not open a file is told whose it is, and how it comes back when
// the directory is his.
func TestDenied(t *testing.T) {
	o := Options{Dir: filepath.Join(t.TempDir(), "m")}
	closeDB(t, newDB(t, o))
	o.FS = noOpen{vfs.Default, identityName}
	if _, err := Open(o); err == nil || !strings.Contains(err.Error(), "IDENTITY is of user ") || strings.Contains(err.Error(), "chown") {
		t.Errorf("an own file: %v", err)
	}
	testenv.NeedRoot(t) // files of two users
	name := filepath.Join(o.Dir, identityName)
	if err := errors.Join(os.Chown(name, nobody, nobody), os.Chmod(name, 0o600)); err != nil {
		t.Fatal(err)
	}
	want := "IDENTITY is of user 65534, mode 0600, this process of user 0; as root: chown -R --reference=" + o.Dir
	if _, err := Open(o); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a file of somebody else: %v", err)
	}
	o.FS = noOpen{vfs.Default, "MANIFEST-"}
	if _, err := Open(o); err == nil || !strings.Contains(err.Error(), " is of user 0, ") {
		t.Errorf("a file of Pebble: %v", err)
	}
}

// noOpen refuses to open files whose names begin so.
type noOpen struct {
	vfs.FS
	name string
}

func (n noOpen) Open(path string, opts ...vfs.OpenOption) (vfs.File, error) {
	if strings.HasPrefix(filepath.Base(path), n.name) {
		return nil, &iofs.PathError{Op: "open", Path: path, Err: syscall.EACCES}
	}
	return n.FS.Open(path, opts...)
}

// TestInheritDirNotAFile: what somebody put in the place of a directory that was just
// made is neither opened nor given away.
func TestInheritDirNotAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { inheritDir(path); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for the other side of a pipe")
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := errors.Join(os.Remove(path), os.Chown(filepath.Dir(path), nobody, nobody), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	inheritDir(path)
	if st, err := os.Stat(path); err != nil || st.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("%v, or a file was given away", err)
	}
}
