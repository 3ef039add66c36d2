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
	disks, err := filepath.Glob("/sys/class/block/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, disk := range disks {
		path := "/dev/" + filepath.Base(disk)
		if _, err := filepath.EvalSymlinks(path); err != nil {
			continue // a container has not all of them
		}
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
	disks, err := filepath.Glob("/sys/class/block/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, disk := range disks {
		path := "/dev/" + filepath.Base(disk)
		if _, err := filepath.EvalSymlinks(path); err != nil {
			continue // a container has not all of them
		}
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
