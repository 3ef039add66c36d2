package hw

import (
	"context"
	"errors"
	"os"
	"strconv"
	"sync"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// EventVectors are the Interrupts of transports whose kernel side raises eventfds.
type EventVectors struct {
	target string
	arm    func(n, fd int) error

	mu   sync.Mutex
	open []*eventVector // by number, nil where closed
}

// NewEventVectors gives n vectors of target. arm tells the kernel which descriptor
// vector n raises from now on; -1 is none.
func NewEventVectors(target string, n int, arm func(n, fd int) error) *EventVectors {
	return &EventVectors{target: target, arm: arm, open: make([]*eventVector, n)}
}

// Vectors implements Interrupts.
func (e *EventVectors) Vectors() int { return len(e.open) }

// Vector implements Interrupts.
func (e *EventVectors) Vector(n int) (Vector, error) {
	name := "vector " + strconv.Itoa(n) + " of " + e.target
	if n < 0 || n >= len(e.open) {
		return nil, base.Errorf("open", name, base.ErrOutOfRange, "there are %d", len(e.open))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.open[n] != nil {
		return nil, base.Errorf("open", name, base.ErrBusy, "it is open")
	}
	ev, err := unix.NewEvent(name)
	if err != nil {
		return nil, base.Wrap("open", name, err)
	}
	if err := e.arm(n, ev.FD()); err != nil {
		return nil, base.Wrap("open", name, errors.Join(err, ev.Close()))
	}
	v := &eventVector{set: e, n: n, name: name, event: ev}
	e.open[n] = v
	return v, nil
}

// Close closes the vectors that are open.
func (e *EventVectors) Close() error {
	e.mu.Lock()
	open := append([]*eventVector{}, e.open...)
	e.mu.Unlock()
	var err error
	for _, v := range open {
		if v != nil {
			err = errors.Join(err, v.Close())
		}
	}
	return err
}

// eventVector is one vector with its eventfd.
type eventVector struct {
	set   *EventVectors
	n     int
	name  string
	event *unix.Event
}

// Wait implements Vector.
func (v *eventVector) Wait(ctx context.Context) error {
	err := v.event.Wait(ctx)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrClosed):
		return base.Errorf("wait for", v.name, base.ErrClosed, "it was closed")
	case ctx.Err() != nil:
		return base.Errorf("wait for", v.name, base.ErrTimeout, "%w", err)
	}
	return base.Wrap("wait for", v.name, err)
}

// Wake implements Vector.
func (v *eventVector) Wake() { v.event.Raise() }

// Close implements Vector. The kernel forgets the descriptor first, so that it
// never raises another file that took its number.
func (v *eventVector) Close() error {
	v.set.mu.Lock()
	defer v.set.mu.Unlock()
	if v.set.open[v.n] != v {
		return nil
	}
	v.set.open[v.n] = nil
	return base.Wrap("close", v.name, errors.Join(v.set.arm(v.n, -1), v.event.Close()))
}
