package meta

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/ugds-store/ugds/internal/base"
)

// errFenced is what a change is answered where parking would be wrong.
var errFenced = errors.New("metadata is fenced")

// fenceFS is the only way of Pebble to the disk. It refuses changes when the
// fence is down or the DB is read-only, parks goroutines whose failure Pebble
// would turn into the end of the process, holds removals back until Open has
// succeeded, checks logs before Pebble reads them, knows every open file, and
// times each change.
type fenceFS struct {
	vfs.FS
	o     Options
	fence *fence
	lock  *dirLock
	stats stats

	opening atomic.Bool  // Open runs: failures are returned, not parked
	closing atomic.Bool  // Close runs
	chain   logChain     // used by the goroutine that runs Pebble's Open only
	backoff atomic.Int64 // how long the next failed table write is held, in ns

	mu       sync.Mutex
	files    map[*fenceFile]struct{}
	deferred map[string]struct{} // removals that wait for the end of Open
	inflight int                 // changes that are inside the file system
	drained  chan struct{}       // closed when inflight falls to 0, if somebody waits
}

func newFenceFS(o Options, f *fence, lock *dirLock) *fenceFS {
	fs := &fenceFS{FS: o.FS, o: o, fence: f, lock: lock, files: map[*fenceFile]struct{}{}, deferred: map[string]struct{}{}}
	fs.opening.Store(true)
	return fs
}

// Unwrap gives the file system below.
func (fs *fenceFS) Unwrap() vfs.FS { return fs.FS }

// change runs one change of the disk: op on path.
func (fs *fenceFS) change(op, path string, do func() error) error {
	if err := fs.begin(op, path); err != nil {
		return err
	}
	start := time.Now()
	slow := time.AfterFunc(fs.o.SlowAfter, func() {
		fs.o.OnEvent(Event{Kind: DiskSlow, Text: op, Path: path, Duration: time.Since(start)})
	})
	err := func() error {
		defer fs.end() // also when it panics: Pebble may recover, and Close would wait
		defer slow.Stop()
		return do()
	}()
	if err != nil {
		return fs.failed(op, path, err)
	}
	return nil
}

// begin admits a change or refuses it.
func (fs *fenceFS) begin(op, path string) error {
	if fs.o.ReadOnly {
		return base.Errorf(op, path, base.ErrReadOnly, "opened read-only")
	}
	if byName(op) {
		if err := fs.lock.lost(); err != nil {
			fs.fence.trip(err)
		}
	}
	fs.mu.Lock()
	if cause := fs.fence.err(); cause != nil {
		fs.mu.Unlock()
		return fs.refuse(op, path)
	}
	fs.inflight++
	fs.mu.Unlock()
	return nil
}

// byName tells the changes that look for their file by its name, so that they could meet
// that of another owner, from those to an open file.
func byName(op string) bool {
	return op != "write" && op != "sync" && op != "preallocate"
}

func (fs *fenceFS) end() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.inflight--; fs.inflight == 0 && fs.drained != nil {
		close(fs.drained)
		fs.drained = nil
	}
}

// refuse answers a change behind the fence. Pebble repeats failed background
// work at once and for ever, so its goroutines are parked; the one that runs
// Open gets an error and cleans up.
func (fs *fenceFS) refuse(op, path string) error {
	if insideOpen() || fs.own(path) {
		return base.Errorf(op, path, base.ErrReadOnly, "%w", errFenced)
	}
	park()
	return nil
}

// own tells files of this package from those of Pebble.
func (fs *fenceFS) own(path string) bool { return !strings.HasPrefix(path, fs.o.path(databaseName)) }

// failed handles a change that the file system did not make.
func (fs *fenceFS) failed(op, path string, err error) error {
	if isNoSpace(err) {
		err = fullError(op, path, freeBytes(fs.FS, fs.o.Dir), err)
		fs.o.OnEvent(Event{Kind: DiskFull, Text: op, Path: path, Err: err})
	}
	switch fs.fatality(op, path) {
	case fatalHere:
		// Pebble would take its mutex and call Fatalf, or panic on a goroutine of
		// its own: stop before that, while nothing is held that readers need.
		fs.fence.trip(err)
		if !insideOpen() {
			park()
		}
	case fatalOpen:
		// The same, but Open and Close of Pebble return these.
		if !fs.opening.Load() && !fs.closing.Load() {
			fs.fence.trip(err)
			park()
		}
	case retried:
		fs.slowDown()
	}
	return err
}

type severity int

const (
	harmless  severity = iota
	retried            // Pebble tries again at once
	fatalOpen          // Pebble would end the process, except while it opens or closes
	fatalHere          // Pebble would end the process
)

// fatality tells what Pebble makes of a failed op on path.
func (fs *fenceFS) fatality(op, path string) severity {
	name := filepath.Base(path)
	switch {
	case fs.own(path), op == "preallocate", op == "remove":
		return harmless
	case op == "sync directory":
		return fatalHere
	case strings.HasPrefix(name, "MANIFEST-"), strings.HasPrefix(name, "marker."):
		return fatalHere
	case strings.HasSuffix(name, ".log"):
		return fatalOpen
	}
	return retried
}

// slowDown holds the goroutine of a failed table write a little longer each
// time, because Pebble has no backoff of its own.
func (fs *fenceFS) slowDown() {
	wait := min(max(2*time.Duration(fs.backoff.Load()), time.Millisecond), maxRetryBackoff)
	fs.backoff.Store(int64(wait))
	select {
	case <-time.After(wait):
	case <-fs.fence.ch:
	}
}

