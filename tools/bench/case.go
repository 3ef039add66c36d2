package bench

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ugds-store/ugds/internal/base"
)

// The operations of a Case.
const (
	OpPut    = "put"
	OpGet    = "get"
	OpMixed  = "mixed" // every second call puts a new value in place of an old one
	OpDelete = "delete"
	OpExists = "exists"
)

// The contestants.
const (
	Store      = "store"             // the store over the file device
	Raw        = "raw slots"         // pwrite and pread, O_DIRECT, into slots of one file
	Ring       = "raw ring"          // the same slots through the file device, in batches
	Files      = "file per object"   // one O_DIRECT file per object, renamed into place
	PebbleKV   = "pebble values"     // Pebble holding the values
	CommitLoop = "commit loop"       // one write, one fdatasync, one synced Pebble batch
	PebbleSync = "pebble group sync" // Pebble's own group commit of small records
	Fio        = "fio io_uring"      // fio, if it is installed
)

// Limits of a Case.
const (
	MaxBytes   = 8 * base.GiB // of all values
	MaxCallers = 1024
	MaxDepth   = 2048
	maxObjects = 1 << 24
)

// Case is what one process measures.
type Case struct {
	Subject string `json:"subject"`
	Op      string `json:"op"`
	Size    int64  `json:"size"`            // of a value, bytes
	Objects int    `json:"objects"`         // in all
	Callers int    `json:"callers"`         // at the same time
	Batch   int    `json:"batch"`           // objects a call
	Depth   int    `json:"depth,omitempty"` // commands in flight of Ring and Fio; 0 is the batch
	Sync    bool   `json:"sync"`            // each put or delete returns when durable
	Plain   bool   `json:"plain,omitempty"` // the store puts from and gets into plain memory, not a region
	GPU     string `json:"gpu,omitempty"`   // the store's values lie on this GPU; see gputool.Open
	Seed    uint64 `json:"seed"`

	Place Place `json:"place"`
	Ready bool  `json:"ready,omitempty"` // the objects are there from an earlier case
	Keep  bool  `json:"keep,omitempty"`  // leave them for a later case

	Profile string `json:"profile,omitempty"` // write a CPU profile of the measured part there
}

// Place says where a case finds its files. Prepare makes them in Dir; Devices
// and Meta name an existing store instead, Raw a device to overwrite.
type Place struct {
	Dir     string   `json:"dir,omitempty"`
	Devices []string `json:"devices,omitempty"`
	Meta    string   `json:"meta,omitempty"`
	Raw     string   `json:"raw,omitempty"`
	Fio     string   `json:"fio,omitempty"` // the program
}

// stride is what a value occupies, bytes.
func (c *Case) stride() int64 { return base.AlignUp(max(c.Size, 1), base.StoreBlock) }

// payload is what a pass over all objects asks for, bytes, in whole blocks.
func (c *Case) payload() int64 { return c.stride() * int64(c.Objects) }

// changes tells whether the operation makes something that must become durable.
func (c *Case) changes() bool { return c.Op == OpPut || c.Op == OpMixed || c.Op == OpDelete }

// check refuses cases that make no sense.
func (c *Case) check() error {
	bad := func(format string, args ...any) error {
		return base.Errorf("bench", c.Subject+" "+c.Op, base.ErrInvalid, format, args...)
	}
	switch {
	case c.Size < 1 || c.Objects < 1 || c.Objects > maxObjects || c.payload() > MaxBytes:
		return bad("%d objects of %d bytes; at most %s in all", c.Objects, c.Size, base.FormatBytes(MaxBytes))
	case c.Callers < 1 || c.Callers > MaxCallers:
		return bad("%d callers, 1 to %d are possible", c.Callers, MaxCallers)
	case c.Batch < 1 || c.Batch > c.Objects:
		return bad("%d objects a call of %d in all", c.Batch, c.Objects)
	case c.GPU != "" && c.Plain:
		return bad("values lie in plain memory or on a GPU, not both")
	case c.Depth < 0 || c.Depth > MaxDepth:
		return bad("depth %d, the limit is %d", c.Depth, MaxDepth)
	}
	return nil
}

// Name says what is measured, without the contestant.
func (c *Case) Name() string {
	s := fmt.Sprintf("%s %s, %d caller", c.Op, base.FormatBytes(c.Size), c.Callers)
	if c.Callers > 1 {
		s += "s"
	}
	if c.Batch > 1 {
		s += fmt.Sprintf(", %d a call", c.Batch)
	}
	if c.Sync && c.changes() {
		s += ", synced"
	}
	if c.Plain {
		s += ", plain memory"
	}
	if c.GPU != "" {
		s += ", GPU " + c.GPU
	}
	return s
}

// Sample is what one process measured. Fields that were not measured are nil.
type Sample struct {
	Case    Case    `json:"case"`
	Seconds float64 `json:"seconds"`
	Ops     int64   `json:"ops"`
	Bytes   int64   `json:"bytes"` // of values moved

	P50 *float64 `json:"p50_seconds,omitempty"` // of a call
	P99 *float64 `json:"p99_seconds,omitempty"`
	Max *float64 `json:"max_seconds,omitempty"`

	DeviceBytes  *int64   `json:"device_bytes,omitempty"`
	PutsPerFlush *float64 `json:"puts_per_flush,omitempty"`
	PutsPerSync  *float64 `json:"puts_per_wal_sync,omitempty"`
	Allocs       *float64 `json:"allocs_per_op,omitempty"`
	CPU          *float64 `json:"cpu_seconds_per_op,omitempty"`

	Engine string `json:"engine,omitempty"` // how I/O was issued
	Note   string `json:"note,omitempty"`
}

// ContestantNames are the words by which the command line names contestants.
var ContestantNames = map[string]string{"raw": Raw, "ring": Ring, "files": Files, "pebble": PebbleKV,
	"loop": CommitLoop, "pebble-sync": PebbleSync, "fio": Fio}

// Contestants lists those words.
func Contestants() []string { return slices.Sorted(maps.Keys(ContestantNames)) }
