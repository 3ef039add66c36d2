package ctrl

import (
	"fmt"
	"runtime"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// Limits of Options.
const (
	// MaxQueuePairs is the largest number of I/O queue pairs.
	MaxQueuePairs = 64
	// MaxDepth is the largest number of commands in flight on one queue: the
	// generation of a command identifier keeps at least four bits.
	MaxDepth = 4095
	// MaxCommand is the largest command, in bytes: a list of one page names it.
	MaxCommand = 2 * base.MiB
	// MinCommand is the smallest limit of the commands, in bytes.
	MinCommand = base.StoreBlock
)

// Mode is how completions are noticed.
type Mode uint8

// The modes. 0 is the default.
const (
	// Polled: the waiter polls until its batch has ended.
	Polled Mode = iota + 1
	// Interrupts: the waiter sleeps, and an interrupt of the queue ends that.
	Interrupts
	// Hybrid: the waiter polls for up to Options.Spin, then sleeps; it sleeps at
	// once when batches of that size have lately taken longer.
	Hybrid
)

// String names the mode, as Info.Engine does where there are interrupts for it.
func (m Mode) String() string { return [...]string{"default", "polled", "interrupts", "hybrid"}[m] }

// Options are the choices of Open. The zero value works.
type Options struct {
	NSID  uint32 // namespace; 0 takes the only active one
	Force bool   // take a namespace that another controller may share
	// Queues is the number of I/O queue pairs; 0 is two for each processor, at most
	// 16, and with interrupts at most as many as have a vector of their own. Half of
	// them are for single requests, the latency queues, the rest is for batches; one
	// alone serves both.
	Queues  int
	Depth   int           // commands in flight on a queue for batches; 0 is 255
	Latency int           // commands in flight on a latency queue; 0 is 63
	Command int64         // largest command, bytes; 0 is MaxCommand
	Bulk    int64         // payload of large requests in flight beside small ones, bytes; 0 is 640 KiB, negative no limit
	Watch   time.Duration // how often the watcher looks; 0 is 20 ms, negative never
	Mode    Mode          // 0 is Polled; queues without an interrupt vector of their own are polled
	Batches Mode          // of the queues for batches; 0 is Mode
	Spin    time.Duration // of Hybrid; 0 is 150 µs
	// LowLatency keeps the controller out of power states that it would have to
	// leave first; Close restores what was set before.
	LowLatency bool
	// NoShadow rings doorbells at the registers even where the controller looks for
	// them in memory too, as emulated ones do.
	NoShadow bool
	// Quirk is added to what the table has for the controller, for one that the table
	// does not know yet: Flags, and DelayMs if it is longer.
	Quirk    nvme.QuirkEntry
	Deadline Deadlines
}

// Deadlines of the device by opcode (I4), on its clock. 0 is the contract's.
type Deadlines struct {
	ReadWrite time.Duration
	Flush     time.Duration
	Discard   time.Duration
	Admin     time.Duration // at least CAP.TO; 0 is CAP.TO or 10 s, the longer
}

// Named defaults.
const (
	defaultQueues = 16
	defaultDepth  = 255
	defaultFew    = 63
	defaultWatch  = 20 * time.Millisecond
	defaultSpin   = 150 * time.Microsecond
	adminDeadline = 10 * time.Second
	defaultBulk   = 640 * base.KiB
)

// While there are small requests, which somebody waits for, the commands of large
// ones share Options.Bulk, so that small ones find short queues in the controller:
// on a link of 6 GB/s the default costs them 50 µs, and large requests 1 % of their
// bandwidth. Without small requests nothing is limited.
const (
	// bulkRequest is from how many bytes on a request counts as large.
	bulkRequest = 256 * base.KiB
	// bulkCommands is how many commands share Options.Bulk at least: large requests
	// are cut smaller than otherwise, so that some are always on their way.
	bulkCommands = 5
	// smallRequest is up to how many bytes a request counts as small, and
	// smallBatch up to how many of them a batch does.
	smallRequest = 64 * base.KiB
	smallBatch   = 4
)

// SmallMemory is for how long a small request counts after its submission, by the
// clock of the device.
const SmallMemory = 10 * time.Millisecond

// maxQuirkDelay bounds Options.Quirk.DelayMs, in milliseconds.
const maxQuirkDelay = 60_000

// EnsureDefaults fills what was left zero.
func (o *Options) EnsureDefaults() {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	dur := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.Queues, min(2*runtime.GOMAXPROCS(0), defaultQueues))
	def(&o.Depth, defaultDepth)
	def(&o.Latency, max(min(defaultFew, o.Depth), 1))
	if o.Mode == 0 {
		o.Mode = Polled
	}
	if o.Batches == 0 {
		o.Batches = o.Mode
	}
	if o.Command == 0 {
		o.Command = MaxCommand
	}
	if o.Bulk == 0 {
		o.Bulk = defaultBulk
	}
	dur(&o.Watch, defaultWatch)
	dur(&o.Spin, defaultSpin)
	dur(&o.Deadline.ReadWrite, driver.ReadWriteDeadline)
	dur(&o.Deadline.Flush, driver.FlushDeadline)
	dur(&o.Deadline.Discard, driver.DiscardDeadline)
	dur(&o.Deadline.Admin, adminDeadline)
}

// Validate tells every fault of the options at once, as ErrInvalid.
func (o *Options) Validate() error {
	var faults []string
	want := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	want(o.Queues >= 1 && o.Queues <= MaxQueuePairs, "Queues %d is not 1 to %d", o.Queues, MaxQueuePairs)
	want(o.Depth >= 1 && o.Depth <= MaxDepth, "Depth %d is not 1 to %d", o.Depth, MaxDepth)
	want(o.Latency >= 1 && o.Latency <= MaxDepth, "Latency %d is not 1 to %d", o.Latency, MaxDepth)
	want(o.Command >= MinCommand && o.Command <= MaxCommand && base.IsAligned(o.Command, MinCommand),
		"Command %d is not a multiple of %d from %d to %d", o.Command, MinCommand, MinCommand, MaxCommand)
	want(o.Bulk < 0 || o.Bulk >= bulkCommands*MinCommand, "Bulk %d is not negative or at least %d",
		o.Bulk, bulkCommands*MinCommand)
	want(o.Mode <= Hybrid, "Mode %d is not 0 to %d", o.Mode, Hybrid)
	want(o.Batches <= Hybrid, "Batches %d is not 0 to %d", o.Batches, Hybrid)
	want(o.Mode == Polled && o.Batches == Polled || o.Watch > 0,
		"Watch %v: without polling only the watcher sees deadlines", o.Watch)
	want(o.Quirk.DelayMs <= maxQuirkDelay, "Quirk.DelayMs %d is not 0 to %d", o.Quirk.DelayMs, maxQuirkDelay)
	want(o.Spin > 0, "Spin %v is not positive", o.Spin)
	for name, d := range map[string]time.Duration{"ReadWrite": o.Deadline.ReadWrite, "Flush": o.Deadline.Flush,
		"Discard": o.Deadline.Discard, "Admin": o.Deadline.Admin} {
		want(d > 0, "Deadline.%s %v is not positive", name, d)
	}
	if len(faults) == 0 {
		return nil
	}
	return base.Errorf("open", "controller", base.ErrInvalid, "options: %q", faults)
}
