package meta

import (
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/ugds-store/ugds/internal/base"
)

// The ballast is a file of reserved blocks. When an open fails because the disk
// is full it is removed: replaying the log needs space before it frees some. It
// comes back when there is room again.

// ballastSize is ballastBytes, less on a small disk, 0 where the size of the
// disk is unknown.
func ballastSize(u vfs.DiskUsage) int64 {
	return min(ballastBytes, int64(u.TotalBytes/64))
}

// dropBallast reports whether there was a ballast that is gone now.
func dropBallast(o Options) bool {
	path := o.path(ballastName)
	if o.ReadOnly || o.FS.Remove(path) != nil {
		return false
	}
	o.OnEvent(Event{Kind: BallastRemoved, Text: "the metadata disk is full", Path: path})
	return true
}

// restoreBallast makes the ballast if it is missing and fits at least four
// times. Failure is no error: the next open or close tries again.
func restoreBallast(o Options, fs vfs.FS) {
	path := o.path(ballastName)
	if _, err := fs.Stat(path); err == nil || o.ReadOnly {
		return
	}
	u, err := fs.GetDiskUsage(o.Dir)
	size := ballastSize(u)
	if err != nil || size == 0 || int64(u.AvailBytes) < 4*size {
		return
	}
	f, err := create(fs, path)
	if err != nil {
		return
	}
	err = f.Preallocate(0, size)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err != nil || cerr != nil {
		_ = fs.Remove(path)
		return
	}
	o.OnEvent(Event{Kind: BallastRestored, Text: base.FormatBytes(size), Path: path})
}
