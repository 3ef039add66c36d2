package crashtest

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// notifier delivers events in order, from one goroutine.
type notifier struct {
	mu     sync.Mutex
	wake   *sync.Cond
	queue  []driver.Event
	subs   map[int]func(driver.Event)
	next   int
	end    bool
	runner bool
}

func (n *notifier) start() {
	n.wake = sync.NewCond(&n.mu)
	n.subs = make(map[int]func(driver.Event))
}

func (n *notifier) run() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		for len(n.queue) == 0 && !n.end {
			n.wake.Wait()
		}
		if len(n.queue) == 0 {
			return
		}
		ev := n.queue[0]
		n.queue = n.queue[1:]
		for id := range n.next {
			fn := n.subs[id]
			if fn == nil {
				continue
			}
			n.mu.Unlock()
			fn(ev)
			n.mu.Lock()
		}
	}
}

func (n *notifier) emit(ev driver.Event, last bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.end = n.end || last
	if n.runner { // without it nobody ever subscribed
		n.queue = append(n.queue, ev)
		n.wake.Broadcast()
	}
}

// Subscribe implements driver.Device.
func (d *Disk) Subscribe(fn func(driver.Event)) (cancel func()) {
	n := &d.events
	n.mu.Lock()
	defer n.mu.Unlock()
	id := n.next
	n.next++
	n.subs[id] = fn
	if !n.runner && !n.end {
		n.runner = true
		go n.run()
	}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.subs, id)
	}
}

// PowerCut takes the power of the disk alone: every write whose fate is open
// gets one drawn outcome, everything in flight ends with ErrIsolated, and the
// disk stays isolated until Reset. It reports what was drawn.
func (d *Disk) PowerCut(rng *rand.Rand) Outcome {
	d.lab.mu.Lock()
	defer d.lab.mu.Unlock()
	return d.powerCutLocked(rng)
}

// powerCutLocked is PowerCut for hooks. The lock is held.
func (d *Disk) powerCutLocked(rng *rand.Rand) Outcome {
	if d.state != driver.StateReady {
		return Outcome{}
	}
	out := drawOpen(rng, d.stable, d.opts.BlockSize, d.open)
	d.visible = d.stable.clone()
	d.open = nil
	d.isolate("the disk lost power")
	return out
}

// Isolate stops the disk without a loss of power: answered writes stay in the
// cache, commands in flight may have executed or not.
func (d *Disk) Isolate(rng *rand.Rand) {
	d.lab.mu.Lock()
	defer d.lab.mu.Unlock()
	d.isolateLocked(rng)
}

// isolateLocked is Isolate for hooks. The lock is held.
func (d *Disk) isolateLocked(rng *rand.Rand) {
	if d.state != driver.StateReady {
		return
	}
	d.open = slices.DeleteFunc(d.open, func(w *write) bool {
		if w.answered == 0 {
			drawInFlight(rng, d.visible, d.opts.BlockSize, w)
			w.answered = d.lab.index + 1
		}
		return !w.effect
	})
	d.isolate("the disk stopped")
}

// isolate ends everything in flight. The lock is held.
func (d *Disk) isolate(why string) {
	d.incarnation++
	d.state = driver.StateIsolated
	for _, c := range d.queue {
		c.dying = true
	}
	d.work.Broadcast()
	d.signalRoom()
	d.lab.note(Step{Kind: StepPower, Disk: d.index, Text: why})
	d.events.emit(driver.Event{State: driver.StateIsolated,
		Cause: base.Errorf("use", d.info.Target, base.ErrIsolated, "%s", why)}, false)
}

// Hold keeps every command where it is, or lets them go on.
func (d *Disk) Hold(on bool) {
	d.lab.mu.Lock()
	defer d.lab.mu.Unlock()
	d.held = on
	d.work.Broadcast()
}

// FailNext makes the next command of the operation fail, once.
func (d *Disk) FailNext(op driver.Op) {
	d.lab.mu.Lock()
	defer d.lab.mu.Unlock()
	d.failNextLocked(op)
}

// failNextLocked is FailNext for hooks. The lock is held.
func (d *Disk) failNextLocked(op driver.Op) {
	if d.failing == nil {
		d.failing = make(map[driver.Op]bool)
	}
	d.failing[op] = true
}

// Remove pulls the disk out: nothing works any more, and Reset does not help.
func (d *Disk) Remove() {
	d.lab.mu.Lock()
	defer d.lab.mu.Unlock()
	if d.final() {
		return
	}
	d.incarnation++
	d.state = driver.StateRemoved
	for _, c := range d.queue {
		c.dying = true
	}
	d.signalRoom()
	d.lab.note(Step{Kind: StepPower, Disk: d.index, Text: "removed"})
	d.events.emit(driver.Event{State: driver.StateRemoved,
		Cause: base.Errorf("use", d.info.Target, base.ErrDeviceGone, "it was pulled out")}, true)
}

// Reset implements driver.Device.
func (d *Disk) Reset(ctx context.Context) error {
	d.lab.mu.Lock()
	defer d.lab.mu.Unlock()
	switch {
	case d.final():
		return stateError("reset", d.info.Target, d.state)
	case d.state == driver.StateReady:
		return nil
	case d.state != driver.StateIsolated:
		return base.Errorf("reset", d.info.Target, base.ErrBusy, "it is %s, not isolated", d.state)
	}
	d.state = driver.StateResetting
	d.events.emit(driver.Event{State: driver.StateResetting}, false)
	for d.busy() { // those in flight get their answers first
		room := d.room
		d.lab.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
		}
		d.lab.mu.Lock()
		if err := ctx.Err(); err != nil && d.busy() {
			d.state = driver.StateIsolated
			d.events.emit(driver.Event{State: driver.StateIsolated, Cause: err}, false)
			return base.Errorf("reset", d.info.Target, base.ErrTimeout, "%w", err)
		}
	}
	if d.state != driver.StateResetting { // pulled out meanwhile
		return stateError("reset", d.info.Target, d.state)
	}
	d.state = driver.StateReady
	d.signalRoom()
	d.lab.note(Step{Kind: StepPower, Disk: d.index, Text: "ready again"})
	d.events.emit(driver.Event{State: driver.StateReady}, false)
	return nil
}

// Close implements driver.Device. It does not empty the cache: a power cut after
// an orderly close may still lose what was never flushed.
func (d *Disk) Close(ctx context.Context) error {
	d.lab.mu.Lock()
	d.closing = true
	for d.busy() && d.state != driver.StateClosed {
		room := d.room
		d.lab.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
		}
		d.lab.mu.Lock()
		if err := ctx.Err(); err != nil && d.busy() {
			d.closing = false
			d.lab.mu.Unlock()
			return base.Errorf("close", d.info.Target, base.ErrBusy, "%w", err)
		}
	}
	if d.state != driver.StateClosed {
		d.state = driver.StateClosed
		d.signalRoom()
		d.events.emit(driver.Event{State: driver.StateClosed}, true)
	}
	d.lab.mu.Unlock()
	<-d.stopped
	return nil
}