// opened ends the phase in which failures are answered rather than parked, and
// makes the removals that were held back. A failed removal leaves a file that
// the next open removes.
func (fs *fenceFS) opened() {
	fs.mu.Lock()
	list := fs.deferred
	fs.deferred = nil
	fs.mu.Unlock()
	fs.opening.Store(false)
	for path := range list {
		_ = fs.change("remove", path, func() error { return fs.FS.Remove(path) })
	}
}

// waitDrained waits until no change is inside the file system, or until stop.
func (fs *fenceFS) waitDrained(stop <-chan time.Time) bool {
	fs.mu.Lock()
	if fs.inflight == 0 {
		fs.mu.Unlock()
		return true
	}
	if fs.drained == nil {
		fs.drained = make(chan struct{})
	}
	ch := fs.drained
	fs.mu.Unlock()
	select {
	case <-ch:
		return true
	case <-stop:
		return false
	}
}

// closeFiles closes whatever Pebble left open.
func (fs *fenceFS) closeFiles() {
	fs.mu.Lock()
	files := make([]*fenceFile, 0, len(fs.files))
	for f := range fs.files {
		files = append(files, f)
	}
	fs.mu.Unlock()
	for _, f := range files {
		_ = f.close()
	}
}

// Create implements vfs.FS. Pebble makes a marker that names a new MANIFEST
// before the directory entry of that MANIFEST is durable; where a power cut may
// keep one entry and lose the other the database would not open. So the
// directory is synced before a marker.
func (fs *fenceFS) Create(name string, cat vfs.DiskWriteCategory) (f vfs.File, err error) {
	fs.keep(name)
	if strings.HasPrefix(filepath.Base(name), "marker.") {
		dir := fs.PathDir(name)
		if err := fs.change("sync directory", dir, func() error { return syncDir(fs.FS, dir) }); err != nil {
			return nil, err
		}
	}
	err = fs.change("create", name, func() (err error) {
		if f, err = fs.FS.Create(name, cat); err == nil {
			inherit(f, name)
		}
		return err
	})
	w, err := fs.wrap(f, name, false, err)
	if err == nil {
		w.(*fenceFile).ahead = strings.HasSuffix(name, ".log")
	}
	return w, err
}

// ReuseForWrite implements vfs.FS.
func (fs *fenceFS) ReuseForWrite(old, name string, cat vfs.DiskWriteCategory) (f vfs.File, err error) {
	fs.keep(name)
	err = fs.change("reuse", name, func() (err error) { f, err = fs.FS.ReuseForWrite(old, name, cat); return err })
	return fs.wrap(f, name, false, err)
}

// OpenReadWrite implements vfs.FS.
func (fs *fenceFS) OpenReadWrite(name string, cat vfs.DiskWriteCategory, opts ...vfs.OpenOption) (f vfs.File, err error) {
	fs.keep(name)
	err = fs.change("open for writing", name, func() (err error) { f, err = fs.FS.OpenReadWrite(name, cat, opts...); return err })
	return fs.wrap(f, name, false, err)
}

// Open implements vfs.FS. While the DB is being opened, logs and manifests are
// checked first: Pebble would cut them off at the first damage (logcheck.go).
func (fs *fenceFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if fs.opening.Load() {
		if err := fs.chain.check(fs.FS, name); err != nil {
			return nil, err
		}
	}
	f, err := openRegular(fs.FS, name, opts...)
	if errors.Is(err, errNotRegular) {
		err = base.Errorf("open", name, base.ErrCorrupt, "%w", err)
	}
	return fs.wrap(f, name, false, err)
}

// OpenDir implements vfs.FS.
func (fs *fenceFS) OpenDir(name string) (vfs.File, error) {
	f, err := fs.FS.OpenDir(name)
	return fs.wrap(f, name, true, err)
}

// Link implements vfs.FS.
func (fs *fenceFS) Link(old, name string) error {
	fs.keep(name)
	return fs.change("link", name, func() error { return fs.FS.Link(old, name) })
}

// Rename implements vfs.FS.
func (fs *fenceFS) Rename(old, name string) error {
	fs.keep(name)
	return fs.change("rename", name, func() error { return fs.FS.Rename(old, name) })
}

// Remove implements vfs.FS. While Open runs it only notes the file: an open that
// refuses must not have changed anything.
func (fs *fenceFS) Remove(name string) error {
	fs.mu.Lock()
	if fs.deferred != nil && !fs.o.ReadOnly {
		fs.deferred[name] = struct{}{}
		fs.mu.Unlock()
		return nil
	}
	fs.mu.Unlock()
	return fs.change("remove", name, func() error { return fs.FS.Remove(name) })
}

// RemoveAll implements vfs.FS.
func (fs *fenceFS) RemoveAll(name string) error {
	return fs.change("remove", name, func() error { return fs.FS.RemoveAll(name) })
}

// MkdirAll implements vfs.FS.
func (fs *fenceFS) MkdirAll(dir string, perm os.FileMode) error {
	if st, err := fs.FS.Stat(dir); err == nil && st.IsDir() {
		return nil
	}
	return fs.change("make directory", dir, func() error {
		if err := fs.FS.MkdirAll(dir, perm&0o700); err != nil {
			return err
		}
		if st, err := fs.FS.Stat(dir); err == nil && st.Sys() != nil {
			inheritDir(dir)
		}
		return nil
	})
}

// Lock implements vfs.FS. The directory above is locked already (lock.go).
func (fs *fenceFS) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// keep takes a file that is made anew off the list of removals.
func (fs *fenceFS) keep(name string) {
	fs.mu.Lock()
	delete(fs.deferred, name)
	fs.mu.Unlock()
}

func (fs *fenceFS) wrap(f vfs.File, path string, dir bool, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	w := &fenceFile{File: f, fs: fs, path: path, dir: dir, fd: f.Fd()}
	fs.mu.Lock()
	fs.files[w] = struct{}{}
	fs.mu.Unlock()
	return w, nil
}
