package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// The operations of a DeviceCase.
const (
	OpRead  = "read"
	OpWrite = "write"
)

// How completions are noticed, as DeviceCase.Completion names it.
const (
	Polling   = "polling"
	Interrupt = "interrupt"
	Hybrid    = "hybrid"
)

// Completions are the ways that a controller can be asked for.
var Completions = []string{Polling, Interrupt, Hybrid}

// Limits of a DeviceCase.
const (
	MaxDeviceDepth   = 4096 // requests in flight of one thread
	MaxDeviceThreads = 64
	MaxDeviceSize    = 16 * base.MiB // of a request
	maxDeviceMemory  = base.GiB      // of all requests in flight
	maxRequests      = 1 << 24
	// How much of a device is written first, and used: of a model in memory, and of
	// one that may cache what it holds. Bytes.
	modelSpan  = 64 * base.MiB
	deviceSpan = base.GiB
)

// DeviceCase is one measurement of a device, without a store.
type DeviceCase struct {
	Op         string `json:"op"`
	Size       int64  `json:"size"`       // of a request, bytes
	Threads    int    `json:"threads"`    // callers, each with requests of its own
	Depth      int    `json:"depth"`      // requests in flight of each thread
	Batch      int    `json:"batch"`      // requests in one call; each thread has Depth / Batch calls in flight
	Completion string `json:"completion"` // of controllers; "" for what the kernel drives
	Bytes      int64  `json:"bytes"`      // to move at least, as was asked for; DeviceRow.Bytes were moved
	Seed       uint64 `json:"seed"`
}

// fillDepth is how often the requests of a thread fill its depth at least.
const fillDepth = 4

// each is how many requests of each thread move Bytes.
func (c *DeviceCase) each() int64 { return c.Bytes / c.Size / int64(c.Threads) }

// deep tells whether filling the depth moves more than Bytes.
func (c *DeviceCase) deep() bool { return c.each() < fillDepth*int64(c.Depth) }

// requests is how many each thread makes: whole batches, and enough to fill the
// depth several times.
func (c *DeviceCase) requests() int {
	n := max(c.each(), fillDepth*int64(c.Depth), 1)
	return int(base.AlignUp(min(n, maxRequests), int64(c.Batch)))
}

// window is how many batches each thread keeps in flight.
func (c *DeviceCase) window() int { return max(c.Depth/c.Batch, 1) }

func (c *DeviceCase) check(in driver.Info) error {
	bad := func(format string, args ...any) error {
		return base.Errorf("bench", in.Target, base.ErrInvalid, format, args...)
	}
	switch {
	case c.Op != OpRead && c.Op != OpWrite:
		return bad("operation %q: read and write are possible", c.Op)
	case c.Size < in.BlockSize || c.Size > MaxDeviceSize || c.Size%in.BlockSize != 0:
		return bad("requests of %d bytes: multiples of its blocks of %d bytes, up to %s, are possible", c.Size, in.BlockSize, base.FormatBytes(MaxDeviceSize))
	case c.Threads < 1 || c.Threads > MaxDeviceThreads:
		return bad("%d callers, 1 to %d are possible", c.Threads, MaxDeviceThreads)
	case c.Batch < 1 || c.Depth < c.Batch || c.Depth > MaxDeviceDepth:
		return bad("%d requests in one call, %d in flight: 1 to %d are possible, and no more in a call than in flight", c.Batch, c.Depth, MaxDeviceDepth)
	case int64(c.Threads)*int64(c.window()*c.Batch)*c.Size > maxDeviceMemory:
		return bad("%d callers with %d requests of %s in flight; at most %s in all", c.Threads, c.Depth, base.FormatBytes(c.Size), base.FormatBytes(maxDeviceMemory))
	case 2*c.Size > in.Capacity:
		return bad("requests of %s on a device of %s", base.FormatBytes(c.Size), base.FormatBytes(in.Capacity))
	}
	return nil
}

// DevicePlan is what RunDevice measures.
type DevicePlan struct {
	Target string
	Cases  []DeviceCase
	// Overwrite allows to write to a device that outlives the bench. Without it
	// cases that write are refused, and bytes that are read are not compared.
	Overwrite bool
	// Progress hears of each case before it is measured. May be nil.
	Progress func(done int)
}

