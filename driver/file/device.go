package file

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/unix"
)

// Limits of the device.
const (
	// maxIov is the number of memory segments in one command.
	maxIov = 64
	// maxRetries bounds how often a command that made no progress is issued
	// again (EAGAIN, EINTR, a cancelled submission thread).
	maxRetries = 64
	// maxZero is where discards and zeroing are cut, in bytes, so that each
	// command fits its deadline although zeros may have to be written.
	maxZero = 256 * base.MiB
	// degradedAfter is how many failed requests in a row make Health not OK.
	degradedAfter = 3
	// watchEvery is how often deadlines are looked at.
	watchEvery = 250 * time.Millisecond
	// watchHooked is the same when tests hold completions back.
	watchHooked = 2 * time.Millisecond
)

// Device implements driver.Device. Make one with Open.
type Device struct {
	h     *handle
	hooks Hooks
	eng   engine

	state       atomic.Uint32 // driver.State; changed under mu
	incarnation atomic.Uint64 // changed under mu, before state
	start       time.Time     // origin of the monotonic clock below

	// ctl serialises Reset and Close; holding a token is holding the lock, so
	// that a context can end the wait.
	ctl chan struct{}
	// gate is held by the one submitter that waits for room; the others queue
	// for it, first come first served.
	gate chan struct{}
	// roomFor is what the holder of gate waits for.
	roomFor roomGoal
	// roomC wakes the holder of gate, idleC the holder of ctl. One token each.
	roomC, idleC chan struct{}

	mu         sync.Mutex
	closing    bool
	cause      error // why the device is isolated
	cmds       []cmd
	free       []int32 // free slots of cmds
	iovs       *dma.Table[unix.Iovec]
	ops        []*op // free list
	waiting    int   // submitters that want room
	submitting int   // Submit calls that may still touch the engine
	requests   int64 // started, not ended
	bytes      int64 // payload of commands in flight
	failed     int64 // requests failed in a row
	written    bool  // something was written since the open
	reaped     int64 // everything that had completed at this time was seen
	held       []heldBack
	stats      driver.Stats
	reasons    []string

	events events
	watchQ chan struct{}
	watchW sync.WaitGroup
	zeroes zeroPage
}

// op is one request in flight.
type op struct {
	batch *driver.Batch
	index int
	kind  driver.Op
	parts int   // commands in flight, plus one while more are being issued
	segs  int   // segments held
	base  int64 // offset of the request on the device
	sent  int64 // bytes of the commands issued so far
	good  int64 // bytes before the first that was not moved; sent or more if all were
	err   error
	born  uint64 // incarnation at the start
}

// cmd is one command: a slot of the engine.
type cmd struct {
	op       *op
	kind     driver.Op
	fua      bool
	plain    bool // OpWriteZeroes: write zeros
	busy     bool
	late     bool // passed its deadline
	buf      int32
	gen      uint32
	index    int32
	retries  int32
	off, n   int64        // what is left
	size     int64        // what it began with
	moved    int64        // bytes moved so far
	iov      []unix.Iovec // what is left, in the slot's part of iovs
	deadline int64        // ns on the device's clock
}

// heldBack is a completion that a test hides.
type heldBack struct {
	c   *cmd
	res int64
}

var _ driver.Device = (*Device)(nil)

// newDevice takes over h when it succeeds.
func newDevice(h *handle, o *Options) (*Device, error) {
	d := &Device{
		h: h, hooks: o.Hooks, start: time.Now(),
		ctl: make(chan struct{}, 1), gate: make(chan struct{}, 1),
		roomC: make(chan struct{}, 1), idleC: make(chan struct{}, 1),
		cmds: make([]cmd, o.Depth), free: make([]int32, o.Depth),
		watchQ: make(chan struct{}),
	}
	var err error
	if d.iovs, err = dma.NewTable[unix.Iovec](o.Depth*maxIov, "file device vectors"); err != nil {
		return nil, base.Wrap("open", o.Path, err)
	}
	for i := range d.cmds {
		d.cmds[i].index, d.free[i] = int32(i), int32(o.Depth-1-i)
	}
	if err := d.startEngine(o); err != nil {
		d.iovs.Free()
		return nil, err
	}
	d.reasons = h.info.Reasons
	d.events.start()
	d.watchW.Add(1)
	go d.watch()
	return d, nil
}

// now is nanoseconds on the device's monotonic clock.
func (d *Device) now() int64 { return int64(time.Since(d.start)) }

// Info implements driver.Device.
func (d *Device) Info() driver.Info {
	in := d.h.info
	d.mu.Lock()
	defer d.mu.Unlock()
	in.Reasons = append([]string(nil), d.reasons...)
	return in
}

// addReason adds a line to Info.Reasons unless it is there.
func (d *Device) addReason(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.reasons {
		if r == s {
			return
		}
	}
	d.reasons = append(d.reasons, s)
}

// State implements driver.Device.
func (d *Device) State() driver.State { return driver.State(d.state.Load()) }

// Incarnation implements driver.Device.
func (d *Device) Incarnation() uint64 { return d.incarnation.Load() }

// Stats implements driver.Device.
func (d *Device) Stats() driver.Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.stats
	s.InFlight, s.InFlightBytes = d.requests, d.bytes
	return s
}

// Health implements driver.Device. A file knows only what failed.
func (d *Device) Health(context.Context) (driver.Health, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := driver.Health{
		OK: true, TemperatureKelvin: -1, SparePercent: -1, UsedPercent: -1, MediaErrors: -1,
		ConsecutiveErrors: d.failed, BytesWrittenByHost: -1,
	}
	switch s := d.State(); {
	case s != driver.StateReady:
		h.OK, h.Critical = false, "the device is "+s.String()
	case d.failed >= degradedAfter:
		h.OK, h.Critical = false, fmt.Sprintf("degraded: the last %d requests failed", d.failed)
	}
	return h, nil
}

// Subscribe implements driver.Device.
func (d *Device) Subscribe(fn func(driver.Event)) (cancel func()) { return d.events.subscribe(fn) }

// setState changes the state and tells subscribers. Called with mu held.
func (d *Device) setState(s driver.State, cause error) {
	d.state.Store(uint32(s))
	d.events.post(driver.Event{State: s, Cause: cause})
	signal(d.roomC)
}

// isolate stops the device: nothing new is accepted or issued, and what is in
// flight ends with ErrIsolated when the kernel gives it back. Called with mu
// held.
func (d *Device) isolate(cause error) {
	switch d.State() {
	case driver.StateReady, driver.StateResetting:
	default:
		return
	}
	d.cause = cause
	d.incarnation.Add(1)
	d.setState(driver.StateIsolated, cause)
}

// refusal is why a request cannot start, or nil. Called with mu held.
func (d *Device) refusal(what string) error {
	target := d.h.info.Target
	switch s := d.State(); {
	case s == driver.StateClosed || d.closing:
		return base.Errorf(what, target, base.ErrClosed, "the device was closed")
	case s == driver.StateRemoved:
		return base.Errorf(what, target, base.ErrDeviceGone, "%w", d.cause)
	case s != driver.StateReady:
		return base.WithHint(base.Errorf(what, target, base.ErrIsolated, "%w", d.cause),
			"reset the device; it is %s", s)
	}
	return nil
}

// signal leaves one token in c.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
