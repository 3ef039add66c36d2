package ctrl_test

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/testenv"
)

// fair opens a device on the service model.
func fair(t *testing.T, mdts uint8, o ctrl.Options) (*sim.Sim, *ctrl.Device) {
	cfg := sim.Default(256 * base.MiB)
	cfg.Service, cfg.FixedPages, cfg.Patience = sim.ServiceFixed, 512, 8
	cfg.Identify.MDTS = mdts
	s := model(t, cfg)
	return s, opened(t, s, o)
}

// smallReads does n reads of 4 KiB, one after another, and gives the median of
// their times in the controller.
func smallReads(t *testing.T, s *sim.Sim, d *ctrl.Device, n int) time.Duration {
	var took []time.Duration
	s.Trace(func(c *nvme.Command, begin, end time.Duration) {
		if c.OPC == nvme.OpRead && c.Blocks() == 1 {
			took = append(took, end-begin)
		}
	})
	defer s.Trace(nil)
	rnd := testenv.Seed(t)
	b := reads(t, d, 1, 4096)
	for range n {
		b.Reqs[0].Off = rnd.Int64N(60000) * 4096
		run(t, d, b)
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// largeReads reads 64 MiB at a time, rounds times, and gives the bandwidth in
// bytes a second of the model's time.
func largeReads(t *testing.T, s *sim.Sim, d *ctrl.Device, rounds int) float64 {
	b := reads(t, d, 1, 64*base.MiB)
	start := s.Now()
	for range rounds {
		run(t, d, b)
	}
	return float64(rounds) * 64 * base.MiB / (s.Now() - start).Seconds()
}

// TestLargeRequestsAreFair: a read of 64 MiB in flight raises the median of small
// reads to at most twice, and keeps nine tenths of its bandwidth.
func TestLargeRequestsAreFair(t *testing.T) {
	if !dma.OffHeap {
		return // it counts the model's time only, and takes long
	}
	// On one processor the goroutines take turns, and the model's time stands
	// still until all of them have had theirs.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, mdts := range []uint8{0, 5} {
		s, d := fair(t, mdts, ctrl.Options{Watch: -1})
		lone, alone := largeReads(t, s, d, 2), smallReads(t, s, d, 200)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		var together float64
		wg.Go(func() {
			together = largeReads(t, s, d, 6)
			cancel()
		})
		var medians []time.Duration
		for ctx.Err() == nil {
			medians = append(medians, smallReads(t, s, d, 20))
		}
		wg.Wait()
		slices.Sort(medians)
		median := medians[len(medians)/2]
		t.Logf("MDTS %d: 4 KiB alone %v, beside 64 MiB %v; 64 MiB %.2f GB/s alone, %.2f beside 4 KiB",
			mdts, alone, median, lone/1e9, together/1e9)
		if median > 2*alone || together < 0.9*lone {
			t.Error("not fair")
		}
	}
}
