package meta

import (
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/ugds-store/ugds/internal/base"
)

// logFS has logs that end badly: their Close fails, or their writes panic.
type logFS struct {
	vfs.FS
	failClose, panics atomic.Bool
}

func (f *logFS) Unwrap() vfs.FS { return f.FS }

func (f *logFS) Create(name string, cat vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, cat)
	return f.wrap(file, name), err
}

func (f *logFS) ReuseForWrite(old, name string, cat vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(old, name, cat)
	return f.wrap(file, name), err
}

func (f *logFS) wrap(file vfs.File, name string) vfs.File {
	if file == nil || !strings.HasSuffix(name, ".log") {
		return file
	}
	return &logFSFile{file, f}
}

type logFSFile struct {
	vfs.File
	fs *logFS
}

func (f *logFSFile) Write(p []byte) (int, error) {
	if f.fs.panics.Load() {
		panic("a file system with a bug")
	}
	return f.File.Write(p)
}

func (f *logFSFile) Close() error {
	if err := f.File.Close(); err != nil || !f.fs.failClose.Load() {
		return err
	}
	return syscall.EIO
}

// TestLogCloseFails: Pebble ends the process when it cannot close a full log; here
// the fence falls.
func TestLogCloseFails(t *testing.T) {
	fs := &logFS{FS: memFS()}
	o := scriptOptions(fs)
	d := newDB(t, o)
	fs.failClose.Store(true)
	acked, err := runScript(d, 1)
	if !errors.Is(err, base.ErrUnknown) {
		t.Fatalf("after commit %d: %v, want ErrUnknown", acked, err)
	}
	fs.failClose.Store(false)
	_ = d.Close(ctx())
	d = openDB(t, o)
	checkState(t, d, acked, acked+1)
	closeDB(t, d)
}

// TestFilePanics: a change that panics is over, so that Close does not wait for it.
// Pebble recovers from panics of the goroutine that writes its log.
func TestFilePanics(t *testing.T) {
	fs := &logFS{FS: memFS()}
	o := scriptOptions(fs)
	d := newDB(t, o)
	fs.panics.Store(true)
	if _, err := runScript(d, 1); !errors.Is(err, base.ErrUnknown) {
		t.Fatalf("a write that panics: %v, want ErrUnknown", err)
	}
	fs.panics.Store(false)
	if !d.fs.waitDrained(time.After(10 * time.Second)) {
		t.Error("the change that panicked counts as under way")
		d.fs.end()
	}
	_ = d.Close(ctx())
	closeDB(t, openDB(t, o))
}
