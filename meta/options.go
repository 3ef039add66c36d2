package meta

import (
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// FS is the file system under the metadata. Crash file systems come from
// meta/metatest.
type FS = vfs.FS

// Options tells where the metadata lives and how it is opened.
type Options struct {
	Dir string // the metadata directory
	FS  FS     // nil is the disk

	// ReadOnly opens without any write, not even those of recovery: the log is
	// replayed in memory. Several read-only openers may coexist, an owner may
	// not be among them.
	ReadOnly bool

	// OnEvent hears of slow disks, background errors and the fence. It is called
	// from any goroutine, sometimes with locks of Pebble held: it must not block
	// and must not call the DB. Nil ignores events.
	OnEvent func(Event)

	// CommitDeadline is how long a commit may take before its outcome is unknown
	// and the fence falls; 0 means 120 s. SlowAfter is when an operation of the
	// disk is reported as slow; 0 means 5 s.
	CommitDeadline, SlowAfter time.Duration

	// MemTableBytes is when Pebble writes a table; 0 means 16 MiB. Tests make it
	// small, so that short scripts reach flushes and compactions.
	MemTableBytes uint64
}

// Limits of this package.
const (
	DefaultCommitDeadline = 120 * time.Second
	DefaultSlowAfter      = 5 * time.Second
	openDeadline          = 10 * time.Minute  // replaying the largest log from a slow disk
	closeDeadline         = 120 * time.Second // bounds Close when its context does not

	MinKeyLen, MaxKeyLen             = 1, 1024
	MinNamespaceLen, MaxNamespaceLen = 1, 255
	MaxExtents                       = 1 << 20 // extents a record may name
	MaxPieces                        = 1 << 22 // 4 TiB of value
	MaxDevices                       = 256     // devices an identity may name

	memTableBytes    = 16 << 20
	memTableStop     = 4 // memtables that may wait for a flush before commits stall
	cacheBytes       = 16 << 20
	maxTableFiles    = 256 // open tables, at most
	minTableFiles    = 4
	ballastBytes     = 8 << 20
	maxManifestBytes = 4 << 20 // then a new one is begun
	degradedAfter    = 5       // background errors in a row
	maxRetryBackoff  = 500 * time.Millisecond
	identityMaxBytes = 64 << 10
)

// withDefaults fills the zero fields.
func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.OnEvent == nil {
		o.OnEvent = func(Event) {}
	}
	if o.CommitDeadline <= 0 {
		o.CommitDeadline = DefaultCommitDeadline
	}
	if o.SlowAfter <= 0 {
		o.SlowAfter = DefaultSlowAfter
	}
	if o.MemTableBytes == 0 {
		o.MemTableBytes = memTableBytes
	}
	return o
}

func (o Options) path(name string) string { return o.FS.PathJoin(o.Dir, name) }

// Names inside the metadata directory.
const (
	identityName = "IDENTITY"
	identityTemp = "IDENTITY.tmp"
	lockName     = "LOCK"
	ballastName  = "BALLAST"
	databaseName = "db"
	creatingName = "CREATING" // Create has begun and not ended
)

// Kind says what an Event is about.
type Kind int

// The kinds of events.
const (
	DiskSlow        Kind = iota + 1 // an operation of the disk has not ended after SlowAfter
	DiskFull                        // an operation failed for lack of space
	BackgroundError                 // a flush or compaction failed and will be tried again
	Degraded                        // background work failed several times in a row
	Recovered                       // background work succeeded after Degraded
	Corruption                      // damaged metadata was read
	WriteStall                      // commits wait for background work
	Fenced                          // nothing more is written until the next open
	BallastRemoved                  // the ballast was given up so that the database could open
	BallastRestored                 // the ballast is back
)

var kindNames = [...]string{DiskSlow: "disk slow", DiskFull: "disk full",
	BackgroundError: "background error", Degraded: "degraded", Recovered: "recovered",
	Corruption: "corruption", WriteStall: "write stall", Fenced: "fenced",
	BallastRemoved: "ballast removed", BallastRestored: "ballast restored"}

// String names the kind.
func (k Kind) String() string { return kindNames[k] }

// Event is something an operator wants to know.
type Event struct {
	Kind     Kind
	Text     string        // the operation, or one sentence
	Path     string        // the file, or ""
	Duration time.Duration // DiskSlow: how long it has taken so far
	Err      error         // the cause, or nil
}
