package ctrl_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
)

// adminData is the owner of the memory of admin commands.
const adminData = "nvme admin data"

// askedFor is a model that does something when memory for an admin command is wanted.
type askedFor struct {
	*sim.Sim
	then func()
}

func (a *askedFor) Alloc(size int64, owner string) (*hw.Buffer, error) {
	if then := a.then; then != nil && owner == adminData {
		a.then = nil
		then()
	}
	return a.Sim.Alloc(size, owner)
}

// TestEventDuringAnEvent: an event that comes while the log page of the one before is
// read is told too, whichever of the requests it ends.
func TestEventDuringAnEvent(t *testing.T) {
	cfg := sim.Default(16 * base.MiB)
	cfg.Real = true
	a := &askedFor{Sim: model(t, cfg)}
	d, err := ctrl.Open(bg(t), a, ctrl.Options{Watch: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	told := func(e nvme.AsyncEvent) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); d.Warning() != e.String(); time.Sleep(100 * time.Microsecond) {
			if time.Now().After(end) {
				t.Fatalf("%q is not told, but %q", e, d.Warning())
			}
		}
	}
	spare := nvme.MakeAsyncEvent(nvme.EventTypeSMART, nvme.EventInfoSpare, nvme.LogSMART)
	hot := nvme.MakeAsyncEvent(nvme.EventTypeSMART, nvme.EventInfoTemperature, nvme.LogSMART)
	worn := nvme.MakeAsyncEvent(nvme.EventTypeSMART, nvme.EventInfoReliability, nvme.LogSMART)
	for range 4 { // three of four requests a round: the last comes before the one that is handled once
		a.Event(hot)
		told(hot)
		a.then = func() { a.Event(worn) }
		a.Event(spare)
		told(worn)
	}
	if err := d.Close(bg(t)); err != nil {
		t.Error(err)
	}
}

// TestMemoryOfGivenUpCommands: the memory of an admin command whose caller has given
// up stays the device's until the command has ended, and no longer.
func TestMemoryOfGivenUpCommands(t *testing.T) {
	const rounds = 40
	cfg := sim.Default(16 * base.MiB)
	cfg.Real = true
	s := model(t, cfg)
	d := opened(t, s, ctrl.Options{Watch: -1})
	held := func() (n int64) {
		for _, o := range dma.Usage() {
			if o.Owner == adminData {
				n = o.Bytes / hw.PageSize
			}
		}
		return n
	}
	before := held()
	for i := range rounds {
		s.Hold(true)
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		_, err := d.SMART(ctx)
		cancel()
		if !errors.Is(err, base.ErrTimeout) || held() == before {
			t.Fatalf("given up: %v, %d pages are the device's", err, held()-before)
		}
		s.Hold(false)
		if _, err := d.SMART(bg(t)); err != nil { // which comes after the other
			t.Fatal(err)
		}
		if n := held() - before; n != 1 {
			t.Fatalf("%d pages are the device's after %d commands that have ended", n, i+1)
		}
	}
}

// TestI04GivenUpAdminCommand: the deadline of an admin command isolates the device also
// when nobody waits for it any more, and nobody sends another.
func TestI04GivenUpAdminCommand(t *testing.T) {
	s := model(t, sim.Default(16*base.MiB))
	d := opened(t, s, ctrl.Options{Watch: time.Millisecond})
	s.Script(sim.Rule{Kind: sim.FaultLose, Admin: true, Ops: []nvme.Opcode{nvme.AdminGetLogPage}},
		sim.Rule{Kind: sim.FaultDelay, Delay: 20 * time.Second})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := d.SMART(ctx); !errors.Is(err, context.Canceled) || d.State() != driver.StateReady {
		t.Fatalf("given up: %v, %v", err, d.State())
	}
	b := reads(t, d, 64, 4096)
	for end := time.Now().Add(10 * time.Second); d.State() == driver.StateReady; { // time passes
		if time.Now().After(end) {
			t.Fatalf("ready at %v", s.Now())
		}
		if d.Submit(bg(t), b) == nil {
			wait(t, b)
		}
	}
	if err := d.Submit(bg(t), b); !errors.Is(err, base.ErrTimeout) {
		t.Errorf("isolated with %v", err)
	}
}

