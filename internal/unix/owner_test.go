package unix_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
)

// TestOwners: root's new file in somebody's directory is that one's, and a file that
// replaces another is like it; a file that has another name elsewhere, or stands
// elsewhere, is not given away.
func TestOwners(t *testing.T) {
	testenv.NeedRoot(t)
	const nobody, group = 65534, 65533
	top := t.TempDir()
	dir := filepath.Join(top, "d")
	in := func(name string) string { return filepath.Join(dir, name) }
	must := func(errs ...error) {
		t.Helper()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	must(os.Mkdir(dir, 0o700), os.Chown(dir, nobody, group))
	made := func(path string) *unix.FD {
		t.Helper()
		f, err := unix.Open(path, unix.ReadWrite|unix.Create, 0o600)
		must(err)
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	is := func(path string, uid, gid uint32, mode os.FileMode) {
		t.Helper()
		st, err := os.Lstat(path)
		must(err)
		if sys := st.Sys().(*syscall.Stat_t); sys.Uid != uid || sys.Gid != gid || st.Mode().Perm() != mode {
			t.Errorf("%s is of %d:%d, mode %o", path, sys.Uid, sys.Gid, st.Mode().Perm())
		}
	}
	must(unix.Inherit(made(in("new")), in("new")))
	is(in("new"), nobody, group, 0o600)

	elsewhere := filepath.Join(top, "root's")
	f := made(elsewhere)
	must(os.Symlink(elsewhere, in("link")), unix.Inherit(f, in("link")))
	is(elsewhere, 0, 0, 0o600)
	must(os.Link(elsewhere, in("hard")), unix.Inherit(f, in("hard")))
	is(elsewhere, 0, 0, 0o600)

	must(os.Chmod(in("new"), 0o640))
	f = made(in("next"))
	must(unix.KeepOwner(f, in("new")))
	is(in("next"), nobody, group, 0o640)
	f = made(in("other"))
	must(unix.KeepOwner(f, in("none")), unix.KeepOwner(f, in("link")))
	is(in("other"), 0, 0, 0o600)

	for name, want := range map[string][3]int{in("new"): {nobody, group, 0o640}, in("gone"): {nobody, group, 0o600}, in("link"): {nobody, group, 0o600},
		filepath.Join(top, "none", "x"): {0, 0, 0o600}} {
		owner, err := unix.OwnerFor(name)
		must(err)
		is(in("other"), 0, 0, 0o600)
		must(owner.Give(f))
		is(in("other"), uint32(want[0]), uint32(want[1]), os.FileMode(want[2]))
		must(os.Chown(in("other"), 0, 0), os.Chmod(in("other"), 0o600))
	}
}
