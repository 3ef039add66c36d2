package meta

import (
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// tablesFail refuses to make tables while on.
type tablesFail struct {
	vfs.FS
	on    atomic.Bool
	tries atomic.Int64
}

func (f *tablesFail) Unwrap() vfs.FS { return f.FS }

func (f *tablesFail) Create(name string, cat vfs.DiskWriteCategory) (vfs.File, error) {
	if f.on.Load() && isTable(name) {
		f.tries.Add(1)
		return nil, syscall.EIO
	}
	return f.FS.Create(name, cat)
}
