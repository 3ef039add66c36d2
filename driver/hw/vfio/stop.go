package vfio

import (
	"context"
	"time"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// Start implements hw.Device.
func (d *Device) Start(ctx context.Context) error {
	if err := d.open("start"); err != nil {
		return err
	}
	if d.config.gone() {
		return base.Errorf("start", d.id.Target, base.ErrDeviceGone, "its configuration reads as ones")
	}
	d.failed.Store(false)
	return d.config.setMaster(true)
}

// Stop implements hw.Device: bus mastering off, no transaction pending, then a
// function-level reset where the device has one. Without one the registers stay as
// they are.
func (d *Device) Stop(ctx context.Context) error {
	if err := d.open("stop"); err != nil {
		return err
	}
	if d.config.gone() {
		return nil
	}
	masterErr := d.config.setMaster(false)
	quiet := masterErr == nil && d.awaitQuiet(ctx)
	if d.link.flags&unix.VFIODeviceReset != 0 {
		err := d.resetFunction(ctx)
		if err == nil || d.config.gone() {
			return nil
		}
		return err
	}
	switch {
	case quiet || d.config.gone():
		return nil
	case masterErr != nil:
		return masterErr
	}
	return base.Errorf("stop", d.id.Target, base.ErrTimeout, "transactions stay pending, and it cannot be reset: %w", ctx.Err())
}

// open refuses work on a closed device.
func (d *Device) open(what string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return base.Errorf(what, d.id.Target, base.ErrClosed, "the device is closed")
	}
	return nil
}

// awaitQuiet waits until no transaction is pending; false when ctx ends first.
func (d *Device) awaitQuiet(ctx context.Context) bool {
	for {
		pending, err := d.config.pending(d.express)
		if err != nil || !pending {
			return err == nil
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pendingEvery):
		}
	}
}

// resetFunction resets the function. The kernel waits for a device that has gone for
// more than a minute, and cannot be told not to: then the reset goes on without the
// caller, and the next one waits for the same.
func (d *Device) resetFunction(ctx context.Context) error {
	d.stopMu.Lock()
	if d.reset == nil {
		done := make(chan struct{})
		d.reset = done
		d.work.Go(func() {
			err := unix.VFIOReset(d.link.dev)
			d.stopMu.Lock()
			d.result, d.reset = err, nil
			d.stopMu.Unlock()
			close(done)
		})
	}
	done := d.reset
	d.stopMu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
		return base.Errorf("reset", d.id.Target, base.ErrTimeout, "%w", ctx.Err())
	}
	d.stopMu.Lock()
	defer d.stopMu.Unlock()
	return base.Wrap("reset", d.id.Target, d.result)
}
