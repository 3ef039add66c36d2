package ctrl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// Device is one namespace of one controller. It implements driver.Device.
type Device struct {
	hw   hw.Device
	opts Options
	info driver.Info // does not change after Open

	// What the controller says of itself. Only the bring-up of Open writes it; that
	// of a reset compares.
	opened       bool
	cap          nvme.CAP
	version      nvme.VS
	cc           nvme.CC
	id           nvme.IdentifyController
	sgl          nvme.SGLSupport // as id says
	nvm          nvme.IdentifyControllerNVM
	nsid         uint32
	geo          nvme.Geometry
	protected    bool
	granted      uint32 // queue pairs; under ctl
	limit        uint32 // blocks of a read or write
	zeroLimit    uint32
	bulkLimit    uint32
	discardLimit uint32
	aers         []*adminWait
	power        power
	quirk        nvme.QuirkEntry
	phase        atomic.Value // string: the step of the bring-up

	adminQ  atomic.Pointer[queue]
	queues  atomic.Pointer[[]*queue] // all of both groups
	latency group
	deep    group
	aborts  aborter
	zero    *hw.Buffer // a memory page of zeros
	shadow  shadow
	runs    sync.Pool // of *run

	state       atomic.Uint32 // driver.State
	incarnation atomic.Uint64
	closing     atomic.Bool
	revocable   atomic.Bool  // some region's memory can be taken back by its exporter
	broken      atomic.Bool  // the bring-up cannot go on; cause says why
	inFlight    atomic.Int64 // requests without an answer, for Stats
	unended     atomic.Int64 // the same, until the answer was given as well
	window      atomic.Int64 // bytes of payload
	bulk        atomic.Int64 // of them, those of large requests while small ones are there
	small       atomic.Int64 // when the last small request was submitted, on the device's clock
	count       counters

	mu      sync.Mutex
	cause   error         // of the isolation
	stopped chan struct{} // closed when the controller of this isolation has stopped
	retired []*queue
	kept    []keptBuffer
	warning string // the last asynchronous event about health

	ctl      chan struct{} // holds a token while Reset or Close works
	quit     chan struct{} // closed by Close
	work     sync.WaitGroup
	reapers  sync.WaitGroup // goroutines that wait for interrupts
	events   events
	attachMu sync.Mutex
	regions  map[uint64]*attached
}

// Open brings the controller up and takes one of its namespaces. It owns dev from
// now on: Close closes it, and so does an Open that fails. ErrInvalid for bad
// options; ErrNotFound, ErrInUse and ErrNotSupported for namespaces; ErrTimeout,
// ErrDeviceGone or a *nvme.FieldError inside for a controller that does not work.
func Open(ctx context.Context, dev hw.Device, opts Options) (*Device, error) {
	byDefault := opts.Queues == 0
	opts.EnsureDefaults()
	if n := dev.Vectors() - 1; byDefault && n > 0 && (opts.Mode != Polled || opts.Batches != Polled) {
		opts.Queues = min(opts.Queues, n) // a group with a queue that is polled is polled
	}
	if err := opts.Validate(); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	d := &Device{hw: dev, opts: opts, regions: map[uint64]*attached{},
		ctl: make(chan struct{}, 1), quit: make(chan struct{})}
	d.latency.d, d.latency.mode, d.latency.depth = d, opts.Mode, opts.Latency
	d.deep.d, d.deep.mode, d.deep.depth = d, opts.Batches, opts.Depth
	d.info.Target, d.info.Transport = dev.ID().Target, dev.ID().Transport
	d.quirk = nvme.Quirks(dev.ID().Vendor, dev.ID().Device)
	d.quirk.Flags |= opts.Quirk.Flags
	d.quirk.DelayMs = max(d.quirk.DelayMs, opts.Quirk.DelayMs)
	d.share([]*queue{})
	d.small.Store(-int64(SmallMemory))
	d.state.Store(uint32(driver.StateResetting)) // not ready: nothing isolates it
	err := d.bringUp(ctx)
	if err == nil && d.broken.Load() { // behind its last look
		err = base.Wrap("bring up", d.info.Target, d.cause)
	}
	if err != nil {
		d.killQueues()
		if _, stopErr := d.quiesce(); stopErr == nil {
			for _, q := range d.allQueues() {
				q.abandon(err)
			}
			d.teardown()
			d.freeOwn()
		}
		return nil, errors.Join(err, dev.Close())
	}
	d.describe()
	d.opened = true
	d.state.Store(uint32(driver.StateReady))
	d.events.start()
	if opts.Watch > 0 {
		d.work.Go(d.watch)
	}
	if n, ok := dev.(hw.Notifier); ok {
		d.work.Go(func() { d.listen(n.Notices()) })
	}
	return d, nil
}

