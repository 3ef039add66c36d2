package unix_test

import (
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/ugds-store/ugds/internal/unix"
)

// TestWriters: processes that have a file open for writing are found, this one as well,
// and those that only read it are not.
func TestWriters(t *testing.T) {
	path := t.TempDir() + "/f"
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := unix.StatPath(path)
	if err != nil {
		t.Fatal(err)
	}
	is := func(what string, want ...int) {
		t.Helper()
		got := unix.Writers([]unix.Stat{{Ino: 1}, st})
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	start := func(flags int) (pid int) {
		t.Helper()
		f, err := os.OpenFile(path, flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		c := exec.Command("sleep", "60")
		c.Stdin = f
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = c.Process.Kill()
			_ = c.Wait()
		})
		return c.Process.Pid
	}
	reader := start(os.O_RDONLY)
	is("a reader")
	if got := unix.Users([]unix.Stat{{Ino: 1}, st}, path); !slices.Equal(got, []int{reader}) {
		t.Errorf("users: %v, want %d", got, reader)
	}
	a, b := start(os.O_WRONLY), start(os.O_RDWR)
	both := []int{a, b}
	slices.Sort(both)
	is("others", both...)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := append(both, os.Getpid())
	slices.Sort(all)
	is("this one, too", all...)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for lost, want := range map[string]int{path: len(all) + 1, path + "x": 0} {
		if got := unix.Users(nil, lost); len(got) != want {
			t.Errorf("users of %s, which is gone: %v", lost, got)
		}
	}
}
