package ctl

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
)

// names are those in a directory.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// TestWriteFile: a file that is being written has no name, so that a kill leaves
// nothing; it never replaces another one unasked, and keeps its permissions if it
// does.
func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "out")
	write := func(text string, force bool) error {
		return writeFile(name, force, func(w io.Writer) error {
			if got := names(t, dir); len(got) > 1 || len(got) == 1 && got[0] != "out" {
				t.Errorf("while it is written: %q", got)
			}
			_, err := io.WriteString(w, text)
			return err
		})
	}
	if err := write("one", false); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := write("two", false); !errors.Is(err, base.ErrExists) {
		t.Errorf("over another: %v", err)
	}
	if err := write("three", true); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if err := writeFile(name, true, func(io.Writer) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("after a failure: %v", err)
	}
	data, err := os.ReadFile(name)
	st, serr := os.Stat(name)
	if err != nil || serr != nil || string(data) != "three" || st.Mode().Perm() != 0o640 {
		t.Errorf("%q, %v, %v %v", data, st.Mode(), err, serr)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("left: %q", got)
	}
	if err := writeFile(filepath.Join(dir, "none", "out"), false, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

// TestNamedOutFile: what stands in where files need a name.
func TestNamedOutFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "out")
	if err := os.WriteFile(tempName(name, 0), []byte("of another process"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := namedOutFile(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("text"); err != nil {
		t.Fatal(err)
	}
	if err := f.place(true); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(name); err != nil || string(data) != "text" {
		t.Errorf("%q, %v", data, err)
	}
	if got := names(t, dir); len(got) != 2 {
		t.Errorf("left: %q", got)
	}
}

// TestForceOnLink: --force replaces a symbolic link itself, as the help of get says.
func TestForceOnLink(t *testing.T) {
	dir := t.TempDir()
	to, link := filepath.Join(dir, "to"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(to, []byte("old"), 0o600), os.Symlink(to, link)); err != nil {
		t.Fatal(err)
	}
	err := new(Env).output(t.Context(), "get", link, true, func(w io.Writer) error { _, err := io.WriteString(w, "new"); return err })
	st, serr := os.Lstat(link)
	if err != nil || serr != nil || !st.Mode().IsRegular() {
		t.Errorf("%v, %v, %v", err, serr, st.Mode())
	}
	old, _ := os.ReadFile(to)
	if now, _ := os.ReadFile(link); string(now) != "new" || string(old) != "old" {
		t.Errorf("%q, behind it %q", now, old)
	}
}