// reason explains a choice. Only before the device is open.
func (d *Device) reason(format string, args ...any) {
	if !d.opened {
		d.info.Reasons = append(d.info.Reasons, fmt.Sprintf(format, args...))
	}
}

// dword is the alignment of memory that PRP entries need: a piece of whole blocks
// may begin at any doubleword, because the first entry of a command may have an
// offset (Base 4.3.1), and each piece can have commands of its own.
const dword = 4

// describe fills Info.
func (d *Device) describe() {
	block := int64(1) << d.geo.BlockShift
	i := &d.info
	i.Engine = d.latency.engine()
	if deep := d.deep.engine(); deep != i.Engine {
		i.Engine += ", batches " + deep
	}
	i.Model, i.Serial = d.id.Model(), d.id.Serial()
	i.Capacity, i.BlockSize, i.MemAlign = int64(d.geo.Blocks)*block, block, dword
	if sgl := d.id.SGL(); sgl.Supported {
		i.MemAlign = int64(sgl.Align)
	}
	i.MaxTransfer = int64(d.limit) * block
	i.VolatileCache = d.id.VolatileCache()
	i.Discard = d.id.ONCS.Get()&nvme.ONCSDSM != 0
	i.Peers = d.hw.ID().Peers
	i.WriteZeroes = d.id.ONCS.Get()&nvme.ONCSWriteZeroes != 0
	d.reason("NVMe %s controller, namespace %d, blocks of %d bytes", d.version, d.nsid, block)
	few, deep := *d.latency.queues.Load(), *d.deep.queues.Load()
	d.reason("%d queue pairs for single requests, of %d entries, and %d for batches, of %d (asked for %d in all, CAP.MQES allows %d)",
		len(few), few[0].size, len(deep), deep[0].size, d.opts.Queues, d.cap.QueueEntries())
	if d.granted == 1 {
		d.reason("the one queue pair serves single requests and batches")
	}
	mdts := "no limit"
	if n := d.id.MaxTransfer(d.cap.MinPageShift()); n != 0 {
		mdts = base.FormatBytes(int64(min(n, 1<<62)))
	}
	d.reason("commands of at most %s (MDTS: %s)", base.FormatBytes(i.MaxTransfer), mdts)
	if d.sgl.Supported {
		d.reason("data is named by SGLs where they are shorter than PRP lists")
	}
	if d.geo.Boundary != 0 {
		d.reason("commands do not cross multiples of %d blocks", d.geo.Boundary)
	}
	if d.protected {
		d.reason("the namespace is write protected")
	}
	for _, q := range d.quirk.Flags.Names() {
		d.reason("quirk: %s", q)
	}
}

// Info implements driver.Device.
func (d *Device) Info() driver.Info { return d.info }

// Subscribe implements driver.Device.
func (d *Device) Subscribe(fn func(driver.Event)) (cancel func()) { return d.events.subscribe(fn) }

// Stats implements driver.Device.
func (d *Device) Stats() driver.Stats {
	c := &d.count
	return driver.Stats{
		Reads: c.ops[driver.OpRead].Load(), Writes: c.ops[driver.OpWrite].Load(), Flushes: c.ops[driver.OpFlush].Load(),
		Discards: c.ops[driver.OpDiscard].Load(), Zeroes: c.ops[driver.OpWriteZeroes].Load(),
		ReadBytes: c.bytes[driver.OpRead].Load(), WriteBytes: c.bytes[driver.OpWrite].Load(),
		DiscardBytes: c.bytes[driver.OpDiscard].Load(), ZeroBytes: c.bytes[driver.OpWriteZeroes].Load(),
		Errors: c.errors.Load(), Commands: c.commands.Load(), InFlight: d.inFlight.Load(),
		InFlightBytes: min(d.window.Load(), driver.MaxBytesInFlight), // what is taken in advance counts for an instant
		RoomWait:      time.Duration(c.room.Load()),
	}
}

