package ctl

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/store"
)

// TestGetSpares: no option makes get write over a part of the store that it
// reads, under whatever name, and files beside it are fine.
func TestGetSpares(t *testing.T) {
	l := newLab(t)
	l.put(t, "k", []byte("value"))
	dir, other := l.target.Dir, t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, link := range []string{dataName, ConfigName, "meta/IDENTITY", "meta/db/nothing-yet"} {
		name := filepath.Join(other, "soft-"+filepath.Base(link))
		if err := os.Symlink(in(link), name); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{dataName, ConfigName, "meta/LOCK"} {
		if err := os.Link(in(link), filepath.Join(other, "hard-"+filepath.Base(link))); err != nil {
			testenv.Skip(t, "no hard links: "+err.Error())
		}
	}
	if err := os.Symlink(in(metaName), filepath.Join(other, "m")); err != nil {
		t.Fatal(err)
	}
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	rel, err := filepath.Rel(wd, in(dataName))
	if err != nil {
		t.Fatal(err)
	}
	bad := []string{rel, in(dataName), in(ConfigName), in("meta/IDENTITY"), in("meta/LOCK"), in("meta/new"), in("meta/db/new"),
		in("meta/../meta/new"), filepath.Join(other, "m", "new"), filepath.Join(other, "m", "db", "new")}
	links, err := filepath.Glob(filepath.Join(other, "*-*"))
	if err != nil || len(links) != 7 {
		t.Fatal(links, err)
	}
	for _, file := range append(bad, links...) {
		err := Get(t.Context(), l.Env, l.target, GetOptions{Key: "k", File: file, Force: true})
		if ExitCode(err) != ExitUsage {
			t.Errorf("%s: %v", file, err)
		}
	}
	for _, o := range []BenchOptions{{HTML: in(dataName)}, {Raw: in(dataName), Yes: true}} {
		o.Suite, o.Rounds, o.Bytes = BenchDefaultSuite, 1, 1<<20
		if err := Bench(t.Context(), l.Env, l.target, o); ExitCode(err) != ExitUsage || !strings.Contains(err.Error(), "a device of the store") {
			t.Errorf("bench %+v: %v", o, err)
		}
	}
	if r, err := check(t.Context(), l.Env, l.target, FsckOptions{}, store.Check); err != nil || !r.Clean() {
		t.Fatalf("the store: %v, %v", r, err)
	}
	for _, file := range []string{in("value"), filepath.Join(other, "value"), filepath.Join(other, ConfigName)} {
		for range 2 {
			if err := Get(t.Context(), l.Env, l.target, GetOptions{Key: "k", File: file, Force: true}); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}

// TestOutputsSpareFiles: a page of a bench replaces nothing unless it is told to, and
// neither it nor get ever replaces a file on which some store lies, whether a process
// has that open or not.
func TestOutputsSpareFiles(t *testing.T) {
	l, dir := newLab(t), t.TempDir()
	l.put(t, "k", []byte("value"))
	in := func(name string) string { return filepath.Join(l.target.Dir, name) }
	mine, link, broken := filepath.Join(dir, "mine"), filepath.Join(dir, "link"), filepath.Join(dir, "broken")
	if err := errors.Join(os.WriteFile(mine, []byte("mine"), 0o600), os.Symlink(mine, link), os.Symlink("nothing", broken)); err != nil {
		t.Fatal(err)
	}
	page := func(file string, force bool) error {
		o := smallBench(t)
		o.HTML, o.Force = file, force
		return Bench(t.Context(), l.Env, &Target{}, o)
	}
	refused := func(what string, want int, err error) {
		t.Helper()
		if ExitCode(err) != want {
			t.Errorf("%s: %v, want status %d", what, err, want)
		}
	}
	for _, file := range []string{mine, link, broken, in(dataName)} {
		refused(file, ExitExists, page(file, false))
	}
	refused("--force without --html", ExitUsage, page("", true))
	other := newLab(t)
	other.put(t, "k", []byte("value"))
	theirs := filepath.Join(other.target.Dir, dataName)
	get := func() error {
		return Get(t.Context(), l.Env, l.target, GetOptions{Key: "k", File: theirs, Force: true})
	}
	refused("another store, --force", ExitExists, page(theirs, true))
	refused("another store, get --force", ExitExists, get())
	s, err := other.open(t.Context(), "put", other.target, false)
	if err != nil {
		t.Fatal(err)
	}
	refused("an open store, --force", ExitCode(base.ErrLocked), page(theirs, true))
	refused("an open store, get --force", ExitCode(base.ErrLocked), get())
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(mine); string(b) != "mine" {
		t.Errorf("%q, %v", b, err)
	}
	if r, err := check(t.Context(), other.Env, other.target, FsckOptions{}, store.Check); err != nil || !r.Clean() {
		t.Errorf("the other store: %v, %v", r, err)
	}
	if err := page(mine, true); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(mine); !strings.Contains(string(b), "<svg") {
		t.Errorf("%q, %v", b, err)
	}
}
