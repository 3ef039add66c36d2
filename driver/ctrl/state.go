package ctrl

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// stopLimit bounds one attempt to stop the hardware, and stopAgain is the pause
// before the next.
const (
	stopLimit = 10 * time.Second
	stopAgain = 50 * time.Millisecond
)

// statusOf is the status inside err, or nil: then the command has not ended.
func statusOf(err error) *nvme.StatusError {
	var s *nvme.StatusError
	if errors.As(err, &s) {
		return s
	}
	return nil
}

// State implements driver.Device.
func (d *Device) State() driver.State { return driver.State(d.state.Load()) }

// Incarnation implements driver.Device.
func (d *Device) Incarnation() uint64 { return d.incarnation.Load() }

// setState changes the state and tells subscribers. The caller holds mu.
func (d *Device) setState(s driver.State, cause error) {
	d.state.Store(uint32(s))
	d.events.post(driver.Event{State: s, Cause: cause})
}

// refusal is why the device takes no requests, or nil.
func (d *Device) refusal(what string) error {
	if d.State() == driver.StateReady && !d.closing.Load() {
		return nil
	}
	return d.gone(what)
}

// gone is the error for work that the present state does not allow.
func (d *Device) gone(what string) error {
	d.mu.Lock()
	cause := d.cause
	d.mu.Unlock()
	switch s := d.State(); {
	case s == driver.StateReady && cause != nil:
		return base.Wrap(what, d.info.Target, cause)
	case s == driver.StateClosed || s == driver.StateReady:
		return base.Errorf(what, d.info.Target, base.ErrClosed, "the device is closed")
	case s == driver.StateRemoved:
		return base.Errorf(what, d.info.Target, base.ErrDeviceGone, "%w", cause)
	default:
		return base.WithHint(base.Errorf(what, d.info.Target, base.ErrIsolated, "%s: %w", s, cause), "reset the device")
	}
}

// isolate stops the use of the controller, for a reason that is told with every
// refused request. Commands stay in flight until it is confirmed stopped, which a
// goroutine of its own sees to. It may be called under the lock of a queue.
func (d *Device) isolate(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.isolateHeld(cause)
}

// isolateIn is isolate for a fault that was seen in an incarnation: a reset that
// has begun since is not disturbed.
func (d *Device) isolateIn(incarnation uint64, cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if incarnation == d.incarnation.Load() {
		d.isolateHeld(cause)
	}
}

// isolateHeld is isolate for a caller that holds mu.
func (d *Device) isolateHeld(cause error) {
	switch d.State() {
	case driver.StateReady:
	case driver.StateResetting:
		d.cause = cause
		d.broken.Store(true)
		return
	default:
		return
	}
	d.cause = cause
	d.stopped = make(chan struct{})
	d.incarnation.Add(1)
	d.setState(driver.StateIsolated, cause)
	d.work.Go(d.stopAndRelease)
}

// stopAndRelease stops the controller, as long as that takes, and then ends every
// command, exactly once.
func (d *Device) stopAndRelease() {
	d.killQueues()
	for {
		removed, err := d.quiesce()
		if err == nil {
			d.mu.Lock()
			if removed {
				d.setState(driver.StateRemoved, d.cause)
			}
			cause := base.Errorf("complete on", d.info.Target, base.ErrIsolated, "%w", d.cause)
			stopped := d.stopped
			d.mu.Unlock()
			for _, q := range d.allQueues() {
				q.abandon(cause)
			}
			d.freeKept()
			close(stopped)
			return
		}
		select {
		case <-d.quit:
			return
		case <-time.After(stopAgain):
		}
	}
}

// allQueues are the admin queue and the I/O queues that there are.
func (d *Device) allQueues() (out []*queue) {
	if q := d.adminQ.Load(); q != nil {
		out = append(out, q)
	}
	if qs := d.queues.Load(); qs != nil {
		out = append(out, *qs...)
	}
	return out
}

// killQueues ends all work on the queues, so that no doorbell is written while the
// controller stops.
func (d *Device) killQueues() {
	for _, q := range d.allQueues() {
		q.kill()
	}
}

// quiesce stops the controller: by clearing EN and waiting for RDY = 0, or else by
// the hardware. nil means that it reaches no memory any more.
func (d *Device) quiesce() (removed bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	go func() {
		select {
		case <-d.quit:
			cancel()
		case <-ctx.Done():
		}
	}()
	if v, err := d.hw.Load32(nvme.RegCC); err == nil && v != ^uint32(0) {
		err = d.hw.Store32(nvme.RegCC, uint32(nvme.CC(v).Disabled()))
		if err == nil {
			err = d.wait(ctx, "RDY = 0", d.timeout(), func(s nvme.CSTS) bool { return !s.Ready() && !s.Gone() })
		}
		if err == nil {
			return false, nil
		}
	}
	if err := d.hw.Stop(ctx); err != nil {
		return false, err
	}
	v, err := d.hw.Load32(nvme.RegCSTS)
	return err != nil || nvme.CSTS(v).Gone(), nil
}

