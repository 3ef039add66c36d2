package ctl

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ugds-store/ugds/internal/base"
)

// diskNodes are the block devices that have a node: in a container not all have.
func diskNodes(t *testing.T) (paths []string) {
	t.Helper()
	disks, err := filepath.Glob("/sys/class/block/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, disk := range disks {
		path := "/dev/" + filepath.Base(disk)
		if _, err := filepath.EvalSymlinks(path); err == nil {
			paths = append(paths, path)
		}
	}
	return paths
}

// TestForbidden: who may not open a block device is told what has it, or whose right it
// takes; for other files and other causes nothing is added.
func TestForbidden(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "file")
	for _, err := range []error{nil, base.Wrap("open", plain, syscall.EPERM), base.Wrap("open", "/dev/null", syscall.EACCES),
		base.Wrap("open", "/dev/null", syscall.EIO), errors.New("other")} {
		if got := forbidden(err, plain, "/dev/null"); got != err {
			t.Errorf("%v became %v", err, got)
		}
	}
	for _, path := range diskNodes(t) {
		got := forbidden(base.Wrap("open", path, syscall.EPERM), plain, path)
		inUse := errors.Is(got, base.ErrInUse) && strings.Contains(got.Error(), "unmount or release it")
		if !inUse && !strings.Contains(got.Error(), "be root or in the group") {
			t.Errorf("%s: %v", path, got)
		}
	}
}

// TestEmptyDisk: a block device of no bytes is not explained as if it had some.
func TestEmptyDisk(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(emptyDisk(plain, 0), emptyDisk("/dev/null", 0)); err != nil {
		t.Errorf("no block device: %v", err)
	}
	for _, path := range diskNodes(t) {
		if err := emptyDisk(path, 0); ExitCode(err) != ExitUsage || !strings.Contains(err.Error(), "it has only 0 bytes") {
			t.Errorf("%s of no bytes: %v", path, err)
		}
		if err := emptyDisk(path, 1); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestConfigFIFO: a FIFO in the place of store.toml, which nobody writes to, is not waited for.
func TestConfigFIFO(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, ConfigName), 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { _, err := readConfig(dir); done <- err }()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "it is a FIFO") {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it waits")
	}
}

// TestModelCutOff: a model whose file was cut off is damaged like a file that was, and told
// how what is left comes back.
func TestModelCutOff(t *testing.T) {
	for _, size := range []string{"", ",size=64MiB"} {
		l := newLab(t)
		path := filepath.Join(l.target.Dir, "model")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, 64*base.MiB); err != nil {
			t.Fatal(err)
		}
		l.target = &Target{Dir: filepath.Join(t.TempDir(), "s"), Devices: []string{"sim:path=" + path + size}}
		if err := Format(t.Context(), l.Env, l.target, FormatOptions{Yes: true}); err != nil {
			t.Fatal(err)
		}
		l.target.Devices = nil
		l.put(t, "kept", []byte("value"))
		for _, left := range []int64{40 * base.MiB, 1000} { // with two superblocks of four, and with none
			want := "`truncate -s 67108864 FILE`"
			if size == "" && left < base.StoreBlock {
				want = "it has only 1000 bytes (if it was a device of a store, it was cut off"
			}
			if err := os.Truncate(path, left); err != nil {
				t.Fatal(err)
			}
			err := Ls(t.Context(), l.Env, l.target, LsOptions{})
			if !errors.Is(err, base.ErrCorrupt) || !strings.Contains(err.Error(), want) {
				t.Errorf("%q, %d bytes: %v, want %q", size, left, err, want)
			}
			if err := Fsck(t.Context(), l.Env, l.target, FsckOptions{}); ExitCode(err) != ExitFaultsLeft {
				t.Errorf("%q, %d bytes: fsck: %v", size, left, err)
			}
			if err := os.Truncate(path, 64*base.MiB); err != nil {
				t.Fatal(err)
			}
			if left == 1000 {
				continue
			}
			if keys := l.keys(t); keys != "kept\n" {
				t.Errorf("%q: after the file has its size again: %q", size, keys)
			}
		}
	}
}