// Close implements driver.Device: it waits for what is in flight, announces the
// shutdown to the controller, which writes its cache (Base 3.6.1), and stops it. An
// ErrBusy has an *InFlightError inside, which lists the requests.
func (d *Device) Close(ctx context.Context) error {
	if err := d.lockCtl(ctx, "close"); err != nil {
		return err
	}
	defer func() { <-d.ctl }()
	if d.State() == driver.StateClosed {
		return nil
	}
	d.closing.Store(true)
	ready, left := false, false
	for !left {
		if err := d.drain(ctx); err != nil {
			d.closing.Store(false)
			return err
		}
		ready, left = d.leave(driver.StateClosed, nil)
	}
	close(d.quit)
	d.work.Wait()
	err := d.giveUp(ctx, ready)
	d.events.done.Wait()
	return err
}

// leave takes the device to a final state, unless it was isolated since drain; ready
// tells whether it worked until then.
func (d *Device) leave(final driver.State, cause error) (ready, left bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopping() {
		return false, false
	}
	ready = d.State() == driver.StateReady
	d.setState(final, cause)
	return ready, true
}

// stopping tells whether the controller is being stopped, which is not confirmed yet. The
// caller holds mu.
func (d *Device) stopping() bool {
	if d.stopped == nil {
		return false
	}
	select {
	case <-d.stopped:
		return false
	default:
		return true
	}
}

// giveUp stops a controller that was ready, gives its memory back, and closes the
// hardware. Nothing is in flight, the state is final, and the caller holds ctl.
func (d *Device) giveUp(ctx context.Context, ready bool) (err error) {
	if ready {
		powerErr := d.restorePower(ctx)
		d.killQueues()
		var stopped bool
		stopped, err = d.shutdown(ctx)
		err = errors.Join(powerErr, err)
		if !stopped {
			// Whatever the controller knows stays allocated and mapped.
			return errors.Join(err, d.hw.Close())
		}
		for _, q := range d.allQueues() {
			q.abandon(base.ErrClosed) // event requests
		}
	}
	d.detachAll()
	d.teardown()
	d.freeOwn()
	return errors.Join(err, d.hw.Close())
}

// freeOwn frees what lives as long as the device. The controller is stopped.
func (d *Device) freeOwn() {
	d.shadow.free()
	if d.zero != nil {
		d.zero.Free()
		d.zero = nil
	}
}

// drain waits until nothing is in flight and, when the device is being stopped, until
// it has. When ctx ends first it is ErrBusy, with an *InFlightError and the
// context's error inside.
func (d *Device) drain(ctx context.Context) error {
	for {
		d.mu.Lock()
		stopped, stopping := d.stopped, d.stopping()
		d.mu.Unlock()
		if !stopping && d.unended.Load() == 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return base.WithHint(base.Errorf("close", d.info.Target, base.ErrBusy, "%w: %w",
				d.listInFlight(), err), "wait for them and close again")
		}
		if stopping {
			select {
			case <-stopped:
			case <-ctx.Done():
			}
			continue
		}
		d.pollOnce()
	}
}

// shutdownLimit bounds an orderly shutdown of a controller that does not say how
// long it takes.
const shutdownLimit = 10 * time.Second

// shutdown announces the end and stops the controller; stopped tells whether that
// is confirmed.
func (d *Device) shutdown(ctx context.Context) (stopped bool, err error) {
	limit := max(shutdownLimit, time.Duration(d.id.RTD3E.Get())*time.Microsecond)
	err = d.hw.Store32(nvme.RegCC, uint32(d.cc.WithShutdown(nvme.ShutdownNormal)))
	if err == nil {
		err = d.wait(ctx, "the shutdown", limit, func(s nvme.CSTS) bool { return s.ShutdownDone() })
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	stopErr := d.hw.Stop(stop)
	return stopErr == nil, errors.Join(err, stopErr)
}
