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
)

// watched is a model that tells a test when the driver begins to stop it, counts its
// pauses, and rings an alarm at a time of its own clock.
type watched struct {
	*sim.Sim
	stopping func()
	at       time.Duration // of the alarm; 0 for none
	alarm    func()
	pauses   atomic.Int64
	deaf     atomic.Bool // doorbells do not reach the controller
}

// Doorbell makes one that the controller may be deaf to.
func (w *watched) Doorbell(off uint64) (hw.Doorbell, error) {
	b, err := w.Sim.Doorbell(off)
	return watchedBell{b, w}, err
}

type watchedBell struct {
	hw.Doorbell
	w *watched
}

func (b watchedBell) Ring(v uint32) error {
	if b.w.deaf.Load() {
		return nil
	}
	return b.Doorbell.Ring(v)
}

// Store32 sees EN being cleared.
func (w *watched) Store32(off uint64, v uint32) error {
	if off == nvme.RegCC && !nvme.CC(v).Enabled() && w.stopping != nil {
		w.stopping()
	}
	return w.Sim.Store32(off, v)
}

// Pause does not pass the alarm.
func (w *watched) Pause(until time.Duration) {
	w.pauses.Add(1)
	if w.at != 0 {
		until = min(until, w.at)
	}
	w.Sim.Pause(until)
	if w.at != 0 && w.Now() >= w.at {
		w.at = 0
		w.alarm()
	}
}

