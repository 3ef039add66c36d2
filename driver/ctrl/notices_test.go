package ctrl_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/internal/base"
)

// announced is a model whose system gives notices.
type announced struct {
	*sim.Sim
	notices chan hw.Notice
	stopped atomic.Bool
	onStart func() // what happens in the middle of a start
	again   bool   // a start finds the device stopped once more
	closed  chan struct{}
	once    sync.Once
}

func (a *announced) Notices() <-chan hw.Notice { return a.notices }

func (a *announced) Stopped() bool { return a.stopped.Load() }

func (a *announced) Start(ctx context.Context) error {
	if a.onStart != nil {
		a.onStart()
	}
	a.stopped.Store(a.again)
	return a.Sim.Start(ctx)
}

// say gives a notice, and returns when it has been acted on: others that mean nothing
// have found room behind it.
func (a *announced) say(n hw.Notice) {
	a.notices <- n
	for range cap(a.notices) + 1 {
		a.notices <- 0
	}
}

func (a *announced) Close() error {
	a.once.Do(func() { close(a.closed) })
	return a.Sim.Close()
}

func announcedDevice(t *testing.T) (*announced, *ctrl.Device, func() []driver.State) {
	t.Helper()
	cfg := sim.Default(16 * base.MiB)
	cfg.Real = true
	a := &announced{Sim: model(t, cfg), notices: make(chan hw.Notice, 4), closed: make(chan struct{})}
	d, err := ctrl.Open(bg(t), a, ctrl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var states []driver.State
	d.Subscribe(func(e driver.Event) {
		mu.Lock()
		defer mu.Unlock()
		states = append(states, e.State)
	})
	t.Cleanup(func() {
		if err := d.Close(bg(t)); err != nil {
			t.Error(err)
		}
	})
	return a, d, func() []driver.State {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(states)
	}
}

func awaitState(t *testing.T, d *ctrl.Device, want driver.State) {
	t.Helper()
	for end := time.Now().Add(time.Minute); d.State() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the state is %v, want %v", d.State(), want)
		}
	}
}

// TestA05ReleaseNotice: when the system asks for the device, what is in flight ends well,
// nothing new is taken, and the hardware is closed.
func TestA05ReleaseNotice(t *testing.T) {
	a, d, states := announcedDevice(t)
	r, err := driver.AllocRegion(base.MiB, "notices")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b := driver.Batch{Reqs: []driver.Request{{Op: driver.OpWrite, Len: base.MiB, Segs: []driver.Seg{r.Seg(0, base.MiB)}}}}
	a.Hold(true)
	if err := d.Submit(bg(t), &b); err != nil {
		t.Fatal(err)
	}
	a.notices <- hw.NoticeRelease
	var refused error
	for end := time.Now().Add(time.Minute); refused == nil && time.Now().Before(end); time.Sleep(time.Millisecond) {
		two := driver.Batch{Reqs: []driver.Request{{Op: driver.OpFlush}}}
		if refused = d.Submit(bg(t), &two); refused == nil {
			t.Cleanup(func() { _ = two.Wait(bg(t)) })
		}
	}
	if !errors.Is(refused, base.ErrDeviceGone) || d.State() != driver.StateReady {
		t.Errorf("while it is given back: %v, %v", refused, d.State())
	}
	a.Hold(false)
	if err := errors.Join(b.Wait(bg(t)), b.Err()); err != nil {
		t.Errorf("what was in flight: %v", err)
	}
	awaitState(t, d, driver.StateRemoved)
	select {
	case <-a.closed:
	case <-time.After(time.Minute):
		t.Error("the hardware is not closed")
	}
	if d.Incarnation() != 0 {
		t.Errorf("incarnation %d after an orderly end", d.Incarnation())
	}
	if err := driver.Flush(bg(t), d); !errors.Is(err, base.ErrDeviceGone) {
		t.Errorf("after that: %v", err)
	}
	if err := d.Reset(bg(t)); !errors.Is(err, base.ErrDeviceGone) {
		t.Errorf("reset: %v", err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // events come by themselves
		got := states()
		if slices.Equal(got, []driver.State{driver.StateRemoved}) {
			break
		}
		if len(got) > 0 || time.Now().After(end) {
			t.Fatalf("events: %v", got)
		}
	}
	if err := r.Close(); err != nil { // it was attached
		t.Error(err)
	}
}

// TestStoppedNotice: a device that the system has cut off is isolated, and a reset
// brings it back; one that is gone is removed. A notice that comes while the device is
// being closed holds the close up by nothing.
func TestStoppedNotice(t *testing.T) {
	a, d, _ := announcedDevice(t)
	a.stopped.Store(true)
	a.notices <- hw.NoticeStopped
	awaitState(t, d, driver.StateIsolated)
	if err := d.Reset(bg(t)); err != nil {
		t.Fatal(err)
	}
	if err := driver.Flush(bg(t), d); err != nil {
		t.Error(err)
	}
	a.Remove()
	a.notices <- hw.NoticeGone
	awaitState(t, d, driver.StateRemoved)
	if err := driver.Flush(bg(t), d); !errors.Is(err, base.ErrDeviceGone) {
		t.Error(err)
	}
	a.notices <- hw.NoticeRelease // it may come late
	began := time.Now()
	if err := d.Close(bg(t)); err != nil || time.Since(began) > 8*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

// TestLateNotice: a notice that the device was stopped is about what was before the last
// start: when that has followed it changes nothing, whether it is read in the middle of a
// reset or afterwards. A device that was stopped again fails the reset, and the next one
// brings it back.
func TestLateNotice(t *testing.T) {
	a, d, _ := announcedDevice(t)
	a.say(hw.NoticeStopped)
	if s, n := d.State(), d.Incarnation(); s != driver.StateReady || n != 0 {
		t.Fatalf("%v, incarnation %d", s, n)
	}
	a.stopped.Store(true)
	a.say(hw.NoticeStopped)
	a.onStart = func() { a.say(hw.NoticeStopped) }
	if s := d.State(); s != driver.StateIsolated {
		t.Fatal(s)
	}
	if err := d.Reset(bg(t)); err != nil {
		t.Fatal(err)
	}
	a.say(hw.NoticeStopped)
	if err := driver.Flush(bg(t), d); err != nil {
		t.Error(err)
	}
	a.stopped.Store(true)
	a.say(hw.NoticeStopped)
	a.again = true
	if err := d.Reset(bg(t)); !errors.Is(err, base.ErrIsolated) {
		t.Errorf("stopped during a reset: %v", err)
	}
	a.again = false
	if err := errors.Join(d.Reset(bg(t)), driver.Flush(bg(t), d)); err != nil {
		t.Error(err)
	}
}

// TestReleaseUnderLoad: the system asks for the device at a random moment of many submits.
// Whichever check of a submit sees it, the answer is that the device is gone: nobody here
// has closed anything.
func TestReleaseUnderLoad(t *testing.T) {
	for range 300 {
		a, d, _ := announcedDevice(t)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				var err error
				for err == nil {
					err = driver.Flush(bg(t), d)
				}
				if !errors.Is(err, base.ErrDeviceGone) || errors.Is(err, base.ErrClosed) {
					t.Error(err)
				}
			})
		}
		a.notices <- hw.NoticeRelease
		wg.Wait()
		awaitState(t, d, driver.StateRemoved)
	}
}