// deafAtTheEnd is a model whose admin doorbell fails once.
type deafAtTheEnd struct {
	*sim.Sim
	rings, fail int // so far, and which one fails
}

type deafBell struct {
	hw.Doorbell
	of *deafAtTheEnd
}

func (d *deafAtTheEnd) Doorbell(off uint64) (hw.Doorbell, error) {
	b, err := d.Sim.Doorbell(off)
	if err == nil && off == nvme.SQDoorbell(0, 0) {
		b = &deafBell{b, d}
	}
	return b, err
}

func (b *deafBell) Ring(v uint32) error {
	if b.of.rings++; b.of.rings == b.of.fail {
		return base.Errorf("ring", "the last doorbell of the bring-up", base.ErrDeviceGone, "for the test")
	}
	return b.Doorbell.Ring(v)
}

// TestBrokenAtTheEnd: a controller that is found broken behind the last command that the
// bring-up waits for is not ready.
func TestBrokenAtTheEnd(t *testing.T) {
	s := &deafAtTheEnd{Sim: model(t, sim.Default(16*base.MiB))}
	d, err := ctrl.Open(bg(t), s, quiet)
	if err != nil {
		t.Fatal(err)
	}
	last := s.rings
	s.Fatal()
	b := reads(t, d, 1, 4096)
	submit(t, d, b)
	wait(t, b)
	s.rings, s.fail = 0, last
	if err := d.Reset(bg(t)); !errors.Is(err, base.ErrDeviceGone) || d.State() == driver.StateReady {
		t.Errorf("a reset whose last doorbell failed: %v, and the device is %v", err, d.State())
	}
	for range 2 {
		if err := d.Reset(bg(t)); err != nil {
			t.Error(err)
		}
	}
	if l, err := d.SMART(bg(t)); err != nil || l.CompositeKelvin.Get() == 0 {
		t.Errorf("%d K, %v", l.CompositeKelvin.Get(), err)
	}
	if err := d.Close(bg(t)); err != nil {
		t.Error(err)
	}
	other := &deafAtTheEnd{Sim: model(t, sim.Default(16*base.MiB)), fail: last}
	if _, err := ctrl.Open(bg(t), other, quiet); !errors.Is(err, base.ErrDeviceGone) {
		t.Errorf("an open whose last doorbell failed: %v", err)
	}
}

// unstoppable is a model that cannot be stopped while it is told so.
type unstoppable struct {
	*sim.Sim
	on atomic.Bool
}

func (u *unstoppable) Stop(ctx context.Context) error {
	if u.on.Load() {
		return base.Errorf("stop", "a model", base.ErrTimeout, "for the test")
	}
	return u.Sim.Stop(ctx)
}

// TestI04GoneAndNotStopped: a device that a reset finds gone, and that cannot be shown to
// have stopped, is not closed: its memory is still its own.
func TestI04GoneAndNotStopped(t *testing.T) {
	u := &unstoppable{Sim: model(t, sim.Default(16*base.MiB))}
	d, err := ctrl.Open(bg(t), u, quiet)
	if err != nil {
		t.Fatal(err)
	}
	u.Fatal()
	b := reads(t, d, 1, 4096)
	submit(t, d, b)
	wait(t, b)
	u.Ones()
	u.on.Store(true)
	if err := d.Reset(bg(t)); !errors.Is(err, base.ErrDeviceGone) || d.State() != driver.StateRemoved {
		t.Fatalf("%v, and the device is %v", err, d.State())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if err := d.Close(ctx); !errors.Is(err, base.ErrBusy) || d.State() != driver.StateRemoved {
		t.Errorf("while it may still write: %v, and the device is %v", err, d.State())
	}
	u.on.Store(false)
	for range 2 {
		if err := d.Close(bg(t)); err != nil || d.State() != driver.StateClosed {
			t.Errorf("%v, and the device is %v", err, d.State())
		}
	}
}
