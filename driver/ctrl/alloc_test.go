package ctrl_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

// reads is a batch of n reads of size bytes each.
func reads(t testing.TB, d *ctrl.Device, n int, size int64) *driver.Batch {
	t.Helper()
	r, err := driver.AllocRegion(int64(n)*size, "ctrl test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := d.Attach(r); err != nil {
		t.Fatal(err)
	}
	b := new(driver.Batch)
	for i := range int64(n) {
		b.Reqs = append(b.Reqs, driver.Request{Op: driver.OpRead, Off: i * size, Len: size, Segs: []driver.Seg{r.Seg(i*size, size)}})
	}
	return b
}

func run(t testing.TB, d *ctrl.Device, b *driver.Batch) {
	ctx := context.Background()
	err := d.Submit(ctx, b)
	if err == nil {
		err = b.Wait(ctx)
	}
	if err == nil {
		err = b.Err()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestI09NoAllocation: polled I/O makes no garbage, single or in batches, and
// rings one doorbell of each kind a burst.
func TestI09NoAllocation(t *testing.T) {
	if testenv.Race {
		return // the race detector allocates
	}
	for _, size := range []int64{4096, 64 << 10, 2 << 20} {
		for _, n := range []int{1, 16} {
			cfg := sim.Default(64 * base.MiB)
			cfg.Identify.MDTS = 0
			s := model(t, cfg)
			o := quiet
			o.Queues = 1
			d := opened(t, s, o)
			b := reads(t, d, n, size)
			for range 70 { // pools and maps grow
				run(t, d, b)
			}
			before := s.Counts()
			if a := testing.AllocsPerRun(100, func() { run(t, d, b) }); a != 0 {
				t.Errorf("%d × %d bytes: %v allocations", n, size, a)
			}
			after := s.Counts()
			if sq, cq := after.SQDoorbells-before.SQDoorbells, after.CQDoorbells-before.CQDoorbells; sq != 101 || cq != 101 {
				t.Errorf("%d × %d bytes: %d and %d doorbells in 101 bursts", n, size, sq, cq)
			}
		}
	}
}

// TestSGLNeedsNoList: memory that is contiguous on the bus is named without a list,
// whatever its size.
func TestSGLNeedsNoList(t *testing.T) {
	for sgl, most := range map[uint32]int64{0: 4, 1: 1, 2: 1} { // the region may lie across two runs
		cfg := sim.Default(64 * base.MiB)
		cfg.Identify.MDTS, cfg.FixedPages = 0, 1<<12
		cfg.Identify.SGLS.Set(sgl)
		s := model(t, cfg)
		d := opened(t, s, quiet)
		run(t, d, reads(t, d, 4, 2<<20))
		if lists := s.Counts().ListPages; lists > most || sgl == 0 && lists != most {
			t.Errorf("SGLS %d: %d list pages", sgl, lists)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	for _, size := range []int64{4096, 64 << 10, 2 << 20} {
		for _, n := range []int{1, 32} {
			b.Run(fmt.Sprintf("%d/batch=%d", size, n), func(b *testing.B) {
				cfg := sim.Default(128 * base.MiB)
				cfg.Identify.MDTS = 0
				d := opened(b, model(b, cfg), ctrl.Options{Queues: 1, Watch: -1})
				batch := reads(b, d, n, size)
				b.SetBytes(int64(n) * size)
				b.ReportAllocs()
				for b.Loop() {
					run(b, d, batch)
				}
			})
		}
	}
}
