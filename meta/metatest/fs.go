// Package metatest holds file systems for tests of what is built on package
// meta: one that can be cut at any moment, and one that fails, is full or is
// slow at the k-th change.
package metatest

import (
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Op is one change of the file system, as hooks see it.
type Op struct {
	N    int64  // number of the change, from 1
	Name string // create, write, sync, rename, …
	Path string
	Data []byte // what a write writes; only valid while the hook runs
}

// FS counts the changes made through it, calls a hook before each, and can make
// them fail. It is safe for concurrent use.
type FS struct {
	vfs.FS
	mem *vfs.MemFS // nil over a file system that cannot be cloned

	// cloneMu keeps changes out while a clone is made. MemFS has such a lock too
	// but takes it twice in one call and then deadlocks with a clone.
	cloneMu sync.RWMutex

	changes atomic.Int64
	before  atomic.Pointer[func(Op)]
	after   atomic.Pointer[func(Op, error)]

	mu     sync.Mutex
	fail   rule
	full   rule
	slow   rule
	failed int64 // changes refused by a rule
}

// rule is what happens at a change; at == 0 is none.
type rule struct {
	at    int64
	on    bool // also at all later ones
	err   error
	delay time.Duration
}

func (r rule) hits(n int64) bool { return r.at > 0 && (n == r.at || r.on && n > r.at) }

// NewCrashFS returns an empty file system in memory that remembers what was
// synced.
func NewCrashFS() *FS {
	mem := vfs.NewCrashableMem()
	return &FS{FS: mem, mem: mem}
}

// NewMem returns an empty file system in memory, faster than one that can be
// cloned.
func NewMem() *FS { return Wrap(vfs.NewMem()) }

// Wrap puts counter, hook and rules over any file system; nil is the disk.
func Wrap(inner vfs.FS) *FS {
	if inner == nil {
		inner = vfs.Default
	}
	return &FS{FS: inner}
}

// Clone is the file system after a power cut at this moment: all that was
// synced, and each block and directory entry that was not with a probability of
// percent. The clone has counters, hooks and rules of its own. It may be taken
// while a DB runs, under any lock of the caller, also from a hook.
func (f *FS) Clone(rng *rand.Rand, percent int) *FS {
	f.cloneMu.Lock()
	defer f.cloneMu.Unlock()
	mem := f.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
	return &FS{FS: mem, mem: mem}
}

// Changes is the number of changes tried so far.
func (f *FS) Changes() int64 { return f.changes.Load() }

// Refused is the number of changes that a rule has made fail.
func (f *FS) Refused() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

// Before sets the hook that is called before each change, on the goroutine that
// makes it, several at a time; nil removes it. The hook may take a Clone.
func (f *FS) Before(hook func(Op)) {
	if hook == nil {
		f.before.Store(nil)
		return
	}
	f.before.Store(&hook)
}

// After sets the hook that is called after each change, with its outcome, like
// the one before it; nil removes it.
func (f *FS) After(hook func(Op, error)) {
	if hook == nil {
		f.after.Store(nil)
		return
	}
	f.after.Store(&hook)
}

// FailAt makes the k-th change from now on, counted from 1, fail with err (nil
// is EIO), and with all also every later one.
func (f *FS) FailAt(k int64, err error, all bool) {
	if err == nil {
		err = syscall.EIO
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = rule{at: f.changes.Load() + k, on: all, err: err}
}

// FullAt makes the disk full from the k-th change on: what needs space fails
// with ENOSPC, until Clear.
func (f *FS) FullAt(k int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.full = rule{at: f.changes.Load() + k, on: true, err: syscall.ENOSPC}
}

// SlowAt makes the k-th change take d longer, and with all also every later one.
func (f *FS) SlowAt(k int64, d time.Duration, all bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slow = rule{at: f.changes.Load() + k, on: all, delay: d}
}

// Clear ends all rules; the hook stays.
func (f *FS) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail, f.full, f.slow = rule{}, rule{}, rule{}
}

// needsSpace are the changes that a full disk refuses.
var needsSpace = map[string]bool{"create": true, "write": true, "mkdir": true, "link": true,
	"preallocate": true, "open for writing": true}

// change runs one change.
func (f *FS) change(name, path string, do func() error) error {
	return f.changeData(name, path, nil, do)
}

func (f *FS) changeData(name, path string, data []byte, do func() error) error {
	op := Op{N: f.changes.Add(1), Name: name, Path: path, Data: data}
	if hook := f.before.Load(); hook != nil {
		(*hook)(op)
	}
	err := f.judge(op.N, name, path)
	if err == nil {
		err = f.locked(do)
	}
	if hook := f.after.Load(); hook != nil {
		(*hook)(op, err)
	}
	return err
}

// locked runs a change while no clone is made.
func (f *FS) locked(do func() error) error {
	f.cloneMu.RLock()
	defer f.cloneMu.RUnlock()
	return do()
}

func (f *FS) judge(n int64, name, path string) error {
	f.mu.Lock()
	fail, full, slow := f.fail, f.full, f.slow
	var err error
	switch {
	case fail.hits(n):
		err = fail.err
	case full.hits(n) && needsSpace[name]:
		err = full.err
	}
	if err != nil {
		f.failed++
	}
	f.mu.Unlock()
	if slow.hits(n) {
		time.Sleep(slow.delay)
	}
	if err != nil {
		return &os.PathError{Op: name, Path: path, Err: err}
	}
	return nil
}

// Unwrap gives the file system below.
func (f *FS) Unwrap() vfs.FS { return f.FS }

// Create implements vfs.FS.
func (f *FS) Create(name string, cat vfs.DiskWriteCategory) (file vfs.File, err error) {
	err = f.change("create", name, func() (err error) { file, err = f.FS.Create(name, cat); return err })
	return f.wrap(file, name, err)
}

// OpenReadWrite implements vfs.FS.
func (f *FS) OpenReadWrite(name string, cat vfs.DiskWriteCategory, opts ...vfs.OpenOption) (file vfs.File, err error) {
	err = f.change("open for writing", name, func() (err error) { file, err = f.FS.OpenReadWrite(name, cat, opts...); return err })
	return f.wrap(file, name, err)
}

// ReuseForWrite implements vfs.FS.
func (f *FS) ReuseForWrite(old, name string, cat vfs.DiskWriteCategory) (file vfs.File, err error) {
	err = f.change("reuse", name, func() (err error) { file, err = f.FS.ReuseForWrite(old, name, cat); return err })
	return f.wrap(file, name, err)
}

// OpenDir implements vfs.FS.
func (f *FS) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	return f.wrap(file, name, err)
}