// device is an open device and what a case needs to know of it.
type device struct {
	driver.Device
	model    *sim.Sim             // nil if it is none
	now      func() time.Duration // the clock of the latencies
	virtual  bool
	span     int64 // bytes from the beginning that are used
	prepared bool  // each block of the span says where it is
	procs    int   // to restore
}

// RunDevice measures every case, one after the other, on the device that Target
// names. Cases with the same way of completion share an open device.
func RunDevice(ctx context.Context, p DevicePlan) (r *DeviceReport, err error) {
	r = &DeviceReport{Version: Version, Target: p.Target, Began: time.Now().UTC(), Machine: describeMachine("."), Rows: []DeviceRow{}}
	var d *device
	shut := func() error {
		if d == nil {
			return nil
		}
		open := d
		d = nil
		return open.shut(ctx)
	}
	defer func() { err = errors.Join(err, shut()) }()
	for i := range p.Cases {
		c := &p.Cases[i]
		if p.Progress != nil {
			p.Progress(i)
		}
		if d == nil || c.Completion != p.Cases[i-1].Completion {
			if err := shut(); err != nil {
				return nil, err
			}
			if d, err = openDevice(ctx, &p, c); err != nil {
				return nil, err
			}
			r.describe(d)
			for k := range p.Cases[i:] { // better now than after the first ones
				if err := p.Cases[i+k].check(d.Info()); err != nil {
					return nil, err
				}
			}
		}
		d.settle()
		row, err := d.measure(ctx, c)
		if err != nil {
			return nil, err
		}
		r.Rows = append(r.Rows, *row)
	}
	r.Seconds = time.Since(r.Began).Seconds()
	return r, nil
}

// openDevice opens the target for a case and what comes after it.
func openDevice(ctx context.Context, p *DevicePlan, c *DeviceCase) (d *device, err error) {
	t, err := probe.Parse(p.Target)
	if err != nil {
		return nil, err
	}
	d = &device{}
	path, _, onFile := t.File()
	memory := t.Scheme == "sim" && !onFile
	writes := false
	for i := range p.Cases {
		writes = writes || p.Cases[i].Op == OpWrite
	}
	if c.Completion != "" && t.Scheme == "file" {
		return nil, base.Errorf("bench", p.Target, base.ErrInvalid, "the kernel drives it: there is no choice of completion")
	}
	if (writes || p.Overwrite) && !memory {
		holds, err := CheckRaw(ctx, p.Target, 0)
		if err != nil {
			return nil, err
		}
		if !p.Overwrite {
			if holds == "" {
				holds = "nothing: it is blank"
			}
			return nil, base.WithHint(base.Errorf("bench", p.Target, base.ErrInvalid, "it would be overwritten, and holds %s", holds), "--yes does it")
		}
	}
	if t.Scheme == "sim" {
		err = d.openModel(ctx, p, c, path, p.Overwrite)
	} else {
		d.Device, err = probe.Open(ctx, p.Target, probe.Options{Ctrl: p.controller(c),
			File: file.Options{Owner: "ugdsctl bench", ReadOnly: !p.Overwrite}})
	}
	if err != nil {
		return nil, err
	}
	if d.now == nil {
		begin := time.Now()
		d.now = func() time.Duration { return time.Since(begin) }
	}
	d.span = d.Info().Capacity
	switch {
	case memory:
		d.span = min(d.span, modelSpan)
	case p.Overwrite:
		d.span = min(d.span, deviceSpan)
	default:
		return d, nil
	}
	if err := d.prepare(ctx); err != nil {
		return nil, errors.Join(err, d.shut(ctx))
	}
	d.prepared = true
	return d, nil
}

// controller are the options of a controller for a case: deep queues, so that they
// are not what limits.
func (p *DevicePlan) controller(c *DeviceCase) ctrl.Options {
	o := ctrl.Options{Depth: 255,
		Mode: map[string]ctrl.Mode{Polling: ctrl.Polled, Interrupt: ctrl.Interrupts, Hybrid: ctrl.Hybrid}[c.Completion]}
	for i := range p.Cases {
		o.Depth = max(o.Depth, min(p.Cases[i].Depth, ctrl.MaxDepth))
	}
	o.Latency = o.Depth
	return o
}

