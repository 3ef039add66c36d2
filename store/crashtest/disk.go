package crashtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// DiskOptions describe a Disk. The zero value of each field is usable.
type DiskOptions struct {
	Name         string // of the target; default "disk"
	Capacity     int64  // bytes; default 64 MiB
	BlockSize    int64  // 512 or 4096 (the default): the grain of tearing
	Seed         uint64 // of delays, order and what discards do
	WriteThrough bool   // no volatile cache
	NoDiscard    bool
	// Immediate answers every command inside Submit, in order. For opening
	// images, where the order of commands is not what is tested.
	Immediate bool
	// NoLock lets the commands of a dead owner land while the next owner works:
	// what the lock of I5 prevents. For showing that it is needed.
	NoLock bool
	// Depth is the number of commands that may be in flight. Default 64.
	Depth int
	// Pace is how the disk spends time; the zero value is a fast disk that
	// reorders.
	Pace Pace
	// Controller, if not nil, makes it a model of an NVMe controller behind the
	// real driver, instead of a Disk.
	Controller *Controller
}

func (o *DiskOptions) defaults() {
	if o.Name == "" {
		o.Name = "disk"
	}
	if o.Capacity == 0 {
		o.Capacity = 64 * base.MiB
	}
	if o.BlockSize == 0 {
		o.BlockSize = base.StoreBlock
	}
	if o.Depth == 0 {
		o.Depth = 64
	}
	o.Pace.defaults()
}

// Disk is a driver.Device in memory with a volatile write cache. A write that
// was answered is safe once a flush that was submitted afterwards is answered,
// or at once with FUA. Until then a loss of power gives it any fate.
type Disk struct {
	lab   *Lab
	index int // in the lab
	opts  DiskOptions
	info  driver.Info

	// The lab's lock guards everything below.
	rng         *rand.Rand
	visible     *media // what reads return
	stable      *media // what survives
	open        []*write
	answering   int // commands that left the queue and have no answer yet
	queue       []*command
	bytes       int64 // payload in flight
	late        []*write
	state       driver.State
	incarnation uint64
	closing     bool
	stats       driver.Stats
	faults      []string
	held        bool               // no command moves
	failing     map[driver.Op]bool // the next command of these fails
	inARow      int64              // failed commands
	work        *sync.Cond         // the queue or the state changed
	room        chan struct{}      // closed and replaced when the queue shrinks
	stopped     chan struct{}      // closed when the engine ended

	events notifier
}

// write is a write, a discard or a write of zeros whose fate is open: in flight,
// or answered and not covered by a flush.
type write struct {
	op       driver.Op
	lba      int64
	blocks   []string // what each block becomes; nil before a discard drew it
	skip     []bool   // blocks that it does not change; nil for none
	n        int64    // blocks
	label    uint64
	effect   bool  // reads see it, at least in part
	answered int64 // step of its answer; 0 while in flight
}

// command is a request in flight.
type command struct {
	batch     *driver.Batch
	entry     int
	req       *driver.Request
	submitted int64 // step
	w         *write
	effect    bool // it took effect, the answer is missing
	dying     bool // the device stopped: it ends with ErrIsolated
}

var _ driver.Device = (*Disk)(nil)

// NewDisk makes a blank disk in lab; a nil lab gives the disk a world of its own.
func NewDisk(lab *Lab, opts DiskOptions) *Disk {
	opts.defaults()
	m := newMedia(opts.Capacity, opts.BlockSize)
	return startDisk(lab, opts, m, m.clone(), nil, nil)
}

func startDisk(lab *Lab, opts DiskOptions, visible, stable *media, open, late []*write) *Disk {
	if lab == nil {
		lab = new(Lab)
	}
	d := &Disk{
		lab: lab, opts: opts, visible: visible, stable: stable, open: open, late: late,
		rng:     rand.New(rand.NewPCG(opts.Seed, 0xd15c)),
		room:    make(chan struct{}),
		stopped: make(chan struct{}),
	}
	d.work = sync.NewCond(&lab.mu)
	d.info = driver.Info{
		Target: "sim:" + opts.Name, Transport: "sim", Engine: "crash laboratory",
		Model: "volatile write cache", Serial: opts.Name,
		Capacity: opts.Capacity, BlockSize: opts.BlockSize, MemAlign: memAlign, MaxTransfer: 4 * base.MiB,
		VolatileCache: !opts.WriteThrough, Discard: !opts.NoDiscard, WriteZeroes: true,
		Reasons: []string{"simulated: the crash laboratory draws the fate of every unflushed write"},
	}
	d.events.start()
	lab.mu.Lock()
	d.index = len(lab.disks)
	lab.disks = append(lab.disks, d)
	for opts.Immediate && !opts.NoLock && len(d.late) > 0 {
		d.landLate()
	}
	lab.mu.Unlock()
	if opts.Immediate {
		close(d.stopped)
	} else {
		go d.engine()
	}
	return d
}

// Info implements driver.Device.
func (d *Disk) Info() driver.Info { return d.info }