// lockCtl takes the right to Reset or Close.
func (d *Device) lockCtl(ctx context.Context, what string) error {
	if d.tryCtl() { // even when ctx has ended
		return nil
	}
	select {
	case d.ctl <- struct{}{}:
		return nil
	case <-ctx.Done():
		return base.Errorf(what, d.info.Target, base.ErrBusy, "a reset or close is in progress: %w", ctx.Err())
	}
}

// Reset implements driver.Device: it waits until the controller was confirmed
// stopped and every request has ended, and brings it up again.
func (d *Device) Reset(ctx context.Context) error {
	if err := d.lockCtl(ctx, "reset"); err != nil {
		return err
	}
	defer func() { <-d.ctl }()
	d.mu.Lock()
	state, stopped := d.State(), d.stopped
	d.mu.Unlock()
	switch state {
	case driver.StateReady:
		return nil
	case driver.StateIsolated:
	default:
		return d.gone("reset")
	}
	select {
	case <-stopped:
	case <-ctx.Done():
		return base.Errorf("reset", d.info.Target, base.ErrTimeout, "the controller has not stopped: %w", ctx.Err())
	}
	d.mu.Lock()
	if d.State() != driver.StateIsolated { // it has gone meanwhile
		d.mu.Unlock()
		return d.gone("reset")
	}
	cause := d.cause
	d.setState(driver.StateResetting, cause)
	d.mu.Unlock()
	d.teardown()
	err := d.bringUp(ctx)
	if err != nil {
		err = d.undo(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.cause = err
		if errors.Is(err, base.ErrDeviceGone) {
			d.setState(driver.StateRemoved, err)
		} else {
			d.setState(driver.StateIsolated, err)
		}
		return base.Wrap("reset", d.info.Target, err)
	}
	cause, d.cause = d.cause, nil
	d.count.inRow.Store(0)
	d.setState(driver.StateReady, nil)
	if d.broken.Swap(false) { // behind the last look of the bring-up
		d.isolateHeld(cause)
		return base.Wrap("reset", d.info.Target, cause)
	}
	return nil
}

// undo stops a controller whose bring-up failed and frees what it was told about.
// When it cannot be stopped the memory stays, and the next Reset tries again.
func (d *Device) undo(cause error) error {
	d.killQueues()
	if _, err := d.quiesce(); err != nil {
		d.mu.Lock()
		d.stopped = make(chan struct{})
		d.mu.Unlock()
		d.work.Go(d.stopAndRelease)
		return errors.Join(cause, err)
	}
	for _, q := range d.allQueues() {
		q.abandon(cause)
	}
	d.teardown()
	return cause
}

// teardown frees the queues. The controller is stopped and nothing is in flight.
func (d *Device) teardown() {
	queues := d.allQueues()
	d.adminQ.Store(nil)
	d.share([]*queue{})
	d.aers = nil
	d.retire(queues)
	d.mu.Lock()
	retired := d.retired
	d.retired = nil
	d.mu.Unlock()
	for _, q := range retired {
		q.kill()
	}
	d.reapers.Wait()
	for _, q := range retired {
		q.mu.Lock()
		q.release()
		q.mu.Unlock()
	}
	d.freeKept()
}

// retire keeps queues that the controller may know until it is stopped.
func (d *Device) retire(queues []*queue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.retired = append(d.retired, queues...)
}

// keptBuffer is memory of an admin command for which nobody waits any more.
type keptBuffer struct {
	*hw.Buffer
	w *adminWait
}

// keep holds memory that an admin command may still fill, until the controller is
// stopped or, at the latest when the next one is kept, the command has ended.
func (d *Device) keep(b *hw.Buffer, w *adminWait) {
	var over []keptBuffer
	d.mu.Lock()
	d.kept = slices.DeleteFunc(d.kept, func(k keptBuffer) bool {
		if k.w.inFlight() {
			return false
		}
		over = append(over, k)
		return true
	})
	d.kept = append(d.kept, keptBuffer{b, w})
	d.mu.Unlock()
	for _, k := range over {
		k.Free()
	}
}

func (d *Device) freeKept() {
	d.mu.Lock()
	kept := d.kept
	d.kept = nil
	d.mu.Unlock()
	for _, b := range kept {
		b.Free()
	}
}
