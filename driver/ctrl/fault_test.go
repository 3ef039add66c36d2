package ctrl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
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

// submit starts a batch that is awaited elsewhere.
func submit(t testing.TB, d *ctrl.Device, b *driver.Batch) {
	t.Helper()
	if err := d.Submit(bg(t), b); err != nil {
		t.Fatal(err)
	}
}

func wait(t testing.TB, b *driver.Batch) {
	t.Helper()
	if err := b.Wait(bg(t)); err != nil {
		t.Fatal(err)
	}
}

// TestI04Zombies: between isolation and the confirmed stop, memory and requests
// are the device's, whatever the callers' contexts do (H-08).
func TestI04Zombies(t *testing.T) {
	cfg := sim.Default(16 * base.MiB)
	cfg.Real = true
	s := model(t, cfg)
	d := opened(t, s, ctrl.Options{Watch: -1, Deadline: ctrl.Deadlines{ReadWrite: time.Second}})
	b := reads(t, d, 4, 4096)
	r := b.Reqs[0].Segs[0].Region
	s.Hold(true)
	submit(t, d, b)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Millisecond)
	if err := b.Wait(ctx); !errors.Is(err, base.ErrTimeout) || d.State() != driver.StateReady {
		t.Errorf("the caller's deadline: %v, %v", err, d.State())
	}
	cancel()
	for end := time.Now().Add(time.Minute); d.State() == driver.StateReady && time.Now().Before(end); cancel() {
		ctx, cancel = context.WithTimeout(context.Background(), 200*time.Millisecond)
		if err := b.Wait(ctx); !errors.Is(err, base.ErrTimeout) {
			t.Errorf("the device's deadline: %v", err)
		}
	}
	if d.State() != driver.StateIsolated || d.Incarnation() != 1 {
		t.Errorf("after the device's deadline: %v", d.State())
	}
	if st := d.Stats(); st.InFlight != 4 || st.InFlightBytes != 4*4096 {
		t.Errorf("isolated, and %d bytes of %d requests are the device's", st.InFlightBytes, st.InFlight)
	}
	ctx, cancel = context.WithTimeout(context.Background(), 5*time.Millisecond)
	for what, err := range map[string]error{"close": r.Close(), "renew": r.Renew(), "detach": d.Detach(r), "device": d.Close(ctx)} {
		if !errors.Is(err, base.ErrBusy) {
			t.Errorf("%s: %v", what, err)
		}
	}
	cancel()
	s.Hold(false)
	wait(t, b)
	if !errors.Is(b.Err(), base.ErrIsolated) || r.InFlight() != 0 || d.Stats().InFlightBytes != 0 {
		t.Errorf("%v, %d holds, %+v", b.Err(), r.InFlight(), d.Stats())
	}
	if err := d.Reset(bg(t)); err != nil {
		t.Fatal(err)
	}
	for i := range b.Reqs {
		b.Reqs[i].Segs[0] = r.Seg(int64(i)*4096, 4096)
	}
	run(t, d, b)
}

// TestInvalidCompletions: what no controller may say isolates it, with the fault
// told, and a reset mends it.
func TestInvalidCompletions(t *testing.T) {
	for kind, text := range map[sim.Kind]error{sim.FaultDuplicate: base.ErrCorrupt, sim.FaultWrongSQID: base.ErrCorrupt,
		sim.FaultWildSQHD: base.ErrCorrupt, sim.FaultUnknownCID: base.ErrCorrupt, sim.FaultFatal: base.ErrIsolated,
		sim.FaultOnes: base.ErrDeviceGone} {
		t.Run(kind.String(), func(t *testing.T) {
			s := model(t, sim.Default(16*base.MiB))
			d := opened(t, s, quiet)
			b := reads(t, d, 16, 64<<10)
			run(t, d, b)
			for round := range uint64(3) {
				s.Script(sim.Rule{Kind: kind, Skip: 7, Count: 1})
				submit(t, d, b)
				wait(t, b)
				for tries := 0; d.State() == driver.StateReady && tries < 10; tries++ {
					submit(t, d, b) // a duplicate may come after the last entry has ended
					wait(t, b)
				}
				if !errors.Is(d.Submit(bg(t), b), text) || d.Incarnation() != round+1 {
					t.Errorf("%v, incarnation %d", d.Submit(bg(t), b), d.Incarnation())
				}
				if err := d.Reset(bg(t)); err != nil {
					t.Fatal(err)
				}
				run(t, d, b)
			}
			works(t, d)
		})
	}
}