// Attach implements driver.Device. Every region is reachable.
func (d *Disk) Attach(r *driver.Region) error {
	if st := d.State(); st == driver.StateClosed || st == driver.StateRemoved {
		return stateError("attach", d.info.Target, st)
	}
	if r.CPU() == nil {
		return base.Errorf("attach", d.info.Target, base.ErrNotSupported, "the simulated disk copies by CPU")
	}
	return r.SetHandle(d, func() {})
}

// Detach implements driver.Device.
func (d *Disk) Detach(r *driver.Region) error {
	d.lab.mu.Lock()
	defer d.lab.mu.Unlock()
	for _, c := range d.queue {
		for i := range c.req.Segs {
			if c.req.Segs[i].Region == r {
				return base.Errorf("detach", r.String(), base.ErrBusy, "a request to %s names it", d.info.Target)
			}
		}
	}
	return r.SetHandle(d, nil)
}

// Submit implements driver.Device.
func (d *Disk) Submit(ctx context.Context, b *driver.Batch) error {
	if err := b.Start(driver.WaitDone{}); err != nil {
		return err
	}
	if st := d.State(); st != driver.StateReady {
		b.Abandon()
		return stateError("submit", d.info.Target, st)
	}
	for i := range b.Reqs {
		r := &b.Reqs[i]
		err := driver.CheckRequest(&d.info, r)
		if err == nil && r.Op == driver.OpDiscard && d.opts.NoDiscard {
			err = base.Errorf("discard", d.info.Target, base.ErrNotSupported, "switched off")
		}
		if err == nil {
			err = checkAddresses(r, d.info.Target)
		}
		if err == nil {
			err = hold(r)
		}
		switch {
		case err != nil:
			d.count(func(s *driver.Stats) { s.Errors++ })
			b.End(i, 0, err)
			continue
		case r.Len == 0 && r.Op != driver.OpFlush: // nothing to do
			release(r, len(r.Segs))
			b.End(i, 0, nil)
			continue
		}
		d.submitOne(ctx, &command{batch: b, entry: i, req: r})
	}
	return nil
}

// memAlign is what segment addresses and lengths must be aligned to, in bytes.
const memAlign = 512

// checkAddresses refuses memory that does not begin at an aligned address.
func checkAddresses(r *driver.Request, target string) error {
	for i := range r.Segs {
		s := &r.Segs[i]
		b := s.Region.Bytes(s.Off, s.Len)
		if b == nil {
			return base.Errorf(r.Op.String(), target, base.ErrNotSupported, "the simulated disk copies by CPU")
		}
		if len(b) > 0 && reflect.ValueOf(b).Pointer()%memAlign != 0 {
			return base.Errorf(r.Op.String(), target, base.ErrMisaligned, "the address of segment %d", i)
		}
	}
	return nil
}

func hold(r *driver.Request) error {
	for i := range r.Segs {
		if err := r.Segs[i].Region.Hold(r.Segs[i].Gen); err != nil {
			release(r, i)
			return err
		}
	}
	return nil
}

func release(r *driver.Request, n int) {
	for i := range n {
		r.Segs[i].Region.Release()
	}
}

func payload(r *driver.Request) int64 {
	if r.Op == driver.OpRead || r.Op == driver.OpWrite {
		return r.Len
	}
	return 0
}

// submitOne waits for room and puts c in flight, or ends it.
func (d *Disk) submitOne(ctx context.Context, c *command) {
	for {
		d.lab.mu.Lock()
		if d.state != driver.StateReady || d.closing {
			st := d.state
			if st == driver.StateReady {
				st = driver.StateClosed
			}
			d.stats.Errors++
			d.lab.mu.Unlock()
			c.end(0, stateError(c.req.Op.String(), d.info.Target, st))
			return
		}
		if c.batch.Canceled() {
			d.stats.Errors++
			d.lab.mu.Unlock()
			c.end(0, c.batch.NotSent(c.req.Op, d.info.Target))
			return
		}
		full := len(d.queue) >= d.opts.Depth ||
			len(d.queue) > 0 && d.bytes+payload(c.req) > driver.MaxBytesInFlight
		if d.opts.NoLock && len(d.late) > 0 && c.req.Op == driver.OpWrite && d.rng.IntN(6) == 0 {
			d.landLate()
		}
		if !full && (len(d.late) == 0 || d.opts.NoLock) {
			d.start(c)
			if d.opts.Immediate {
				ended := d.runNow()
				d.lab.mu.Unlock()
				d.end(ended)
				return
			}
			d.work.Broadcast()
			d.lab.mu.Unlock()
			return
		}
		room, from := d.room, time.Now()
		d.lab.mu.Unlock()
		late := false
		select {
		case <-room:
		case <-c.batch.CancelC():
		case <-ctx.Done():
			late = true
		}
		d.count(func(s *driver.Stats) { s.RoomWait += time.Since(from) })
		if late {
			d.count(func(s *driver.Stats) { s.Errors++ })
			c.end(0, base.Errorf(c.req.Op.String(), d.info.Target, base.ErrTimeout, "no room in the queue: %w", ctx.Err()))
			return
		}
	}
}

