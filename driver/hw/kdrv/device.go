package kdrv

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/mmio"
	"github.com/ugds-store/ugds/internal/unix"
)

const (
	// noticeRoom is how many notices wait for a reader.
	noticeRoom = 4
	// startTries is how often a start that the kernel cut off is tried again.
	startTries = 8
	// closeLimit bounds the stop of Close: the longest CAP.TO, and a reset.
	closeLimit = 200 * time.Second
)

// Device is one controller. It implements hw.Device and hw.Notifier.
type Device struct {
	hw.Wall
	*hw.EventVectors

	fd     *unix.FD
	id     hw.ID
	info   unix.KdrvInfo
	bar    *mmio.BAR
	status []byte // the page that the kernel writes

	events  *unix.Event
	notices chan hw.Notice
	watcher sync.WaitGroup
	tell    sync.Mutex     // held while the state is read for a notice, and for told
	told    unix.KdrvState // what the last notice since the last start was about

	// ctl is held by a stop in the kernel, which may outlast the wait of who asked
	// for it, and by what must not meet one.
	ctl    sync.Mutex
	closed atomic.Bool
	live   atomic.Int64 // allocations and mappings
}

var (
	_ hw.Device   = (*Device)(nil)
	_ hw.Notifier = (*Device)(nil)
)

// ID implements hw.Device.
func (d *Device) ID() hw.ID { return d.id }

// Window is the size of the register window in bytes: BAR 0 up to the MSI-X table.
func (d *Device) Window() uint64 { return d.bar.Size() }

// state is what the kernel last said. It is one load.
func (d *Device) state() unix.KdrvState {
	return unix.KdrvState(mmio.LoadEntry32(d.status[unix.KdrvStatusState:]))
}

// revoked counts the regions that exporters took back.
func (d *Device) revoked() uint32 { return mmio.LoadEntry32(d.status[unix.KdrvStatusRevoked:]) }

// usable is an error when the kernel has cut the device off.
func (d *Device) usable(op string) error {
	if d.closed.Load() {
		return base.Errorf(op, d.id.Target, base.ErrClosed, "the device is closed")
	}
	switch d.state() {
	case unix.KdrvIsolated:
		return base.Errorf(op, d.id.Target, base.ErrIsolated, "the kernel cut it off: %s", d.why())
	case unix.KdrvGone:
		return base.Errorf(op, d.id.Target, base.ErrDeviceGone, "%s", d.why())
	}
	return nil
}

func (d *Device) why() unix.KdrvWhy {
	return unix.KdrvWhy(mmio.LoadEntry32(d.status[unix.KdrvStatusWhy:]))
}

// Load32 implements hw.Registers.
func (d *Device) Load32(off uint64) (uint32, error) {
	if err := d.usable("read registers of"); err != nil {
		return 0, err
	}
	return d.bar.Load32(off)
}

// Store32 implements hw.Registers.
func (d *Device) Store32(off uint64, v uint32) error {
	if err := d.usable("write registers of"); err != nil {
		return err
	}
	return d.bar.Store32(off, v)
}

// Load64 implements hw.Registers.
func (d *Device) Load64(off uint64) (uint64, error) {
	if err := d.usable("read registers of"); err != nil {
		return 0, err
	}
	return d.bar.Load64(off)
}

// Store64 implements hw.Registers.
func (d *Device) Store64(off, v uint64) error {
	if err := d.usable("write registers of"); err != nil {
		return err
	}
	return d.bar.Store64(off, v)
}

// Doorbell implements hw.Registers.
func (d *Device) Doorbell(off uint64) (hw.Doorbell, error) {
	b, err := d.bar.Doorbell(off)
	if err != nil {
		return nil, err
	}
	return &doorbell{d, b}, nil
}

type doorbell struct {
	d    *Device
	bell mmio.Doorbell
}

// Ring implements hw.Doorbell.
func (b *doorbell) Ring(v uint32) error {
	if b.d.closed.Load() || b.d.state() >= unix.KdrvIsolated {
		return b.d.usable("ring a doorbell of")
	}
	return b.bell.Ring(v)
}

// Start implements hw.Device. A device that the kernel cut off is stopped first: the
// kernel wants to hear that its owner has noticed. It waits for a reset by somebody else
// and for the recovery of the bus from an error.
func (d *Device) Start(ctx context.Context) error { return d.control(ctx, "start", d.start) }

// Stop implements hw.Device. When ctx ends first the kernel goes on by itself, and
// the next Stop waits for it.
func (d *Device) Stop(ctx context.Context) error { return d.control(ctx, "stop", d.stop) }

// control has the kernel do something that may outlast ctx. A start whose turn comes when
// ctx has ended is not done any more: it must not follow a stop that was asked for later.
func (d *Device) control(ctx context.Context, op string, do func(context.Context) error) error {
	done := make(chan error, 1)
	go func() {
		d.ctl.Lock()
		defer d.ctl.Unlock()
		done <- do(ctx)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return base.Errorf(op, d.id.Target, base.ErrTimeout, "%w", ctx.Err())
	}
}

