package ctrl

import (
	"context"
	"errors"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// checkEvery is after how many polls without a completion a poller looks at CSTS:
// a register read takes about a microsecond.
const checkEvery = 1024

// spins is how many polls without a completion a waiter makes before it looks at
// anything else: at the clock, whose reading takes longer than a poll, the state and
// its context. From then on it pauses after each.
const spins = 32

// serve reaps when an interrupt says so, until the vector is closed.
func (q *queue) serve() {
	for q.vec.Wait(context.Background()) == nil {
		q.mu.Lock()
		n := q.reap()
		q.mu.Unlock()
		if n > 0 {
			q.dev.signalRoom()
		}
	}
}

// signalRoom wakes submitters that wait for room without polling.
func (d *Device) signalRoom() {
	d.latency.line.signal()
	d.deep.line.signal()
}

// pollOnce reaps every queue, or pauses.
func (d *Device) pollOnce() {
	if n, due := d.pollQueues(*d.queues.Load(), d.hw.Now()); n == 0 {
		d.hw.Pause(due)
	}
}

// checkAlive isolates a controller that has failed or gone.
func (d *Device) checkAlive() {
	incarnation := d.incarnation.Load()
	if d.State() != driver.StateReady {
		return
	}
	if err := d.alive(); err != nil {
		d.isolateIn(incarnation, err)
	}
}

// alive asks the controller for its status.
func (d *Device) alive() error {
	v, err := d.hw.Load32(nvme.RegCSTS)
	if err == nil {
		err = nvme.CSTS(v).Check()
	}
	if err == nil && !nvme.CSTS(v).Ready() {
		err = base.Errorf("check", d.info.Target, base.ErrIsolated, "the controller is not ready any more: CSTS %#x", v)
	}
	return err
}

// watch looks now and then, for requests that nobody waits for, for a controller
// that fails while idle, and for events.
func (d *Device) watch() {
	t := time.NewTicker(d.opts.Watch)
	defer t.Stop()
	for {
		select {
		case <-d.quit:
			return
		case <-t.C:
		}
		if d.State() != driver.StateReady {
			continue
		}
		d.checkAlive()
		if d.inFlight.Load() > 0 {
			d.pollOnce()
		}
		d.takeEvents()
	}
}

// takeEvents handles the asynchronous events that have come. Only the watcher
// calls it, and never while the controller is being brought up.
func (d *Device) takeEvents() {
	if !d.tryCtl() {
		return // a Reset or Close owns the admin queue
	}
	defer func() { <-d.ctl }()
	q := d.adminQ.Load()
	if q == nil || d.State() != driver.StateReady {
		return
	}
	now := d.hw.Now()
	q.mu.Lock()
	n := q.reap()
	q.judge(now) // commands whose callers have given up
	q.mu.Unlock()
	if n == 0 {
		d.hw.Pause(now)
	}
	for i, w := range d.aers {
		switch {
		case w == nil || !w.done.Load(): // others may end meanwhile; the next look sees them
		case w.err != nil || !w.status.OK():
			return // the controller takes no more requests
		default:
			d.aers[i] = nil
			d.event(nvme.AsyncEvent(w.dw0))
		}
	}
	_ = d.requestEvents() // when there is no room the next look asks again; a dead queue is isolated already
}

func (d *Device) tryCtl() bool {
	select {
	case d.ctl <- struct{}{}:
		return true
	default:
		return false
	}
}

// event acts on one event: reading its log page lets the controller report the
// next (Base 5.1.2).
func (d *Device) event(e nvme.AsyncEvent) {
	ctx, cancel := context.WithTimeout(context.Background(), adminDeadline)
	defer cancel()
	size := map[uint8]uint32{nvme.LogError: 64, nvme.LogSMART: 512, nvme.LogFirmware: 512,
		nvme.LogChangedNamespaces: 4096}[e.LogPage()]
	if size != 0 {
		var c nvme.Command
		c.SetGetLogPage(e.LogPage(), nvme.NSIDAll, size, 0, false)
		_ = d.fetch(ctx, &c, int64(size), func([]byte) error { return nil })
	}
	d.warn(errors.New(e.String()))
}

// warn tells subscribers what the controller says about itself.
func (d *Device) warn(what error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.warning = what.Error()
	d.events.post(driver.Event{State: d.State(), Warning: true, Cause: base.Wrap("watch", d.info.Target, what)})
}
