package file

import (
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// deadlineOf is the device deadline of an operation.
func (d *Device) deadlineOf(op driver.Op) time.Duration {
	if d.hooks.Deadline != nil {
		return d.hooks.Deadline(op)
	}
	switch op {
	case driver.OpFlush:
		return driver.FlushDeadline
	case driver.OpDiscard, driver.OpWriteZeroes:
		return driver.DiscardDeadline
	}
	return driver.ReadWriteDeadline
}

// watch judges the device deadlines, and reaps when nobody waits, so that
// memory and extents of an abandoned batch come back.
func (d *Device) watch() {
	defer d.watchW.Done()
	every := watchEvery
	if d.hooks.hooked() || d.hooks.Deadline != nil {
		every = watchHooked
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-d.watchQ:
			return
		case <-t.C:
			d.unhold()
			d.eng.tick()
			d.judgeDeadlines()
		}
	}
}

// unhold asks again about completions that a test held back.
func (d *Device) unhold() {
	d.mu.Lock()
	held := d.held
	d.held = nil
	again := false
	for _, h := range held {
		again = d.finish(h.c, h.res) || again
	}
	d.mu.Unlock()
	if again {
		d.eng.kick()
	}
}

// judgeDeadlines isolates the device when a command passed its deadline and a
// reap that began after that did not find it (I4): a program that was itself
// stopped for a while must not blame the device.
func (d *Device) judgeDeadlines() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.State() != driver.StateReady {
		return
	}
	for i := range d.cmds {
		c := &d.cmds[i]
		if !c.busy || c.late || c.deadline >= d.reaped {
			continue
		}
		c.late = true
		d.isolate(base.Errorf(c.kind.String(), d.h.info.Target, base.ErrTimeout,
			"offset %d did not end within %v", c.off, d.deadlineOf(c.kind)))
		return
	}
}
