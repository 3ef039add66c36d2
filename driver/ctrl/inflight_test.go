package ctrl_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/internal/base"
)

// TestH09CloseWithDeadQueue: a Close whose queue never answers ends with its context,
// and tells which requests have no answer; the others had theirs. The device stays
// open and comes back with a reset.
func TestH09CloseWithDeadQueue(t *testing.T) {
	cfg := sim.Default(16 * base.MiB)
	w := &watched{Sim: model(t, cfg)}
	d := openedOn(t, w, quiet)
	few, large := reads(t, d, 4, 4096), reads(t, d, 1, 512<<10) // the second is cut into four commands
	large.Reqs[0].Off = 8 * base.MiB
	w.Script(sim.Rule{Kind: sim.FaultLose, From: 1, To: 3}, sim.Rule{Kind: sim.FaultLose, From: 2048 + 64, To: 4096})
	submit(t, d, few)
	submit(t, d, large)
	ctx, cancel := context.WithCancel(context.Background())
	w.at, w.alarm = w.Now()+time.Second, cancel
	err := d.Close(ctx)
	var list *ctrl.InFlightError
	if !errors.Is(err, base.ErrBusy) || !errors.Is(err, context.Canceled) || !errors.As(err, &list) {
		t.Fatalf("%v", err)
	}
	if list.Total != 3 || len(list.Requests) != 3 {
		t.Fatalf("%+v", list)
	}
	slices.SortFunc(list.Requests, func(a, b ctrl.InFlight) int { return int(a.Off - b.Off) })
	for i, want := range []ctrl.InFlight{{driver.OpRead, 4096, 4096, 0, 1}, {driver.OpRead, 8192, 4096, 0, 1},
		{driver.OpRead, 8 * base.MiB, 512 << 10, 0, 2}} {
		got := list.Requests[i]
		if want.Queue = got.Queue; got != want || got.Queue == 0 {
			t.Errorf("request %d: %v, want %v", i, got, want)
		}
	}
	for _, s := range []string{"3 requests in flight", "read of 4096 bytes at 8192 (1 commands", "read of 524288 bytes at 8388608 (2 commands"} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%v does not say %q", err, s)
		}
	}
	if few.Ended() || d.State() != driver.StateReady {
		t.Errorf("ended %v, %v", few.Ended(), d.State())
	}
	wait(t, few)
	wait(t, large)
	for i, lost := range []bool{false, true, true, false} {
		if err := few.Reqs[i].Err; errors.Is(err, base.ErrTimeout) != lost || !lost && err != nil {
			t.Errorf("entry %d: %v", i, err)
		}
	}
	w.Script()
	if err := d.Reset(bg(t)); err != nil {
		t.Fatal(err)
	}
	works(t, d)
}

// TestH09ListIsBounded: of many requests in flight the first are listed, and all are
// counted.
func TestH09ListIsBounded(t *testing.T) {
	const n = ctrl.MaxListed + 10
	s := model(t, sim.Default(16*base.MiB))
	d := opened(t, s, ctrl.Options{Watch: -1, Queues: 1, Depth: n, Latency: n})
	b := reads(t, d, n, 4096)
	s.Hold(true)
	submit(t, d, b)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := d.Close(ctx)
	var list *ctrl.InFlightError
	if !errors.As(err, &list) || list.Total != n || len(list.Requests) != ctrl.MaxListed || !strings.Contains(err.Error(), ", 262 more: ") {
		t.Errorf("%v: %d of %d", err, len(list.Requests), list.Total)
	}
	s.Hold(false)
	wait(t, b)
}
