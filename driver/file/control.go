package file

import (
	"context"
	"errors"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// lockCtl takes the right to Reset or Close.
func (d *Device) lockCtl(ctx context.Context, what string) error {
	select {
	case d.ctl <- struct{}{}:
		return nil
	default:
	}
	select {
	case d.ctl <- struct{}{}:
		return nil
	case <-ctx.Done():
		return base.Errorf(what, d.h.info.Target, base.ErrBusy, "a reset or close is in progress: %w", ctx.Err())
	}
}

// Reset implements driver.Device: it waits until the kernel gave every request
// back, then takes requests again. A ready device is left as it is. When ctx
// ends first the device stays isolated (ErrTimeout).
func (d *Device) Reset(ctx context.Context) error {
	if err := d.lockCtl(ctx, "reset"); err != nil {
		return err
	}
	defer func() { <-d.ctl }()
	d.mu.Lock()
	if d.State() != driver.StateIsolated {
		err := d.refusal("reset")
		d.mu.Unlock()
		return err
	}
	cause := d.cause
	d.setState(driver.StateResetting, cause)
	d.mu.Unlock()
	err := d.eng.await(ctx, (*idleGoal)(d), d.idleC, nil)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.State() != driver.StateResetting: // it was isolated again, or is gone
		return base.Errorf("reset", d.h.info.Target, base.ErrIsolated, "%w", d.cause)
	case err != nil && d.requests > 0:
		d.setState(driver.StateIsolated, cause)
		return base.Errorf("reset", d.h.info.Target, base.ErrTimeout,
			"%d requests have not landed: %w", d.requests, err)
	}
	d.failed, d.cause = 0, nil
	d.setState(driver.StateReady, nil)
	return nil
}

// Close implements driver.Device. What was written is flushed. Closing twice is
// harmless.
func (d *Device) Close(ctx context.Context) error {
	if err := d.lockCtl(ctx, "close"); err != nil {
		return err
	}
	defer func() { <-d.ctl }()
	d.mu.Lock()
	if d.State() == driver.StateClosed {
		d.mu.Unlock()
		return nil
	}
	d.closing = true
	d.mu.Unlock()
	if err := d.drain(ctx); err != nil {
		return err
	}
	flushErr := d.lastFlush(ctx)
	if errors.Is(flushErr, base.ErrBusy) {
		return flushErr
	}
	close(d.watchQ)
	d.watchW.Wait()
	d.eng.close()
	d.iovs.Free()
	d.zeroes.free()
	d.mu.Lock()
	d.setState(driver.StateClosed, nil)
	d.mu.Unlock()
	d.h.release()
	return flushErr
}

// drain waits until nothing is in flight; ErrBusy, and the device is open again,
// when ctx ends first.
func (d *Device) drain(ctx context.Context) error {
	err := d.eng.await(ctx, (*idleGoal)(d), d.idleC, nil)
	if err == nil || (*idleGoal)(d).Ended() {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closing = false
	return base.WithHint(base.Errorf("close", d.h.info.Target, base.ErrBusy,
		"%d requests in flight: %w", d.requests, err), "wait for them and close again")
}

// lastFlush makes durable what was written: an orderly close loses nothing. When
// ctx ends first the device is open again (ErrBusy).
func (d *Device) lastFlush(ctx context.Context) error {
	d.mu.Lock()
	need := d.written && d.State() == driver.StateReady
	d.mu.Unlock()
	if !need {
		return nil
	}
	b := driver.Batch{Reqs: []driver.Request{{Op: driver.OpFlush}}}
	if err := d.submit(ctx, &b, true); err != nil {
		return err
	}
	if err := b.Wait(ctx); err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.closing = false
		return base.WithHint(base.Errorf("close", d.h.info.Target, base.ErrBusy, "the last flush: %w", err),
			"close again")
	}
	return b.Err()
}