// start asks the kernel. ctl is held.
func (d *Device) start(ctx context.Context) (err error) {
	for range startTries {
		if ctx.Err() != nil {
			return base.Errorf("start", d.id.Target, base.ErrTimeout, "%w", ctx.Err())
		}
		if d.state() == unix.KdrvIsolated {
			if err := d.stop(ctx); err != nil {
				return err
			}
		}
		if err := d.usable("start"); err != nil {
			return err
		}
		d.tell.Lock()
		d.told = unix.KdrvStopped
		d.tell.Unlock()
		err = unix.KdrvDoStart(d.fd)
		if e := unix.ErrnoOf(err); e == unix.EBUSY { // an earlier stop was the end of bus mastering alone
			if err := d.stop(ctx); err != nil {
				return err
			}
		} else if e != unix.ESTALE { // else it was cut off meanwhile
			break
		}
	}
	switch unix.ErrnoOf(err) {
	case unix.ESTALE:
		return base.Errorf("start", d.id.Target, base.ErrIsolated, "%s, %d times: %w", d.why(), startTries, err)
	case unix.EBUSY:
		return base.WithHint(base.Errorf("start", d.id.Target, base.ErrIsolated,
			"CC.EN and CSTS.RDY do not become 0, %d times: it may still use an earlier owner's queues: %w", startTries, err),
			"power the machine off and on")
	case unix.EIO:
		return base.WithHint(base.Errorf("start", d.id.Target, base.ErrIsolated, "the bus has not recovered from an error: %w", err),
			"read the kernel's log; if another reset of the device does not help, power the machine off and on")
	case unix.ENODEV:
		return base.Errorf("start", d.id.Target, base.ErrDeviceGone, "%w", err)
	}
	return base.Wrap("start", d.id.Target, err)
}

// stop asks the kernel. ctl is held.
func (d *Device) stop(ctx context.Context) error {
	if d.closed.Load() {
		return nil
	}
	a := unix.KdrvStop{}
	if end, ok := ctx.Deadline(); ok {
		a.TimeoutMs = uint32(max(min(time.Until(end).Milliseconds(), unix.KdrvStopMsMax), 1))
	}
	err := unix.KdrvDoStop(d.fd, &a)
	if unix.ErrnoOf(err) == unix.EIO {
		return base.Errorf("stop", d.id.Target, base.ErrTimeout,
			"neither CC.EN nor bus mastering nor a reset stopped it: %w", err)
	}
	return base.Wrap("stop", d.id.Target, err)
}

// arm makes interrupts of a vector raise an eventfd; -1 ends that. Of a device that is
// gone there is nothing to end.
func (d *Device) arm(n, fd int) error {
	err := unix.KdrvSetVector(d.fd, n, fd)
	switch {
	case unix.ErrnoOf(err) != unix.ENODEV:
		return err
	case fd < 0:
		return nil
	}
	return base.Errorf("arm an interrupt of", d.id.Target, base.ErrDeviceGone, "%w", err)
}

// Notices implements hw.Notifier.
func (d *Device) Notices() <-chan hw.Notice { return d.notices }

// Stopped implements hw.Notifier.
func (d *Device) Stopped() bool { return d.state() == unix.KdrvIsolated }

// watch turns changes of the status page into notices, until Close.
func (d *Device) watch() {
	defer close(d.notices)
	for d.events.Wait(context.Background()) == nil {
		d.notify()
	}
}

// notify gives notice of a state once since the last start: the event of one change may
// be read after the next.
func (d *Device) notify() {
	d.tell.Lock()
	defer d.tell.Unlock()
	s := d.state()
	n := map[unix.KdrvState]hw.Notice{unix.KdrvIsolated: hw.NoticeStopped, unix.KdrvGone: hw.NoticeGone}[s]
	if n == 0 || s == d.told {
		return
	}
	d.told = s
	select {
	case d.notices <- n:
	default:
	}
}

// Close implements hw.Device. When the controller cannot be stopped, the kernel keeps
// its memory pinned, and this device open.
func (d *Device) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if d.closed.Load() {
		return nil
	}
	if err := d.stop(ctx); err != nil {
		return base.Wrap("close", d.id.Target, err)
	}
	d.closed.Store(true)
	err := errors.Join(d.EventVectors.Close(), d.release())
	if n := d.live.Load(); n > 0 {
		err = errors.Join(err, base.Errorf("close", d.id.Target, base.ErrBusy,
			"%d pieces of memory are not given back, and nobody else can open it until they are", n))
	}
	return err
}

// release ends the watcher, unmaps and closes the node.
func (d *Device) release() error {
	var err error
	if d.events != nil {
		err = d.events.Close()
	}
	d.watcher.Wait()
	return errors.Join(err, d.bar.Close(), unix.Munmap(d.status), d.fd.Close())
}
