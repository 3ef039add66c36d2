package file

import (
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// The engines that Options.Engine names.
const (
	EngineURing = "io_uring"
	EnginePool  = "pread/pwrite"
)

// Limits of Options.
const (
	// DefaultDepth is the number of commands in flight.
	DefaultDepth = 256
	// MaxDepth is the largest Depth.
	MaxDepth = 2048
	// DefaultMaxTransfer is where larger requests are cut, in bytes.
	DefaultMaxTransfer = 1 * base.MiB
	// MaxTransferLimit is the largest MaxTransfer, in bytes: below what one
	// system call moves (2 GiB less a page).
	MaxTransferLimit = 64 * base.MiB
	// MaxWait is the largest Wait.
	MaxWait = time.Hour
)

// Options says how a file is opened. The zero value with a Path works.
type Options struct {
	// Path of a regular file or a block device.
	Path string
	// ReadOnly opens without writing; several may do so at once.
	ReadOnly bool
	// Wait is how long to wait for the requests of a killed owner to land; zero
	// does not wait. A living owner is never waited for.
	Wait time.Duration
	// OnWait is called once when a wait begins, with the reason in words.
	OnWait func(why string)
	// Engine is EngineURing, EnginePool or "" for the best that works.
	Engine string
	// Buffered goes through the page cache although O_DIRECT would work.
	Buffered bool
	// Discard punches holes into a regular file for OpDiscard. Only for sparse
	// files: space that was given back may be gone when it is needed again.
	Discard bool
	// Owner is text that describes the owner to a second opener.
	Owner string
	// Depth is the number of commands in flight; 0 is DefaultDepth.
	Depth int
	// MaxTransfer is where requests are cut, in bytes, a multiple of 4 KiB; 0 is
	// DefaultMaxTransfer.
	MaxTransfer int64
	// Hooks lets tests change what the kernel answers.
	Hooks Hooks
}

// Hooks changes the outside world for tests. The zero value changes nothing.
// Result and Hold run while the device's lock is held and must not call it.
type Hooks struct {
	// Result gives the result that the driver sees for an ended command: bytes
	// moved or a negative errno. res is the kernel's.
	Result func(op driver.Op, off, n, res int64) int64
	// Hold reports whether an ended command stays invisible for now, as if the
	// device had not finished it. It is asked again every few milliseconds.
	Hold func(op driver.Op, off int64) bool
	// Deadline replaces the device deadlines.
	Deadline func(op driver.Op) time.Duration
	// SideLock puts the lock on PATH.lock instead of the data file, as many
	// programs do. It exists to show that this is not safe.
	SideLock bool
	// NoZeroRange behaves as a file system that cannot zero a range.
	NoZeroRange bool
}

// hooked tells whether completions may be held back.
func (h *Hooks) hooked() bool { return h.Hold != nil }

// validate fills in the defaults and reports the first fault.
func (o *Options) validate() error {
	bad := func(format string, args ...any) error {
		return base.Errorf("open", o.Path, base.ErrInvalid, format, args...)
	}
	if o.Depth == 0 {
		o.Depth = DefaultDepth
	}
	if o.MaxTransfer == 0 {
		o.MaxTransfer = DefaultMaxTransfer
	}
	switch {
	case o.Path == "":
		return bad("no path given")
	case o.Depth < 1 || o.Depth > MaxDepth:
		return bad("depth %d, the limit is 1 to %d", o.Depth, MaxDepth)
	case o.MaxTransfer < base.StoreBlock || o.MaxTransfer > MaxTransferLimit || o.MaxTransfer%base.StoreBlock != 0:
		return bad("largest transfer %d, it must be a multiple of %d up to %d",
			o.MaxTransfer, base.StoreBlock, int64(MaxTransferLimit))
	case o.Wait < 0 || o.Wait > MaxWait:
		return bad("wait %v, the limit is 0 to %v", o.Wait, MaxWait)
	case o.Engine != "" && o.Engine != EngineURing && o.Engine != EnginePool:
		return bad("engine %q, it must be %q or %q", o.Engine, EngineURing, EnginePool)
	}
	return nil
}
