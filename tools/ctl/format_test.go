package ctl

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/store"
)

// TestFormatNames: what store.toml could not give back is refused before
// anything is made.
func TestFormatNames(t *testing.T) {
	l := newLab(t)
	dir := filepath.Join(t.TempDir(), "new")
	odd := filepath.Join(dir, "a\x01\xffb")
	for _, target := range []Target{{Dir: dir, Devices: []string{odd}}, {Dir: dir, Meta: odd}} {
		err := Format(t.Context(), l.Env, &target, FormatOptions{Size: 64 * base.MiB, Yes: true})
		if ExitCode(err) != ExitUsage {
			t.Errorf("%+v: %v", target, err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
	good := Target{Dir: dir, Devices: []string{filepath.Join(dir, "a\x01'\"\\\né")}}
	if err := Format(t.Context(), l.Env, &good, FormatOptions{Size: 64 * base.MiB, Yes: true}); err != nil {
		t.Fatal(err)
	}
	if err := Ls(t.Context(), l.Env, &Target{Dir: dir}, LsOptions{}); err != nil {
		t.Error(err)
	}
}

// TestFormatKeepsOwner: root's format leaves the owner, the group and the permissions of
// store.toml, and gives a new one to the owner of the directory.
func TestFormatKeepsOwner(t *testing.T) {
	testenv.NeedRoot(t)
	const nobody, group = 65534, 65533
	l := newLab(t)
	name := filepath.Join(l.target.Dir, ConfigName)
	must := func(errs ...error) {
		t.Helper()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	is := func(uid, gid uint32, mode os.FileMode) {
		t.Helper()
		must(Format(t.Context(), l.Env, l.target, FormatOptions{Yes: true}))
		st, err := os.Lstat(name)
		must(err)
		if sys := st.Sys().(*syscall.Stat_t); sys.Uid != uid || sys.Gid != gid || mode != 0 && st.Mode().Perm() != mode {
			t.Errorf("it is of %d:%d, mode %o", sys.Uid, sys.Gid, st.Mode().Perm())
		}
	}
	must(os.Chown(name, nobody, group), os.Chmod(name, 0o640))
	is(nobody, group, 0o640)
	must(os.Remove(name), os.Chown(l.target.Dir, group, nobody))
	is(group, nobody, 0)
}

// TestFormatBadPlaces: places where nothing can be made are refused before a device is
// overwritten, with and without --yes, and stay as they are.
func TestFormatBadPlaces(t *testing.T) {
	l := newLab(t)
	top := t.TempDir()
	link, dir := filepath.Join(top, "link"), filepath.Join(top, "new")
	if err := os.Symlink("nowhere", link); err != nil {
		t.Fatal(err)
	}
	old := Target{Dir: filepath.Join(top, "old")}
	if err := Format(t.Context(), l.Env, &old, FormatOptions{Size: 64 * base.MiB, Yes: true}); err != nil {
		t.Fatal(err)
	}
	taken := filepath.Join(old.Dir, dataName)
	for _, c := range []struct {
		target Target
		want   error
	}{
		{Target{Dir: link, Devices: []string{taken}}, base.ErrExists},
		{Target{Dir: dir, Devices: []string{taken}, Meta: link}, base.ErrExists},
		{Target{Dir: dir, Devices: []string{taken}, Meta: filepath.Join(link, "meta")}, base.ErrExists},
		{Target{Dir: dir, Devices: []string{taken, link}}, base.ErrExists},
		{Target{Dir: dir, Devices: []string{taken}, Meta: filepath.Join(dir, ConfigName)}, base.ErrInvalid},
		{Target{Dir: dir, Devices: []string{taken}, Meta: filepath.Join(dir, ConfigName, "meta")}, base.ErrInvalid},
	} {
		for _, yes := range []bool{false, true} {
			if err := Format(t.Context(), l.Env, &c.target, FormatOptions{Size: 64 * base.MiB, Yes: yes}); !errors.Is(err, c.want) {
				t.Errorf("%+v, %v: %v, want %v", c.target, yes, err, c.want)
			}
		}
	}
	if to, err := os.Readlink(link); err != nil || to != "nowhere" {
		t.Errorf("the link: %q %v", to, err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
	if err := Ls(t.Context(), l.Env, &old, LsOptions{}); err != nil {
		t.Errorf("the old store: %v", err)
	}
}

// TestHintsFit: the sizes that hints name are taken as they are printed.
func TestHintsFit(t *testing.T) {
	for _, n := range []int64{64 * base.MiB, base.GiB, 1500 * base.MiB, 3 * base.GiB} {
		if back, err := base.ParseBytes(FlagBytes(n)); err != nil || back != n {
			t.Errorf("%d: %s, %v", n, FlagBytes(n), err)
		}
	}
	dir := t.TempDir()
	if n := demoFits(dir); n > 0 {
		if err := checkSpace("format", dir, demoStoreBytes(n), metaReserve); err != nil {
			t.Errorf("--size %s: %v", FlagBytes(n), err)
		}
	}
}

// TestSpaceSays: what is needed beside the devices is named.
func TestSpaceSays(t *testing.T) {
	err := checkSpace("format", t.TempDir(), 1<<60, metaReserve)
	if err == nil || !strings.Contains(err.Error(), "needed (64.0 MiB of it for the metadata, which grows), ") {
		t.Error(err)
	}
	if err := checkSpace("bench", t.TempDir(), 1<<60, 0); err == nil || strings.Contains(err.Error(), "metadata") {
		t.Error(err)
	}
}

// TestRemoveMade: only empty directories that were not there go.
func TestRemoveMade(t *testing.T) {
	top := t.TempDir()
	deep := filepath.Join(top, "a", "b", "c")
	there := existing(deep)
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(top, "a", "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	removeMade(deep, there)
	if _, err := os.Stat(filepath.Join(top, "a", "b")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(top, "a", "mine")); err != nil {
		t.Error(err)
	}
}

// TestPlain: nothing in a message moves the cursor.
func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"plain é\nnext": "plain é\nnext", "\x1b[31mred": `\x1b[31mred`, "a\xffb\r\t": `a\xffb\r\t`, "\u202e": `\u202e`, `"q"`: `"q"`, "\ufffd": "\ufffd",
	} {
		if got := Plain(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestFormatSparesLivingMetadata: format takes no metadata whose owner lives, though its
// LOCK was removed or replaced, touches nothing before it says so, and that owner's puts
// do not pass for done.
func TestFormatSparesLivingMetadata(t *testing.T) {
	l := newLab(t)
	in := func(name string) string { return filepath.Join(l.target.Dir, name) }
	s, err := l.open(t.Context(), "put", l.target, false)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := s.Namespace(t.Context(), DefaultNamespace, store.NamespaceOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	put := func() error { return putValue(t, ns, "k") }
	if err := put(); err != nil {
		t.Fatal(err)
	}
	before := names(t, in(metaName))
	theirs := &Target{Dir: l.target.Dir, Devices: []string{filepath.Join(t.TempDir(), "d")}}
	for what, take := range map[string]func() error{
		"held": func() error { return nil }, "removed": func() error { return os.Remove(in("meta/LOCK")) },
	} {
		if err := take(); err != nil {
			t.Fatal(err)
		}
		for _, yes := range []bool{false, true} {
			err := Format(t.Context(), l.Env, theirs, FormatOptions{Size: 64 * base.MiB, Yes: yes})
			if ExitCode(err) != ExitLocked {
				t.Errorf("%s: %v", what, err)
			}
		}
		if _, err := os.Stat(in(ConfigName)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if err := os.WriteFile(in("meta/LOCK"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if after := names(t, in(metaName)); !slices.Equal(before, after) {
		t.Errorf("%q became %q", before, after)
	}
	if err := put(); !errors.Is(err, base.ErrUnknown) || ExitCode(err) != ExitLocked {
		t.Errorf("put: %v", err)
	}
	if err := put(); !errors.Is(err, base.ErrReadOnly) || !strings.Contains(err.Error(), "it was replaced while") {
		t.Errorf("another put: %v", err)
	}
	_ = s.close() // which may say it again
}

func putValue(t *testing.T, ns *store.Namespace, key string) error {
	t.Helper()
	w, err := ns.NewWriter(t.Context(), []byte(key), store.PutOptions{Replace: true})
	if err != nil {
		return err
	}
	if _, err := w.Write([]byte("value")); err != nil {
		w.Abort()
		return err
	}
	return w.Close()
}