// Link implements vfs.FS.
func (f *FS) Link(old, name string) error {
	return f.change("link", name, func() error { return f.FS.Link(old, name) })
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	return f.change("remove", name, func() error { return f.FS.Remove(name) })
}

// RemoveAll implements vfs.FS.
func (f *FS) RemoveAll(name string) error {
	return f.change("remove all", name, func() error { return f.FS.RemoveAll(name) })
}

// Rename implements vfs.FS.
func (f *FS) Rename(old, name string) error {
	return f.change("rename", name, func() error { return f.FS.Rename(old, name) })
}

// MkdirAll implements vfs.FS.
func (f *FS) MkdirAll(dir string, perm os.FileMode) error {
	return f.change("mkdir", dir, func() error { return f.FS.MkdirAll(dir, perm) })
}

// Lock implements vfs.FS.
func (f *FS) Lock(name string) (c io.Closer, err error) {
	err = f.change("lock", name, func() (err error) { c, err = f.FS.Lock(name); return err })
	return c, err
}

func (f *FS) wrap(file vfs.File, path string, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &File{File: file, fs: f, path: path}, nil
}

// File is an open file of an FS.
type File struct {
	vfs.File
	fs   *FS
	path string
}

// Write implements vfs.File.
func (f *File) Write(p []byte) (n int, err error) {
	err = f.fs.changeData("write", f.path, p, func() (err error) { n, err = f.File.Write(p); return err })
	return n, err
}

// WriteAt implements vfs.File.
func (f *File) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.fs.changeData("write", f.path, p, func() (err error) { n, err = f.File.WriteAt(p, off); return err })
	return n, err
}

// Sync implements vfs.File.
func (f *File) Sync() error { return f.fs.change("sync", f.path, f.File.Sync) }

// SyncData implements vfs.File.
func (f *File) SyncData() error { return f.fs.change("sync", f.path, f.File.SyncData) }

// SyncTo implements vfs.File.
func (f *File) SyncTo(n int64) (all bool, err error) {
	err = f.fs.change("sync", f.path, func() (err error) { all, err = f.File.SyncTo(n); return err })
	return all, err
}

// Preallocate implements vfs.File.
func (f *File) Preallocate(off, n int64) error {
	return f.fs.change("preallocate", f.path, func() error { return f.File.Preallocate(off, n) })
}
