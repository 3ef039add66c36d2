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

	ahead       bool  // a new log: zeros are written ahead of its records
	pos, filled int64 // where the next record goes, and where the zeros end

	mu     sync.RWMutex // held for reading by reads, so that none meets a closed file
	closed bool
}

// Close implements vfs.File. It may be called more than once: an abandoned DB
// still closes what was closed for it. Pebble panics beyond recovery when it cannot
// close a full log.
func (f *fenceFile) Close() error {
	err := f.close()
	if err != nil && strings.HasSuffix(f.path, ".log") {
		err = f.fs.failed("close", f.path, err)
	}
	return err
}

func (f *fenceFile) close() (err error) {
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

// fillStep is how far zeros are written ahead of the records of a new log.
const fillStep = 256 << 10

var fillZeros [fillStep]byte

// fillAhead makes room for n more bytes of a new log by writing zeros. A record
// that makes its file longer costs a commit of the file system's journal, which
// takes as long again as the sync of the record itself. Logs that Pebble uses
// for the second time have their length already. Zeros behind the last record
// are what such a log may have there too, and end the replay like the end of
// the file. Where it fails the log grows as it would have.
func (f *fenceFile) fillAhead(n int) {
	if f.pos+int64(n) <= f.filled {
		return
	}
	from := max(f.filled, f.pos)
	if f.fs.change("preallocate", f.path, func() error { _, err := f.File.WriteAt(fillZeros[:], from); return err }) != nil {
		f.ahead = false
		return
	}
	f.filled = from + fillStep
}

// Write implements vfs.File. Pebble calls it from one goroutine at a time.
func (f *fenceFile) Write(p []byte) (n int, err error) {
	if f.ahead {
		f.fillAhead(len(p))
		defer func() { f.pos += int64(n) }()
	}
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
