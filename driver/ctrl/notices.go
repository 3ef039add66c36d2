package ctrl

import (
	"context"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/internal/base"
)

// releaseLimit bounds the wait for requests in flight when the system asks for the
// device; then they are cut off.
const releaseLimit = 10 * time.Second

// listen acts on what the system says of the device, until Close.
func (d *Device) listen(notices <-chan hw.Notice) {
	for {
		select {
		case <-d.quit:
			return
		case n, ok := <-notices:
			if !ok {
				return
			}
			d.notice(n)
		}
	}
}

func (d *Device) notice(n hw.Notice) {
	switch n {
	case hw.NoticeRelease:
		d.giveBack()
	case hw.NoticeStopped:
		d.mu.Lock()
		defer d.mu.Unlock()
		if err := d.cutOff(); err != nil { // else a reset has dealt with it
			d.isolateHeld(err)
		}
	case hw.NoticeGone:
		d.isolate(base.Errorf("use", d.info.Target, base.ErrDeviceGone, "%s", n))
	}
}

// cutOff is an error when the system has stopped the device and no start has followed.
func (d *Device) cutOff() error {
	if n, ok := d.hw.(hw.Notifier); ok && n.Stopped() {
		return base.Errorf("use", d.info.Target, base.ErrIsolated, "%s", hw.NoticeStopped)
	}
	return nil
}

// start starts the hardware, for the bring-up. Notices of before were about what this has
// ended.
func (d *Device) start(ctx context.Context) error {
	if err := d.hw.Start(ctx); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken.Store(false)
	return d.cutOff()
}

// giveBack ends the use of a device that the system wants: nothing new is taken, what
// is in flight ends, the controller writes its cache and is closed, and the device is
// removed. When this does not work the notice comes again.
func (d *Device) giveBack() {
	cause := base.Errorf("use", d.info.Target, base.ErrDeviceGone, "%s", hw.NoticeRelease)
	ctx, cancel := context.WithTimeout(context.Background(), releaseLimit)
	defer cancel()
	select {
	case d.ctl <- struct{}{}:
	case <-d.quit: // Close has it, and waits for this
		return
	case <-ctx.Done():
		return
	}
	defer func() { <-d.ctl }()
	if s := d.State(); s == driver.StateClosed || s == driver.StateRemoved {
		return
	}
	d.mu.Lock()
	if d.cause == nil {
		d.cause = cause
	}
	d.mu.Unlock()
	d.closing.Store(true)
	if d.drain(ctx) != nil {
		d.isolate(cause)
		d.mu.Lock()
		stopped := d.stopped
		d.mu.Unlock()
		select {
		case <-stopped:
		case <-time.After(stopLimit):
			d.closing.Store(false)
			return
		}
	}
	ready, left := d.leave(driver.StateRemoved, cause)
	if !left {
		d.closing.Store(false)
		return
	}
	ctx, cancel = context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	_ = d.giveUp(ctx, ready) // the events have told that the device is gone
}