// TestH04Removal: a device that is pulled out ends every request and stays
// removed; closing it leaves nothing behind.
func TestH04Removal(t *testing.T) {
	for _, faults := range []bool{false, true} {
		cfg := sim.Default(16 * base.MiB)
		cfg.RemovalFaults = faults
		s := model(t, cfg)
		d := opened(t, s, ctrl.Options{})
		b := reads(t, d, 16, 4096)
		s.Script(sim.Rule{Kind: sim.FaultRemove, Skip: 5, Count: 1})
		submit(t, d, b)
		wait(t, b)
		for end := time.Now().Add(time.Minute); d.State() != driver.StateRemoved && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		for i := range b.Reqs {
			if err := b.Reqs[i].Err; err != nil && !errors.Is(err, base.ErrDeviceGone) {
				t.Errorf("entry %d: %v", i, err)
			}
		}
		for _, err := range []error{d.Submit(bg(t), b), d.Reset(bg(t)), d.Attach(b.Reqs[0].Segs[0].Region)} {
			if !errors.Is(err, base.ErrDeviceGone) {
				t.Errorf("after removal: %v", err)
			}
		}
	}
}

// TestH05RemovalWhileOpening: a device that is pulled out at any step of the
// bring-up is an error in bounded time.
func TestH05RemovalWhileOpening(t *testing.T) {
	for skip := range 14 {
		s := model(t, sim.Default(16*base.MiB))
		s.Script(sim.Rule{Kind: sim.FaultRemove, Admin: true, Skip: skip, Count: 1})
		d, err := ctrl.Open(bg(t), s, quiet)
		if err == nil {
			if s.Fired()[sim.FaultRemove] == 1 {
				t.Errorf("command %d: opened a device that is gone", skip)
			}
			if err := d.Close(bg(t)); err != nil {
				t.Error(err)
			}
			continue
		}
		if s.Now() > time.Minute || !errors.Is(err, base.ErrTimeout) && !errors.Is(err, base.ErrDeviceGone) {
			t.Errorf("command %d: %v after %v", skip, err, s.Now())
		}
	}
}

// TestG04IdentifierOutOfOrder: one command stays in flight for many rounds of the
// queue; its identifier and its list are not given to another.
func TestG04IdentifierOutOfOrder(t *testing.T) {
	cfg := sim.Default(64 * base.MiB)
	cfg.CAP.MQES = 15
	s := model(t, cfg)
	o := quiet
	o.Queues = 1
	d := opened(t, s, o)
	one, many := reads(t, d, 1, 64<<10), reads(t, d, 8, 64<<10)
	s.Script(sim.Rule{Kind: sim.FaultLose, Count: 1})
	submit(t, d, one)
	for range 60 {
		run(t, d, many)
	}
	if one.Ended() {
		t.Error("the lost command ended")
	}
	s.Fatal()
	wait(t, one)
	if !errors.Is(one.Err(), base.ErrIsolated) {
		t.Errorf("%v", one.Err())
	}
	if err := d.Reset(bg(t)); err != nil {
		t.Fatal(err)
	}
	run(t, d, one)
}

