package meta

import (
	"os"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// fenceFile is an open file of Pebble; its changes pass the fence.
type fenceFile struct {
	vfs.File
	fs   *fenceFS
	path string
	dir  bool
	fd   uintptr // as long as it is open
	once sync.Once

	mu     sync.RWMutex // held for reading by reads, so that none meets a closed file
	closed bool
}

// Close implements vfs.File. It may be called more than once: an abandoned DB
// still closes what was closed for it.
func (f *fenceFile) Close() (err error) {
	f.once.Do(func() {
		f.fs.mu.Lock()
		delete(f.fs.files, f)
		f.fs.mu.Unlock()
		f.mu.Lock()
		defer f.mu.Unlock()
		f.closed = true
		err = f.File.Close()
	})
	return err
}

// Fd implements vfs.File. Pebble asks for it on goroutines that may outlive an
// abandoned DB, when the number may belong to another file.
func (f *fenceFile) Fd() uintptr {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.closed {
		return vfs.InvalidFd
	}
	return f.fd
}

// Prefetch implements vfs.File.
func (f *fenceFile) Prefetch(off, n int64) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.closed {
		return os.ErrClosed
	}
	return f.File.Prefetch(off, n)
}

// Read implements vfs.File.
func (f *fenceFile) Read(p []byte) (int, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.closed {
		return 0, os.ErrClosed
	}
	return f.File.Read(p)
}

// ReadAt implements vfs.File.
func (f *fenceFile) ReadAt(p []byte, off int64) (int, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.closed {
		return 0, os.ErrClosed
	}
	return f.File.ReadAt(p, off)
}

// Write implements vfs.File.
func (f *fenceFile) Write(p []byte) (n int, err error) {
	err = f.fs.change("write", f.path, func() (err error) { n, err = f.File.Write(p); return err })
	f.fs.stats.written(f.path, n)
	return n, err
}

// WriteAt implements vfs.File.
func (f *fenceFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.fs.change("write", f.path, func() (err error) { n, err = f.File.WriteAt(p, off); return err })
	f.fs.stats.written(f.path, n)
	return n, err
}

// Stat implements vfs.File. Pebble panics beyond recovery when it cannot tell
// the size of a log that it reuses.
func (f *fenceFile) Stat() (vfs.FileInfo, error) {
	st, err := f.stat()
	if err != nil && !f.dir {
		err = f.fs.failed("stat", f.path, err)
	}
	return st, err
}

func (f *fenceFile) stat() (vfs.FileInfo, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.closed {
		return nil, os.ErrClosed
	}
	return f.File.Stat()
}

// Preallocate implements vfs.File.
func (f *fenceFile) Preallocate(off, n int64) error {
	return f.fs.change("preallocate", f.path, func() error { return f.File.Preallocate(off, n) })
}

// Sync implements vfs.File.
func (f *fenceFile) Sync() error { return f.sync(f.File.Sync) }

// SyncData implements vfs.File.
func (f *fenceFile) SyncData() error { return f.sync(f.File.SyncData) }

func (f *fenceFile) sync(do func() error) error {
	if f.dir {
		return f.fs.change("sync directory", f.path, do)
	}
	err := f.fs.change("sync", f.path, do)
	if err == nil && strings.HasSuffix(f.path, ".log") {
		f.fs.stats.walSyncs.Add(1)
	}
	return err
}

// SyncTo implements vfs.File.
func (f *fenceFile) SyncTo(n int64) (full bool, err error) {
	err = f.fs.change("sync", f.path, func() (err error) { full, err = f.File.SyncTo(n); return err })
	return full, err
}
