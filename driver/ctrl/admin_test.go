package ctrl_test

import (
	"context"
	"errors"
	"testing"
	"time"

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
	for i := range rounds {
		s.Hold(true)
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		_, err := d.SMART(ctx)
		cancel()
		if !errors.Is(err, base.ErrTimeout) || held() == 0 {
			t.Fatalf("given up: %v, %d pages are the device's", err, held())
		}
		s.Hold(false)
		if _, err := d.SMART(bg(t)); err != nil { // which comes after the other
			t.Fatal(err)
		}
		if n := held(); n != 1 {
			t.Fatalf("%d pages are the device's after %d commands that have ended", n, i+1)
		}
	}
}