// TestG04StaleCompletion: a completion that comes a second time does not end the
// command that has its slot by now.
func TestG04StaleCompletion(t *testing.T) {
	s := model(t, sim.Default(16*base.MiB))
	o := quiet
	o.Queues, o.Depth = 1, 1
	d := opened(t, s, o)
	b := reads(t, d, 1, 4096)
	for range 3 {
		s.Script(sim.Rule{Kind: sim.FaultDuplicate, Count: 1}, sim.Rule{Kind: sim.FaultDelay, Delay: 10 * time.Second})
		run(t, d, b)
		submit(t, d, b)
		wait(t, b)
		if !errors.Is(b.Err(), base.ErrIsolated) || !errors.Is(b.Err(), base.ErrCorrupt) {
			t.Errorf("%v", b.Err())
		}
		s.Script()
		if err := d.Reset(bg(t)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestH12SmallQueues: queues of the smallest sizes, random order of completions, a
// million commands: the model sees no tail pass a head.
func TestH12SmallQueues(t *testing.T) {
	rounds := 5210 // of 64, three times
	if !dma.OffHeap || testing.Short() {
		rounds = 40 // the race detector makes it slow
	}
	for _, mqes := range []uint16{1, 2, 6} {
		cfg := sim.Default(64 * base.MiB)
		cfg.CAP.MQES = mqes
		s := model(t, cfg)
		d := opened(t, s, quiet)
		s.Script(sim.Rule{Kind: sim.FaultDelay, Chance: 0.7, Delay: time.Millisecond})
		b := reads(t, d, 64, 4096)
		for range rounds {
			run(t, d, b)
		}
		if n := d.Stats().Reads; n != int64(rounds*64) {
			t.Errorf("MQES %d: %d reads", mqes, n)
		}
	}
}

// TestRetry: statuses that pass are retried, at most three times, with the delay
// that the controller asks for, unless that is longer than the command's deadline; others
// are not.
func TestRetry(t *testing.T) {
	for _, x := range []struct {
		status   nvme.Status
		count    int
		commands int64
		delay    time.Duration
		err      bool
	}{
		{nvme.StatusNSNotReady, 3, 4, 0, false}, {nvme.StatusNSNotReady, 4, 4, 0, true},
		{nvme.StatusNSNotReady | nvme.StatusDNR, 1, 1, 0, true}, {nvme.StatusLBARange, 1, 1, 0, true},
		{nvme.StatusInterrupted.WithCRD(2), 2, 3, 600 * time.Millisecond, false},
		{nvme.StatusInterrupted.WithCRD(1), 1, 2, driver.ReadWriteDeadline, false},
		{nvme.StatusInterrupted.WithCRD(3), 1, 1, 0, true}, // 109 minutes
	} {
		cfg := sim.Default(16 * base.MiB)
		cfg.Identify.CRDT[0].Set(uint16(driver.ReadWriteDeadline / (100 * time.Millisecond)))
		cfg.Identify.CRDT[1].Set(3)
		cfg.Identify.CRDT[2].Set(0xffff)
		s := model(t, cfg)
		d := opened(t, s, quiet)
		b := reads(t, d, 1, 4096)
		s.Script(sim.Rule{Kind: sim.FaultStatus, Count: x.count, Status: x.status})
		start := s.Now()
		submit(t, d, b)
		wait(t, b)
		if (b.Err() != nil) != x.err || d.Stats().Commands != x.commands || s.Now()-start != x.delay || d.State() != driver.StateReady {
			t.Errorf("%v × %d: %v after %d commands and %v", x.status, x.count, b.Err(), d.Stats().Commands, s.Now()-start)
		}
		var st *nvme.StatusError
		if x.err && (!errors.As(b.Err(), &st) || st.Status != x.status) {
			t.Errorf("%v", b.Err())
		}
	}
}

// TestRetryIsNotInFlight: while a command waits to be sent again it is not on the
// device, and a success that the controller tells of it then is invalid: its data
// never moved.
func TestRetryIsNotInFlight(t *testing.T) {
	cfg := sim.Default(16 * base.MiB)
	cfg.Identify.CRDT[0].Set(10)
	s := model(t, cfg)
	d := opened(t, s, quiet)
	for _, size := range []int64{4096, base.MiB} { // one command, and several
		b := reads(t, d, 1, size)
		s.Script(sim.Rule{Kind: sim.FaultDuplicate, Count: 1, Status: nvme.StatusNSNotReady.WithCRD(1)})
		submit(t, d, b)
		wait(t, b)
		if !errors.Is(b.Err(), base.ErrIsolated) || !errors.Is(d.Submit(bg(t), b), base.ErrCorrupt) {
			t.Errorf("%d bytes: %v, and the device is %v", size, b.Err(), d.State())
		}
		if err := d.Reset(bg(t)); err != nil {
			t.Fatal(err)
		}
		works(t, d)
	}
}

// TestI07FailedPart: of a request that was cut, the bytes before the first failed
// command are done, and the failure at the lowest offset is told, whatever the
// order of completions.
func TestI07FailedPart(t *testing.T) {
	s := model(t, sim.Default(16*base.MiB))
	d := opened(t, s, quiet)
	b := reads(t, d, 1, base.MiB) // eight commands of 32 blocks
	for _, first := range []uint64{0, 32, 96, 224} {
		s.Script(sim.Rule{Kind: sim.FaultStatus, From: first, To: 1000, Status: nvme.StatusUnrecoveredRead | nvme.StatusDNR},
			sim.Rule{Kind: sim.FaultDelay, Delay: time.Millisecond})
		submit(t, d, b)
		wait(t, b)
		if b.Reqs[0].Done != int64(first)*4096 || !errors.Is(b.Err(), base.ErrCorrupt) {
			t.Errorf("first failure at block %d: %d bytes, %v", first, b.Reqs[0].Done, b.Err())
		}
	}
}

// TestFlushThatWasNotSent: a flush that found no room in time has lost nothing, and
// does not isolate the device.
func TestFlushThatWasNotSent(t *testing.T) {
	cfg := sim.Default(16 * base.MiB)
	cfg.Real = true
	s := model(t, cfg)
	d := opened(t, s, ctrl.Options{Queues: 1, Depth: 1})
	b := reads(t, d, 1, 4096)
	s.Hold(true)
	submit(t, d, b)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if err := driver.Flush(ctx, d); !errors.Is(err, base.ErrTimeout) || d.State() != driver.StateReady {
		t.Errorf("%v, %v", err, d.State())
	}
	s.Hold(false)
	wait(t, b)
	if err := driver.Flush(bg(t), d); err != nil {
		t.Error(err)
	}
}

// TestFailedFlushIsNotRepeated: not even when the status is one that would pass.
func TestFailedFlushIsNotRepeated(t *testing.T) {
	s := model(t, sim.Default(16*base.MiB))
	d := opened(t, s, quiet)
	s.Script(sim.Rule{Kind: sim.FaultStatus, Count: 1, Status: nvme.StatusNSNotReady})
	if err := driver.Flush(bg(t), d); !errors.Is(err, base.ErrIsolated) || d.Stats().Commands != 1 {
		t.Errorf("%v after %d commands", err, d.Stats().Commands)
	}
	if err := d.Reset(bg(t)); err != nil {
		t.Fatal(err)
	}
	if err := driver.Flush(bg(t), d); err != nil {
		t.Error(err)
	}
}

// TestB15ResetInFlight: a reset with many commands in flight ends each request
// exactly once (the contract panics on a second answer).
func TestB15ResetInFlight(t *testing.T) {
	cfg := sim.Default(64 * base.MiB)
	cfg.UnreadyDelay = time.Second
	s := model(t, cfg)
	d := opened(t, s, quiet)
	for range 20 {
		b := reads(t, d, 64, 64<<10)
		s.Script(sim.Rule{Kind: sim.FaultDelay, Chance: 0.9, Delay: time.Second}, sim.Rule{Kind: sim.FaultFatal, Skip: 30, Count: 1})
		submit(t, d, b)
		wait(t, b)
		if err := d.Reset(bg(t)); err != nil {
			t.Fatal(err)
		}
		s.Script()
		run(t, d, b)
	}
}

// TestStopCannotBeConfirmed: memory stays the device's as long as the controller
// is not known to have stopped.
func TestStopCannotBeConfirmed(t *testing.T) {
	cfg := sim.Default(16 * base.MiB)
	cfg.Real = true
	s := model(t, cfg)
	d := opened(t, s, ctrl.Options{})
	b := reads(t, d, 4, 4096)
	s.Hold(true)
	submit(t, d, b)
	s.Ones() // and so EN cannot be cleared
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err := b.Wait(ctx); !errors.Is(err, base.ErrTimeout) {
		t.Error(err)
	}
	for end := time.Now().Add(time.Minute); d.State() == driver.StateReady && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	if d.State() != driver.StateIsolated {
		t.Error(d.State())
	}
	r := b.Reqs[0].Segs[0].Region
	if err := r.Close(); !errors.Is(err, base.ErrBusy) || b.Ended() {
		t.Errorf("memory of a device that runs: %v, ended %v", err, b.Ended())
	}
	if err := d.Reset(ctx); !errors.Is(err, base.ErrTimeout) {
		t.Errorf("%v", err)
	}
	s.Hold(false)
	wait(t, b)
	if err := d.Reset(bg(t)); err != nil {
		t.Fatal(err)
	}
	run(t, d, b)
}

// TestEvents: what the controller reports is told, its log page is read, and it
// can report again.
func TestEvents(t *testing.T) {
	cfg := sim.Default(16 * base.MiB)
	cfg.Real = true
	s := model(t, cfg)
	d := opened(t, s, ctrl.Options{Watch: time.Millisecond})
	for _, e := range []nvme.AsyncEvent{nvme.MakeAsyncEvent(nvme.EventTypeSMART, nvme.EventInfoSpare, nvme.LogSMART),
		nvme.MakeAsyncEvent(nvme.EventTypeNotice, nvme.EventInfoNamespaceChanged, nvme.LogChangedNamespaces),
		nvme.MakeAsyncEvent(nvme.EventTypeSMART, nvme.EventInfoTemperature, nvme.LogSMART)} {
		s.Event(e)
		for end := time.Now().Add(time.Minute); d.Warning() != e.String(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%q is not told, but %q", e, d.Warning())
			}
		}
	}
	s.SMART(func(l *nvme.SMARTLog) { l.CriticalWarning, l.PercentageUsed = nvme.WarnSpare, 101 })
	h, err := d.Health(bg(t))
	if err != nil || h.OK || h.Critical == "" || h.UsedPercent != 101 || h.TemperatureKelvin != 310 || h.SparePercent != 100 {
		t.Errorf("%+v, %v", h, err)
	}
}

// TestJ11ShutdownWritesCache: an orderly close loses nothing to a power cut after
// it, though nothing was flushed.
func TestJ11ShutdownWritesCache(t *testing.T) {
	for seed := range uint64(4) {
		cfg := sim.Default(16 * base.MiB)
		cfg.Seed, cfg.ShutdownDelay = seed, 3*time.Second
		s := model(t, cfg)
		d, err := ctrl.Open(bg(t), s, quiet)
		if err != nil {
			t.Fatal(err)
		}
		r := memory(t, base.MiB)
		whole := []driver.Seg{r.Seg(0, base.MiB)}
		if err := driver.Do(bg(t), d, driver.Request{Op: driver.OpWrite, Len: base.MiB, Segs: whole}); err != nil {
			t.Fatal(err)
		}
		if err := d.Close(bg(t)); err != nil {
			t.Fatal(err)
		}
		if now := s.Now(); now < cfg.ShutdownDelay {
			t.Errorf("closed after %v, before the shutdown was done", now)
		}
		s.Remove()
		s.Insert() // without power in between
		want := bytes.Clone(r.CPU())
		clear(r.CPU())
		d = opened(t, s, quiet)
		if err := driver.Do(bg(t), d, driver.Request{Op: driver.OpRead, Len: base.MiB, Segs: whole}); err != nil || !bytes.Equal(r.CPU(), want) {
			t.Errorf("seed %d: %v, or the cache was lost", seed, err)
		}
	}
}

// TestB06Vectors: with fewer interrupt vectors than queues those without are
// polled, which is told once; with enough every completion comes by an interrupt.
func TestB06Vectors(t *testing.T) {
	const none, some, all = ctrl.NoInterrupts, "interrupts, batches " + ctrl.NoInterrupts, "interrupts"
	for vectors, engine := range map[int]string{0: none, 1: none, 2: some, 3: some, 4: all, 5: all} {
		cfg := sim.Default(16 * base.MiB)
		cfg.Vectors, cfg.Real = vectors, true
		s := model(t, cfg)
		d := opened(t, s, ctrl.Options{Queues: 3, Mode: ctrl.Interrupts})
		works(t, d)
		n := 0
		for _, r := range d.Info().Reasons {
			n += strings.Count(r, "are polled")
		}
		told := 1
		if engine == all {
			told = 0
		}
		if n != told || d.Info().Engine != engine {
			t.Errorf("%d vectors: %s; told %d times: %q", vectors, d.Info().Engine, n, d.Info().Reasons)
		}
	}
}

// TestB06DefaultQueues: unless told otherwise, there are no more queues than have an
// interrupt vector of their own.
func TestB06DefaultQueues(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	for _, x := range []struct {
		vectors int
		mode    ctrl.Mode
		queues  uint16
	}{{4, ctrl.Interrupts, 3}, {4, ctrl.Hybrid, 3}, {4, ctrl.Polled, 8}, {2, ctrl.Interrupts, 1}, {16, ctrl.Interrupts, 8}} {
		cfg := sim.Default(16 * base.MiB)
		cfg.Vectors, cfg.Real = x.vectors, true
		s := model(t, cfg)
		d := opened(t, s, ctrl.Options{Mode: x.mode})
		works(t, d)
		told := strings.Join(d.Info().Reasons, "\n")
		if strings.Contains(told, "are polled") || !strings.Contains(told, fmt.Sprintf("asked for %d in all", x.queues)) {
			t.Errorf("%d vectors, %v: %s", x.vectors, x.mode, told)
		}
	}
}

// TestInterruptModeSleeps: a waiter in interrupt mode does not poll, not even once;
// a polling one does.
func TestInterruptModeSleeps(t *testing.T) {
	for _, mode := range []ctrl.Mode{ctrl.Interrupts, ctrl.Polled} {
		cfg := sim.Default(64 * base.MiB)
		cfg.Real, cfg.Service = true, sim.ServiceFixed
		w := &watched{Sim: model(t, cfg)}
		d := openedOn(t, w, ctrl.Options{Mode: mode, Watch: time.Hour})
		b := reads(t, d, 8, base.MiB)
		irqs, pauses := w.Counts().Interrupts, w.pauses.Load()
		for range 10 {
			run(t, d, b)
		}
		irqs, pauses = w.Counts().Interrupts-irqs, w.pauses.Load()-pauses
		if sleeps := mode == ctrl.Interrupts; sleeps != (irqs > 0) || sleeps != (pauses == 0) {
			t.Errorf("%v: %d interrupts, %d polls", mode, irqs, pauses)
		}
	}
}

// TestInterruptModeDeadline: nobody polls, and a device deadline is seen all the same.
func TestInterruptModeDeadline(t *testing.T) {
	cfg := sim.Default(64 * base.MiB)
	cfg.Real, cfg.Service = true, sim.ServiceFixed
	s := model(t, cfg)
	d := opened(t, s, ctrl.Options{Mode: ctrl.Interrupts, Watch: 5 * time.Millisecond, Deadline: ctrl.Deadlines{ReadWrite: time.Second}})
	b := reads(t, d, 8, base.MiB)
	run(t, d, b)
	s.Script(sim.Rule{Kind: sim.FaultLoseCompletion, Count: 1})
	submit(t, d, b)
	wait(t, b)
	if d.State() != driver.StateIsolated || !errors.Is(b.Err(), base.ErrTimeout) {
		t.Errorf("%v, %v", d.State(), b.Err())
	}
	s.Script()
	if err := d.Reset(bg(t)); err != nil {
		t.Fatal(err)
	}
	run(t, d, b)
}

// TestJ11PowerCut: after a power cut the device is isolated and counts it; what was
// flushed or forced is there, the rest is old or new, block by block.
func TestJ11PowerCut(t *testing.T) {
	for seed := range uint64(8) {
		cfg := sim.Default(16 * base.MiB)
		cfg.Seed = seed
		s := model(t, cfg)
		d := opened(t, s, quiet)
		r, err := driver.AllocRegion(4096, "ctrl test")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		write := func(block int64, c byte, fua bool) {
			for i := range r.CPU() {
				r.CPU()[i] = c
			}
			if err := driver.Do(bg(t), d, driver.Request{Op: driver.OpWrite, FUA: fua, Off: block * 4096, Len: 4096, Segs: []driver.Seg{r.Seg(0, 4096)}}); err != nil {
				t.Fatal(err)
			}
		}
		for block := range int64(30) {
			write(block, 1, false)
		}
		if err := driver.Flush(bg(t), d); err != nil {
			t.Fatal(err)
		}
		for block := range int64(20) {
			write(block, 2, block >= 10)
		}
		s.Power()
		b := reads(t, d, 1, 4096)
		submit(t, d, b)
		wait(t, b) // nobody answers; the poller looks why
		if d.State() != driver.StateIsolated || d.Incarnation() != 1 {
			t.Fatalf("%v, incarnation %d: %v", d.State(), d.Incarnation(), b.Err())
		}
		if err := d.Reset(bg(t)); err != nil {
			t.Fatal(err)
		}
		seen := [256]int{}
		for block := range int64(30) {
			if err := driver.Do(bg(t), d, driver.Request{Op: driver.OpRead, Off: block * 4096, Len: 4096, Segs: []driver.Seg{r.Seg(0, 4096)}}); err != nil {
				t.Fatal(err)
			}
			c := r.CPU()[0]
			if bytes.Count(r.CPU(), []byte{c}) != 4096 || block >= 10 && block < 20 && c != 2 || block >= 20 && c != 1 {
				t.Errorf("seed %d: block %d holds %d", seed, block, c)
			}
			if block < 10 {
				seen[c]++
			}
		}
		if seen[1]+seen[2] != 10 {
			t.Errorf("seed %d: unflushed blocks hold %d old and %d new", seed, seen[1], seen[2])
		}
	}
}

// barrier lets a controller be enabled only once all of a pool are about to be.
type barrier struct {
	*sim.Sim
	wait func()
}

func (b *barrier) Store32(off uint64, v uint32) error {
	if off == nvme.RegCC && nvme.CC(v).Enabled() && nvme.CC(v).SHN() == nvme.ShutdownNone {
		b.wait()
	}
	return b.Sim.Store32(off, v)
}

// TestB12ParallelOpen: slow controllers are brought up at the same time; nothing
// that they share makes one wait for another.
func TestB12ParallelOpen(t *testing.T) {
	const n = 8
	var reached, wg sync.WaitGroup
	reached.Add(n)
	start := time.Now()
	for range n {
		cfg := sim.Default(16 * base.MiB)
		cfg.Real, cfg.ReadyDelay = true, 200*time.Millisecond
		s := model(t, cfg)
		wg.Go(func() {
			d, err := ctrl.Open(bg(t), &barrier{s, func() { reached.Done(); reached.Wait() }}, quiet)
			if err == nil {
				err = d.Close(bg(t))
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	t.Logf("%d controllers of 200 ms took %v", n, time.Since(start))
}

// TestDedicatedController: driver and controller run at the same time; what orders
// their memory accesses are doorbells and phase tags alone.
func TestDedicatedController(t *testing.T) {
	for _, mode := range []ctrl.Mode{ctrl.Polled, ctrl.Interrupts} {
		cfg := sim.Default(64 * base.MiB)
		cfg.Dedicated, cfg.Real = true, true
		s := model(t, cfg)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { s.Serve(ctx) })
		t.Cleanup(func() { cancel(); wg.Wait() })
		d := opened(t, s, ctrl.Options{Mode: mode, Depth: 15})
		for range 10 {
			works(t, d)
		}
		s.Script(sim.Rule{Kind: sim.FaultFatal, Skip: 20, Count: 1})
		b := reads(t, d, 64, 64<<10)
		submit(t, d, b)
		wait(t, b)
		if err := d.Reset(bg(t)); err != nil {
			t.Fatal(err)
		}
		run(t, d, b)
	}
}

var _ hw.Device = (*sim.Sim)(nil)
