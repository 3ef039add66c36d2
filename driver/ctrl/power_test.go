package ctrl_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// atShutdown calls fn when the driver announces the end to the controller.
type atShutdown struct {
	*sim.Sim
	fn func()
}

func (a *atShutdown) Store32(off uint64, v uint32) error {
	if off == nvme.RegCC && nvme.CC(v).SHN() == nvme.ShutdownNormal {
		a.fn()
	}
	return a.Sim.Store32(off, v)
}

// TestLowLatency: on request the controller stays in its fastest power state, after
// a reset too, and is as before when it is closed.
func TestLowLatency(t *testing.T) {
	for _, x := range []struct {
		npss, apsta uint8
		ask         bool
	}{{4, 1, true}, {4, 1, false}, {4, 0, true}, {0, 0, true}} {
		cfg := sim.Default(16 * base.MiB)
		cfg.Identify.NPSS, cfg.Identify.APSTA = x.npss, x.apsta
		s := model(t, cfg)
		type now struct {
			state, idle uint32
			table       []byte
		}
		look := func() now {
			state, _ := s.Feature(nvme.FeatPowerManagement)
			idle, table := s.Feature(nvme.FeatAPST)
			return now{state, idle, table}
		}
		same := func(a, b now) bool {
			return a.state == b.state && a.idle == b.idle && bytes.Equal(a.table, b.table)
		}
		before := look()
		if (before.state != 0) != (x.npss > 0) || (before.idle != 0) != (x.apsta == 1) {
			t.Fatalf("the model begins with %+v", before)
		}
		var at now
		o := quiet
		o.LowLatency = x.ask
		d, err := ctrl.Open(bg(t), &atShutdown{s, func() { at = look() }}, o)
		if err != nil {
			t.Fatal(err)
		}
		want := now{table: make([]byte, 256)}
		if !x.ask {
			want = before
		}
		if got := look(); !same(got, want) {
			t.Errorf("%+v: open with %+v", x, got)
		}
		if told := strings.Count(strings.Join(d.Info().Reasons, "\n"), "low latency:"); (told == 2) != x.ask {
			t.Errorf("%+v: %q", x, d.Info().Reasons)
		}
		s.Fatal()
		b := reads(t, d, 1, 4096)
		submit(t, d, b)
		wait(t, b)
		if err := d.Reset(bg(t)); err != nil {
			t.Fatal(err)
		}
		if got := look(); !same(got, want) {
			t.Errorf("%+v: after a reset %+v", x, got)
		}
		if err := d.Close(bg(t)); err != nil {
			t.Error(err)
		}
		if !same(at, before) {
			t.Errorf("%+v: at the shutdown %+v, before %+v", x, at, before)
		}
	}
}

// TestWarnings: temperature and spare are events, and so is a command that was
// aborted; the state stays as it is, and what came is told once each.
func TestWarnings(t *testing.T) {
	cfg := sim.Default(16 * base.MiB)
	s := model(t, cfg)
	d := opened(t, s, ctrl.Options{Watch: time.Millisecond})
	var mu sync.Mutex
	var got []driver.Event
	cancel := d.Subscribe(func(e driver.Event) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, e)
	})
	defer cancel()
	told := func(text string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			mu.Lock()
			i := slices.IndexFunc(got, func(e driver.Event) bool {
				return e.Warning && e.State == driver.StateReady && strings.Contains(e.Cause.Error(), text)
			})
			n := len(got)
			mu.Unlock()
			if i >= 0 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%q is not among %d events", text, n)
			}
		}
	}
	s.Event(nvme.MakeAsyncEvent(nvme.EventTypeSMART, nvme.EventInfoTemperature, nvme.LogSMART))
	told("temperature threshold")
	s.Event(nvme.MakeAsyncEvent(nvme.EventTypeSMART, nvme.EventInfoSpare, nvme.LogSMART))
	told("spare below threshold")
	s.Script(sim.Rule{Kind: sim.FaultLose, Count: 1})
	b := reads(t, d, 1, 4096)
	submit(t, d, b)
	wait(t, b)
	if !errors.Is(b.Err(), base.ErrTimeout) {
		t.Errorf("%v", b.Err())
	}
	told("is being aborted")
	mu.Lock()
	defer mu.Unlock()
	if len(got) != 3 || d.Incarnation() != 0 {
		t.Errorf("%+v", got)
	}
}
