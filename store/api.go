package store

import (
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
)

// The error classes, for errors.Is. See docs/architecture.md for what a caller
// can do about each.
var (
	ErrNotFound     = base.ErrNotFound
	ErrExists       = base.ErrExists
	ErrNoSpace      = base.ErrNoSpace
	ErrBusy         = base.ErrBusy
	ErrLocked       = base.ErrLocked
	ErrMisaligned   = base.ErrMisaligned
	ErrOutOfRange   = base.ErrOutOfRange
	ErrTimeout      = base.ErrTimeout
	ErrIsolated     = base.ErrIsolated
	ErrDeviceGone   = base.ErrDeviceGone
	ErrCorrupt      = base.ErrCorrupt
	ErrUnknown      = base.ErrUnknown
	ErrReadOnly     = base.ErrReadOnly
	ErrClosed       = base.ErrClosed
	ErrNotSupported = base.ErrNotSupported
	ErrInvalid      = base.ErrInvalid
	ErrMismatch     = base.ErrMismatch
	ErrMetaFull     = base.ErrMetaFull
	ErrInUse        = base.ErrInUse
	ErrLeaseExpired = base.ErrLeaseExpired
)

// Limits. Each has a test on both sides.
const (
	MaxKeyLen       = 1024          // bytes; keys have at least 1
	MaxNamespaceLen = 255           // bytes; names have at least 1
	MinDeviceBytes  = 64 * base.MiB // smallest device
	MinSlabBytes    = base.MiB      // smallest slab unless forced
	MinForcedSlab   = 64 * base.KiB // smallest slab the laboratory may force
	MaxSlabBytes    = 64 * base.MiB // largest slab
	PieceBytes      = base.MiB      // unit of checksums and of staging
	MaxBatchKeys    = 65536         // keys in one batch or lookup
	MaxRoundOps     = 4096          // operations in one commit round
	MaxStoreDevices = 64            // devices of one store
	DefaultTTL      = 60 * time.Second
)

// Options of Open. The zero value of each field that has a default is usable.
type Options struct {
	// Devices are the store's devices, opened and locked by the caller, in any
	// order. The caller closes them after Close.
	Devices []driver.Device
	// Meta says where the metadata is.
	Meta meta.Options
	// ReadOnly opens without any write: no epoch rise, no repair.
	ReadOnly bool

	// RoundAge is the longest time a relaxed operation waits for its round to
	// close. Default 50 ms.
	RoundAge time.Duration
	// VolatileBytes is how much relaxed data may be not yet durable before
	// relaxed puts block. Default 64 MiB.
	VolatileBytes int64
	// StagingBytes bounds the bounce buffers. Default 64 MiB, at least 4 MiB.
	StagingBytes int64
	// IdleMark is how long after a round an idle store writes its commit mark.
	// Default 5 ms.
	IdleMark time.Duration
	// ResetTimeout bounds one attempt to bring an isolated device back.
	// Default 60 s.
	ResetTimeout time.Duration
	// Discard issues discards for emptied slabs on devices that support them.
	Discard bool
	// GPU lets values come from and go to GPU memory. The zero value does not.
	GPU GPUOptions
	// Strict turns every staged transfer of a value into ErrNotSupported with the
	// reason why it would be staged. A partial last block may pass host memory.
	Strict bool
}

// FormatOptions of Format.
type FormatOptions struct {
	Devices []driver.Device // in the order they will have in the pool
	Meta    meta.Options
	// SlabBytes forces the slab size: a power of two from MinForcedSlab to
	// MaxSlabBytes. 0 chooses by the size of the pool.
	SlabBytes int64
	// Overwrite destroys what is on the devices and in the metadata directory.
	// Without it Format refuses anything that is not blank.
	Overwrite bool
}

// Range is a piece of memory that a value comes from or goes to: either Bytes, or
// [Off, Off+Len) of a Region, or of the GPU memory that begins at GPU. Plain bytes
// are copied through a bounce buffer and counted as staged; a region's whole blocks
// go direct, except those of sync puts of up to 16 KiB in a store that is not
// strict: they are copied, so that many callers share one write. A call holds the regions
// that it names, so that they cannot be closed meanwhile (ErrBusy), and refuses closed
// ones with ErrClosed. Registered GPU memory
// goes direct to devices that reach it, and any other through a bounce buffer, with the
// reason counted. It must not be freed before the call returned, and what the GPU itself writes or
// reads there must have ended, or begin after the call.
type Range struct {
	Bytes  []byte
	Region *driver.Region
	GPU    gpu.Ptr
	Off    int64
	Len    int64
}

