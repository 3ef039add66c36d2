package ctrl_test

import (
	"testing"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// registerWrites counts how often the doorbells of a model are written for many reads.
func registerWrites(t *testing.T, o ctrl.Options) (sq, cq int64) {
	t.Helper()
	cfg := sim.Default(16 * base.MiB)
	cfg.Identify.OACS.Set(nvme.OACSDoorbellBuffer)
	s := model(t, cfg)
	d := opened(t, s, o)
	r, err := driver.AllocRegion(64*base.KiB, "shadow")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	before := s.Counts()
	for range 20 {
		b := driver.Batch{}
		for i := range int64(100) {
			b.Reqs = append(b.Reqs, driver.Request{Op: driver.OpRead, Off: i * 4096, Len: 4096, Segs: []driver.Seg{r.Seg(0, 4096)}})
		}
		if err := d.Submit(bg(t), &b); err != nil {
			t.Fatal(err)
		}
		if err := b.Wait(bg(t)); err != nil || b.Err() != nil {
			t.Fatal(err, b.Err())
		}
	}
	after := s.Counts()
	return after.SQDoorbells - before.SQDoorbells, after.CQDoorbells - before.CQDoorbells
}

// TestShadowDoorbells: a controller that looks for doorbells in memory is told by its
// registers only when it asks for that: when it rests, and here each time that the
// head of a completion queue passes 0.
func TestShadowDoorbells(t *testing.T) {
	o := quiet
	o.Queues, o.Depth, o.Latency = 2, 255, 63
	sq, cq := registerWrites(t, o)
	o.NoShadow = true
	sqAll, cqAll := registerWrites(t, o)
	t.Logf("%d and %d writes with doorbells in memory, %d and %d without", sq, cq, sqAll, cqAll)
	if 2*cq > cqAll || sq == 0 || 2*sq > sqAll {
		t.Errorf("%d and %d writes with doorbells in memory, %d and %d without", sq, cq, sqAll, cqAll)
	}
}