// start puts c in flight. The lock is held.
func (d *Disk) start(c *command) {
	r := c.req
	d.queue = append(d.queue, c)
	d.bytes += payload(r)
	d.stats.Commands++
	d.stats.InFlight++
	d.stats.InFlightBytes += payload(r)
	switch r.Op {
	case driver.OpWrite:
		data := gather(r)
		c.w = &write{op: r.Op, lba: r.Off / d.opts.BlockSize, n: r.Len / d.opts.BlockSize,
			blocks: split(data, d.opts.BlockSize)}
		if d.lab.label != nil {
			c.w.label = d.lab.label(data)
		}
	case driver.OpDiscard:
		c.w = &write{op: r.Op, lba: r.Off / d.opts.BlockSize, n: r.Len / d.opts.BlockSize}
	case driver.OpWriteZeroes:
		n := r.Len / d.opts.BlockSize
		c.w = &write{op: r.Op, lba: r.Off / d.opts.BlockSize, n: n, blocks: make([]string, n)}
	}
	if c.w != nil {
		d.open = append(d.open, c.w)
	}
	c.submitted = d.lab.index + 1
	if r.Op != driver.OpRead {
		d.step(StepSubmit, c)
	}
}

// step records a step of c. The lock is held.
func (d *Disk) step(kind StepKind, c *command) {
	s := Step{Kind: kind, Disk: d.index, Op: c.req.Op, Off: c.req.Off, Len: c.req.Len}
	if c.w != nil {
		s.Label = c.w.label
	}
	d.lab.note(s)
}

// gather copies a write's payload out of the caller's memory.
func gather(r *driver.Request) string {
	var sb strings.Builder
	sb.Grow(int(r.Len))
	for i := range r.Segs {
		s := &r.Segs[i]
		sb.Write(s.Region.Bytes(s.Off, s.Len))
	}
	return sb.String()
}

// split cuts a payload into blocks; one of zeros takes no memory.
func split(data string, blockBytes int64) []string {
	out := make([]string, int64(len(data))/blockBytes)
	for i := range out {
		if b := data[int64(i)*blockBytes : int64(i+1)*blockBytes]; b != zeroBlock[:blockBytes] {
			out[i] = b
		}
	}
	return out
}

// zeroBlock is a block of zeros, as long as the largest block.
var zeroBlock = strings.Repeat("\x00", base.StoreBlock)

// end gives the command its answer. No lock is held.
func (c *command) end(done int64, err error) {
	release(c.req, len(c.req.Segs))
	c.batch.End(c.entry, done, err)
}

// State implements driver.Device.
func (d *Disk) State() driver.State {
	d.lab.mu.Lock()
	defer d.lab.mu.Unlock()
	return d.state
}

// Incarnation implements driver.Device.
func (d *Disk) Incarnation() uint64 {
	d.lab.mu.Lock()
	defer d.lab.mu.Unlock()
	return d.incarnation
}

// Health implements driver.Device.
func (d *Disk) Health(context.Context) (driver.Health, error) {
	d.lab.mu.Lock()
	defer d.lab.mu.Unlock()
	if d.final() {
		return driver.Health{}, stateError("ask", d.info.Target, d.state)
	}
	h := driver.Health{OK: d.state == driver.StateReady, TemperatureKelvin: -1, SparePercent: -1,
		UsedPercent: -1, MediaErrors: -1, ConsecutiveErrors: d.inARow, BytesWrittenByHost: -1}
	if d.inARow >= failuresCritical {
		h.OK, h.Critical = false, fmt.Sprintf("%d commands failed in a row", d.inARow)
	}
	return h, nil
}

// failuresCritical is how many failures in a row the health calls critical.
const failuresCritical = 5

// Stats implements driver.Device.
func (d *Disk) Stats() driver.Stats {
	d.lab.mu.Lock()
	defer d.lab.mu.Unlock()
	return d.stats
}

func (d *Disk) count(fn func(*driver.Stats)) {
	d.lab.mu.Lock()
	defer d.lab.mu.Unlock()
	fn(&d.stats)
}

// Faults lists what the disk saw that no user of a device may do: memory that
// changed while a write was in flight.
func (d *Disk) Faults() []string {
	d.lab.mu.Lock()
	defer d.lab.mu.Unlock()
	return append([]string(nil), d.faults...)
}

func (d *Disk) fault(format string, args ...any) {
	d.faults = append(d.faults, d.info.Target+": "+fmt.Sprintf(format, args...))
}

// stateError is the answer to a request in state st.
func stateError(op, target string, st driver.State) error {
	switch st {
	case driver.StateClosed:
		return base.Errorf(op, target, base.ErrClosed, "the device was closed")
	case driver.StateRemoved:
		return base.Errorf(op, target, base.ErrDeviceGone, "the device is gone")
	}
	return base.Errorf(op, target, base.ErrIsolated, "the device is %s; reset it", st)
}