// Buffers is a list of ranges that together hold a value, in order.
type Buffers []Range

// Bytes makes Buffers of one plain slice.
func Bytes(b []byte) Buffers { return Buffers{{Bytes: b}} }

// InRegion makes Buffers of one range of a region.
func InRegion(r *driver.Region, off, n int64) Buffers {
	return Buffers{{Region: r, Off: off, Len: n}}
}

// Durability says when a put or a delete returns.
type Durability uint8

const (
	// Sync returns when the operation survives any crash.
	Sync Durability = iota
	// Relaxed returns when the operation is visible; it becomes durable within
	// RoundAge plus the time of a flush, or by Flush.
	Relaxed
)

// PutOptions of one put.
type PutOptions struct {
	Durability Durability
	// Replace allows the key to exist. Without it an existing key gives ErrExists.
	Replace bool
	// NoChecksum stores the value without checksums; it cannot be verified later.
	NoChecksum bool
}

// DeleteOptions of one delete.
type DeleteOptions struct {
	Durability Durability
}

// GetOptions of one get. The zero value reads the whole value and verifies it.
type GetOptions struct {
	Off int64 // first byte of the value
	Len int64 // bytes; 0 means to the end of the value unless Exact is set
	// Exact makes Len be taken as it is, zero included.
	Exact bool
	// NoVerify skips the checksum.
	NoVerify bool
}

// ObjectInfo describes an object.
type ObjectInfo struct {
	Key        []byte
	Size       int64  // bytes of the value
	SlotBytes  int64  // bytes of the device that it occupies
	Generation uint64 // its place in the commit order
	Durable    bool   // survives any crash; false for a relaxed one whose round is not over
	CRC32C     uint32 // of the whole value; valid if HasCRC
	HasCRC     bool
	Devices    []int // devices that hold a part of it
}

// PutItem is one entry of PutBatch; Generation and Err are its answer.
type PutItem struct {
	Key   []byte
	Value Buffers
	PutOptions
	Generation uint64 // its place in the commit order, 0 on an error
	Err        error
}

// GetItem is one entry of GetBatch; N, Size, Generation and Err are its answer.
type GetItem struct {
	Key []byte
	Dst Buffers
	GetOptions
	N          int64  // bytes written to Dst
	Size       int64  // size of the whole value
	Generation uint64 // of the version read
	Err        error
}

// Usage of a namespace or of the whole store. Relaxed objects are included.
type Usage struct {
	Objects   int64 `json:"objects"`
	Bytes     int64 `json:"bytes"`      // of values
	SlotBytes int64 `json:"slot_bytes"` // of the devices
}

// ListOptions of List.
type ListOptions struct {
	Prefix []byte // only keys that begin with it
	After  []byte // only keys greater than it; nil for all
	Limit  int    // 0 for all
}

// NamespaceOptions of Store.Namespace.
type NamespaceOptions struct {
	// Create makes the namespace if it does not exist.
	Create bool
	// Layout is an opaque fingerprint of what the values mean. A namespace keeps
	// the one it was created with; opening it with another gives ErrMismatch.
	// The zero value opens any namespace and creates one without a fingerprint.
	Layout [16]byte
}

// LookupOptions of Lookup.
type LookupOptions struct {
	TTL time.Duration // of the lease; 0 means DefaultTTL
	// All looks at every key instead of stopping at the first one missing.
	All bool
}

// EventKind says what happened.
type EventKind uint8

const (
	// EventStored: an object became visible.
	EventStored EventKind = iota
	// EventAccessed: an object was read.
	EventAccessed
	// EventDeleted: an object was removed by a caller.
	EventDeleted
	// EventLost: an object that was visible went back to its last durable state,
	// because a device lost its cache or a commit failed.
	EventLost
	// EventDevice: a device changed its state; Err and Device tell.
	EventDevice
	// EventReadOnly: the store turned read-only; Err tells why.
	EventReadOnly
	// EventPair: a device and a GPU do not reach each other although the platform says
	// so, or registered memory became unreachable; Err and Device tell. What would have
	// moved directly is staged.
	EventPair
	// EventMeta: the metadata reports something (a slow disk, a background
	// error); Err tells.
	EventMeta
)

// String names the kind.
func (k EventKind) String() string {
	return [...]string{"stored", "accessed", "deleted", "lost", "device", "read-only", "pair", "meta"}[k]
}

// Event is one entry of a subscription.
type Event struct {
	Kind       EventKind
	Namespace  string
	Key        []byte
	Size       int64
	Generation uint64
	Device     int // EventDevice, EventPair
	Err        error
}
