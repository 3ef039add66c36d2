// Package driver is what the store asks of a device: a Device takes batches of
// requests between extents of the device and Regions of memory, answers each
// request exactly once, and tells its state, its health and what it counted.
//
// The contract is the same for a file, a block device and an NVMe controller;
// driver/drivertest is the suite that each of them passes. Offsets and lengths
// are bytes. The rules cited as I1 to I10 stand in docs/architecture.md.
package driver

import (
	"context"
	"time"
)

// Limits of the contract. A device may have smaller ones; Info tells them.
const (
	// MaxBatch is the largest number of requests in one batch.
	MaxBatch = 16384
	// MaxSegs is the largest number of memory segments in one request.
	MaxSegs = 1024
	// MaxBytesInFlight bounds the payload in flight on one device, in bytes.
	// A single larger request is cut inside the device.
	MaxBytesInFlight = 96 << 20
)

// Device deadlines by opcode (I4). They isolate the device; a caller's context
// only ends the caller's wait.
const (
	ReadWriteDeadline = 30 * time.Second
	FlushDeadline     = 60 * time.Second
	DiscardDeadline   = 60 * time.Second
)

// Info describes a device. It does not change while the device is open, except
// across a Reset.
type Info struct {
	Target    string // as the user names it: "file:/path", "pci:0000:01:00.0"
	Transport string // "file", "block", "nvme", "sim"
	Engine    string // how I/O is issued: "io_uring", "pread/pwrite", "polled", ...
	Model     string // "" if the device has none
	Serial    string // "" if the device has none

	Capacity    int64 // bytes, a multiple of BlockSize
	BlockSize   int64 // LBA size, bytes, a power of two; offsets and lengths are multiples of it
	MemAlign    int64 // alignment that segment addresses need, bytes, a power of two; lengths need that of blocks too
	MaxTransfer int64 // largest single command, bytes; larger requests are cut inside

	VolatileCache bool // completed writes need a Flush to survive a power cut
	Discard       bool // OpDiscard is supported
	WriteZeroes   bool // OpWriteZeroes is supported without a data transfer
	Peers         bool // regions behind dma-bufs can be attached: memory of a GPU

	// Reasons explains every choice made while opening, one per line, for people.
	Reasons []string
}

// State of a device. The transitions are Ready → Isolated → Resetting → Ready,
// and any state → Removed or Closed.
type State uint8

const (
	// StateReady takes requests.
	StateReady State = iota
	// StateIsolated takes none; every request that was in flight ends with
	// ErrIsolated once the device is confirmed stopped. Reset brings it back.
	StateIsolated
	// StateResetting is a Reset in progress.
	StateResetting
	// StateRemoved is final: the hardware is gone.
	StateRemoved
	// StateClosed is final: Close was called.
	StateClosed
)

// String names the state.
func (s State) String() string {
	return [...]string{"ready", "isolated", "resetting", "removed", "closed"}[s]
}

// Event is a change of state and its cause, or a warning of a device that goes on.
type Event struct {
	State State // the new one; of a warning the present one
	Cause error // what a warning is about; nil for Ready and for an orderly Close
	// Warning: the state has not changed. The device says something about itself,
	// such as that it is hot or short of spare blocks.
	Warning bool
}

// Health is what a device says about itself. Fields that it does not know are
// negative (numbers) or empty.
type Health struct {
	OK                 bool
	Critical           string  // the device's own warnings, "" if none
	TemperatureKelvin  int     // -1 unknown
	SparePercent       int     // available spare, -1 unknown
	UsedPercent        int     // endurance used, -1 unknown
	MediaErrors        int64   // -1 unknown
	ConsecutiveErrors  int64   // failed requests in a row as counted by the driver
	BytesWrittenByHost float64 // -1 unknown
}

// Stats are counters since the device was opened. The device counts bytes once, at
// completion, those that the requests tell as Done, whether they failed or not (I10);
// which path the bytes took is counted by the mover.
type Stats struct {
	Reads    int64 `json:"reads"` // requests ended without error
	Writes   int64 `json:"writes"`
	Flushes  int64 `json:"flushes"`
	Discards int64 `json:"discards"`
	Zeroes   int64 `json:"zeroes"`

	ReadBytes    int64 `json:"read_bytes"` // the sum of what ended requests tell as Done
	WriteBytes   int64 `json:"write_bytes"`
	DiscardBytes int64 `json:"discard_bytes"`
	ZeroBytes    int64 `json:"zero_bytes"`

	Errors        int64 `json:"errors"`          // requests ended with an error
	Commands      int64 `json:"commands"`        // issued after cutting and merging
	InFlight      int64 `json:"in_flight"`       // requests now
	InFlightBytes int64 `json:"in_flight_bytes"` // payload now

	// RoomWait is for how long calls of Submit have waited for room, summed, by the
	// clock of the device: that of the wall, or a model's own.
	RoomWait time.Duration `json:"room_wait_ns"`
}

// Device is block storage with one owner. All methods are safe for concurrent
// use. Every blocking method honours its context's deadline and ends by itself
// within the device deadlines above.
type Device interface {
	// Info describes the device.
	Info() Info

	// Attach makes r usable in requests to this device (registers its pages,
	// maps it for DMA). Attaching twice is harmless. A device may accept
	// requests from regions that were never attached, at a cost.
	Attach(r *Region) error

	// Detach undoes Attach. It fails with ErrBusy while a request that names r
	// is in flight (I3).
	Detach(r *Region) error

	// Submit starts every request of b. An error means that none was started
	// and b is free again; nil means that each request will end exactly once,
	// and that Wait must be called until it returns nil. An entry that is
	// invalid by itself ends with its own error and does not disturb the others.
	// When the queue is full, Submit waits for room until ctx ends, and goes on
	// entry by entry as others end; entries that found none by then end with
	// ErrTimeout, those that Batch.Cancel gave up with context.Canceled. Submitters
	// that wait for room get it in turns. Entries of a batch have no order.
	Submit(ctx context.Context, b *Batch) error

	// State is the present state.
	State() State

	// Incarnation counts how often the device stopped other than by an orderly
	// close (isolation, reset, power loss). It rises before StateIsolated is
	// visible. A write that was submitted under an earlier incarnation than a
	// later flush completed under may be lost although both succeeded.
	Incarnation() uint64

	// Reset brings an isolated device back. When it returns nil no command of
	// an earlier incarnation can land any more.
	Reset(ctx context.Context) error

	// Health asks the device about itself.
	Health(ctx context.Context) (Health, error)

	// Stats returns the counters.
	Stats() Stats

	// Subscribe calls fn, from a goroutine of the device and never while a lock
	// is held, for each change of state and each warning until cancel is called. Events come in
	// order; fn must not block for long.
	Subscribe(fn func(Event)) (cancel func())

	// Close stops the device in an orderly way: it refuses new requests, waits
	// for those in flight until ctx ends (then ErrBusy: the device stays open)
	// and releases everything, the owner's lock last.
	Close(ctx context.Context) error
}