// openedOn is opened for hardware that is not the model itself.
func openedOn(t testing.TB, w *watched, o ctrl.Options) *ctrl.Device {
	t.Helper()
	d, err := ctrl.Open(bg(t), w, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(bg(t)); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return d
}

const deadline = driver.ReadWriteDeadline

// neverEnds are the ways in which a command does not end, not by an Abort either.
var neverEnds = map[string]struct {
	rules  []sim.Rule
	change func(c *sim.Config)
	aborts int64 // for eight commands
}{
	"lost completion": {[]sim.Rule{{Kind: sim.FaultLoseCompletion}}, func(*sim.Config) {}, 8},
	"no aborts":       {[]sim.Rule{{Kind: sim.FaultLose}}, func(c *sim.Config) { c.NoAborts = true }, 8},
	"lost abort": {[]sim.Rule{{Kind: sim.FaultLose, Admin: true, Ops: []nvme.Opcode{nvme.AdminAbort}}, {Kind: sim.FaultLose}},
		func(*sim.Config) {}, 1},
	"failed abort": {[]sim.Rule{{Kind: sim.FaultStatus, Admin: true, Ops: []nvme.Opcode{nvme.AdminAbort}, Status: nvme.StatusInternal},
		{Kind: sim.FaultLose}}, func(*sim.Config) {}, 8},
}

// TestH02DeviceDeadline: commands that never end isolate the device by their
// deadline D on the device's clock: every entry has ended and the caller knows
// within 1.1 D. Their memory is busy until the controller has stopped, then free;
// and the same process does I/O again.
func TestH02DeviceDeadline(t *testing.T) {
	for name, x := range neverEnds {
		t.Run(name, func(t *testing.T) {
			cfg := sim.Default(16 * base.MiB)
			cfg.UnreadyDelay = 200 * time.Millisecond
			x.change(&cfg)
			w := &watched{Sim: model(t, cfg)}
			d := openedOn(t, w, quiet)
			b := reads(t, d, 8, 4096)
			r := b.Reqs[0].Segs[0].Region
			busy := 0
			w.stopping = func() { // the device is isolated, the controller runs still
				for what, err := range map[string]error{"close": r.Close(), "renew": r.Renew(), "detach": d.Detach(r)} {
					if !errors.Is(err, base.ErrBusy) {
						t.Errorf("%s before the stop: %v", what, err)
					}
				}
				if b.Ended() || d.State() != driver.StateIsolated {
					t.Errorf("ended %v, %v, before the stop", b.Ended(), d.State())
				}
				busy++
			}
			works(t, d) // and the controller has fetched the event requests
			w.Script(x.rules...)
			start, admin := w.Now(), w.Counts().AdminCommands
			submit(t, d, b)
			wait(t, b)
			w.stopping = nil
			if n := w.Counts().AdminCommands - admin; n != x.aborts {
				t.Errorf("%d admin commands, want %d", n, x.aborts)
			}
			if took := w.Now() - start; took < deadline || took > deadline*11/10 {
				t.Errorf("ended after %v", took)
			}
			for i := range b.Reqs {
				if err := b.Reqs[i].Err; !errors.Is(err, base.ErrIsolated) || !errors.Is(err, base.ErrTimeout) || b.Reqs[i].Done != 0 {
					t.Errorf("entry %d: %v", i, err)
				}
			}
			if busy == 0 {
				t.Error("the controller was not stopped")
			}
			w.Script()
			if err := errors.Join(d.Detach(r), d.Attach(r), d.Reset(bg(t))); err != nil {
				t.Fatal(err)
			}
			run(t, d, b)
			works(t, d)
		})
	}
}

// TestI04CallersDeadline: a caller's deadline of D/10 ends its wait at that time of
// the device's clock and nothing else: the device stays ready, the memory busy
// until the entries end.
func TestI04CallersDeadline(t *testing.T) {
	w := &watched{Sim: model(t, sim.Default(16*base.MiB))}
	d := openedOn(t, w, quiet)
	b := reads(t, d, 8, 4096)
	r := b.Reqs[0].Segs[0].Region
	w.Script(sim.Rule{Kind: sim.FaultDelay, Delay: deadline / 2})
	ctx, cancel := context.WithCancel(context.Background())
	start := w.Now()
	w.at, w.alarm = start+deadline/10, cancel
	submit(t, d, b)
	if err := b.Wait(ctx); !errors.Is(err, base.ErrTimeout) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if took := w.Now() - start; took > deadline/10 {
		t.Errorf("returned after %v", took)
	}
	if b.Ended() || d.State() != driver.StateReady || d.Incarnation() != 0 {
		t.Errorf("ended %v, %v, incarnation %d", b.Ended(), d.State(), d.Incarnation())
	}
	for what, err := range map[string]error{"close": r.Close(), "renew": r.Renew(), "detach": d.Detach(r)} {
		if !errors.Is(err, base.ErrBusy) {
			t.Errorf("%s: %v", what, err)
		}
	}
	wait(t, b)
	if err := errors.Join(b.Err(), d.Detach(r), d.Attach(r)); err != nil || d.Incarnation() != 0 {
		t.Errorf("%v, incarnation %d", err, d.Incarnation())
	}
}

// TestH03Abort: commands that are late are aborted, one at a time and once each,
// and what the controller has aborted isolates nothing. It checks ACL.
func TestH03Abort(t *testing.T) {
	cfg := sim.Default(16 * base.MiB)
	cfg.Identify.ACL = 0
	cfg.Service = sim.ServiceFixed
	s := model(t, cfg)
	d := opened(t, s, quiet)
	works(t, d) // and the controller has fetched the event requests
	for _, lost := range []int{1, 8} {
		b := reads(t, d, 12, 4096)
		r := b.Reqs[0].Segs[0].Region
		s.Script(sim.Rule{Kind: sim.FaultLose, Skip: 2, Count: lost})
		start, admin := s.Now(), s.Counts().AdminCommands
		submit(t, d, b)
		wait(t, b)
		if took := s.Now() - start; took < deadline || took > deadline*11/10 {
			t.Errorf("%d lost: ended after %v", lost, took)
		}
		failed := 0
		for i := range b.Reqs {
			var st *nvme.StatusError
			if err := b.Reqs[i].Err; err != nil {
				failed++
				if !errors.Is(err, base.ErrTimeout) || !errors.As(err, &st) || st.Status.Code() != nvme.StatusAborted {
					t.Errorf("entry %d: %v", i, err)
				}
			}
		}
		if failed != lost || d.State() != driver.StateReady || d.Incarnation() != 0 || r.InFlight() != 0 {
			t.Errorf("%d lost: %d failed, %v, incarnation %d, %d holds", lost, failed, d.State(), d.Incarnation(), r.InFlight())
		}
		if n := s.Counts().AdminCommands - admin; n != int64(lost) {
			t.Errorf("%d lost: %d admin commands", lost, n)
		}
		s.Script()
		run(t, d, b)
	}
	works(t, d)
}

// TestH03AbortTooLate: a command that ends by itself after its deadline, before or
// while it is aborted, has ended well.
func TestH03AbortTooLate(t *testing.T) {
	for _, x := range []struct {
		noAborts bool
		after    time.Duration
	}{{true, deadline / 100}, {true, deadline / 25}} {
		cfg := sim.Default(16 * base.MiB)
		cfg.NoAborts = x.noAborts
		w := &watched{Sim: model(t, cfg)}
		d := openedOn(t, w, quiet)
		b := reads(t, d, 4, 4096)
		w.Hold(true)
		w.at, w.alarm = w.Now()+deadline+x.after, func() { w.Hold(false) }
		submit(t, d, b)
		wait(t, b)
		if err := b.Err(); err != nil || d.State() != driver.StateReady {
			t.Errorf("%v late: %v, %v", x.after, err, d.State())
		}
		run(t, d, b)
	}
}

// TestH03AbortedFlush: nobody knows what a flush that was aborted has lost.
func TestH03AbortedFlush(t *testing.T) {
	s := model(t, sim.Default(16*base.MiB))
	d := opened(t, s, quiet)
	s.Script(sim.Rule{Kind: sim.FaultLose, Ops: []nvme.Opcode{nvme.OpFlush}, Count: 1})
	start := s.Now()
	if err := driver.Flush(bg(t), d); !errors.Is(err, base.ErrIsolated) || !errors.Is(err, base.ErrTimeout) {
		t.Errorf("%v", err)
	}
	if took := s.Now() - start; took < driver.FlushDeadline || took > driver.FlushDeadline*11/10 {
		t.Errorf("after %v", took)
	}
	if err := d.Reset(bg(t)); err != nil {
		t.Fatal(err)
	}
	works(t, d)
}