// openModel opens a controller model. On its virtual clock, all threads take turns
// on one processor, and time stands still until each has had its turn.
func (d *device) openModel(ctx context.Context, p *DevicePlan, c *DeviceCase, path string, write bool) error {
	cfg, err := sim.ParseTarget(p.Target)
	if err != nil {
		return err
	}
	if path != "" { // somebody's: it must be there, and is only read without leave
		if _, err := unix.StatPath(path); err == unix.ENOENT {
			return file.NotFound(path, err)
		}
		cfg.Namespaces[0].ReadOnly = !write
	}
	o := p.controller(c)
	if d.virtual = !cfg.Real; d.virtual {
		if c.Completion != Polling {
			return base.WithHint(base.Errorf("bench", p.Target, base.ErrInvalid, "%s: its clock is virtual, and waking up takes no time there", c.Completion),
				"clock=real shows what interrupts cost")
		}
		if cfg.Service == sim.ServiceZero {
			return base.WithHint(base.Errorf("bench", p.Target, base.ErrInvalid, "its clock is virtual, and its commands take no time there"),
				"service=fixed gives them some; clock=real measures this computer")
		}
		threads := 1
		for i := range p.Cases {
			threads = max(threads, p.Cases[i].Threads)
		}
		cfg.Patience, o.Watch = 4*(threads+1), -1 // a watcher would look by another clock
	}
	s, err := sim.Open(cfg)
	if err != nil {
		return err
	}
	dev, err := ctrl.Open(ctx, s, o)
	if err != nil {
		return err
	}
	d.Device, d.model = dev, s
	if d.virtual {
		d.now = s.Now
		d.procs = runtime.GOMAXPROCS(1)
	}
	return nil
}

// settle lets time of the device pass until a controller has forgotten the small
// requests of the case before, so that no case depends on which it follows.
func (d *device) settle() {
	if !d.virtual {
		time.Sleep(ctrl.SmallMemory)
		return
	}
	for end := d.now() + ctrl.SmallMemory; d.now() < end; {
		d.model.Pause(end)
	}
}

func (d *device) shut(ctx context.Context) error {
	if d.procs > 0 {
		runtime.GOMAXPROCS(d.procs)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	err := d.Close(ctx)
	if d.model == nil {
		return err
	}
	for _, v := range d.model.Violations() {
		err = errors.Join(err, base.Errorf("bench", d.Info().Target, base.ErrCorrupt, "the driver broke the specification: %s", v))
	}
	return err
}

// clock says by which clock latencies are told.
func (d *device) clock() string {
	if d.virtual {
		return modelClock
	}
	return wallClock
}

// The clocks of DeviceRow.Clock.
const (
	modelClock = "model"
	wallClock  = "wall"
)

// stamp is what the first bytes of a block at off hold.
func stamp(seed uint64, off int64) uint64 { return (uint64(off) + 1) * (seed*2 + 0x9e3779b97f4a7c15) }

// stampSeed makes what a bench writes differ from what others do.
const stampSeed = 0x75474453

// prepare writes the span: each block then says where it is.
func (d *device) prepare(ctx context.Context) error {
	const step = 4 * base.MiB
	r, err := driver.AllocRegion(step, "bench prepare")
	if err != nil {
		return err
	}
	defer r.Close()
	block := d.Info().BlockSize
	d.span -= d.span % step
	if d.span == 0 {
		return base.Errorf("bench", d.Info().Target, base.ErrInvalid, "the device has %s, at least %s are needed", base.FormatBytes(d.Info().Capacity), base.FormatBytes(step))
	}
	for off := int64(0); off < d.span; off += step {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		stampAll(r.Bytes(0, step), off, block)
		err := driver.Do(ctx, d, driver.Request{Op: driver.OpWrite, Off: off, Len: step, Segs: []driver.Seg{r.Seg(0, step)}})
		if err != nil {
			return err
		}
	}
	return driver.Flush(ctx, d)
}

func stampAll(b []byte, off, block int64) {
	for at := int64(0); at < int64(len(b)); at += block {
		le.PutUint64(b[at:], stamp(stampSeed, off+at))
	}
}

// checkStamps compares what was read at off.
func checkStamps(target string, b []byte, off, block int64) error {
	for at := int64(0); at < int64(len(b)); at += block {
		if got, want := le.Uint64(b[at:]), stamp(stampSeed, off+at); got != want {
			return base.Errorf("compare", fmt.Sprintf("%s at %d", target, off+at), base.ErrCorrupt, "other bytes than were written")
		}
	}
	return nil
}
