package ctrl_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/internal/base"
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
// their times, from the submission to the end of the wait.
func smallReads(t *testing.T, s *sim.Sim, d *ctrl.Device, n int) time.Duration {
	var took []time.Duration
	rnd := testenv.Seed(t)
	b := reads(t, d, 1, 4096)
	for range n {
		b.Reqs[0].Off = rnd.Int64N(60000) * 4096
		start := s.Now()
		run(t, d, b)
		took = append(took, s.Now()-start)
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
	if testenv.Race {
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

// TestGroups: few small requests have queues of their own, flushes too; whatever
// else comes goes to the queues for batches. One queue serves both.
func TestGroups(t *testing.T) {
	for _, queues := range []int{1, 2, 3, 8} {
		s := model(t, sim.Default(64*base.MiB))
		o := quiet
		o.Queues = queues
		d := opened(t, s, o)
		used := map[uint16]bool{}
		onEnd(s, func(x *sim.Seen) { used[x.Queue] = true })
		latency := uint16(max(queues/2, 1))
		for name, x := range map[string]struct {
			b     *driver.Batch
			small bool
		}{
			"one": {reads(t, d, 1, 4096), true}, "some": {reads(t, d, 4, 64<<10), true},
			"many": {reads(t, d, 5, 4096), false}, "large": {reads(t, d, 1, 68<<10), false},
			"flush":  {&driver.Batch{Reqs: []driver.Request{{Op: driver.OpFlush}}}, true},
			"zeroes": {&driver.Batch{Reqs: []driver.Request{{Op: driver.OpWriteZeroes, Len: 4096}}}, false},
		} {
			clear(used)
			run(t, d, x.b)
			for q := range used {
				if small := q <= latency; queues > 1 && small != x.small {
					t.Errorf("%d queues, %s: queue %d", queues, name, q)
				}
			}
			if len(used) != 1 {
				t.Errorf("%d queues, %s: used %v", queues, name, used)
			}
		}
	}
}

// TestSubmittersTakeTurns: of two batches that are each larger than their queue,
// both get their share of the device from the beginning, whoever polls.
func TestSubmittersTakeTurns(t *testing.T) {
	if testenv.Race {
		return // it counts the model's time only, and takes long
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	s, d := fair(t, 5, ctrl.Options{Watch: -1, Queues: 2, Depth: 63})
	const n = 120
	first, second := reads(t, d, n, base.MiB), reads(t, d, n, base.MiB)
	for i := range second.Reqs {
		second.Reqs[i].Off += n * base.MiB
	}
	var done [2]int64 // blocks, until one batch has ended
	onEnd(s, func(x *sim.Seen) {
		if max(done[0], done[1]) < n*256 {
			done[x.Command.SLBA()/(n*256)] += int64(x.Command.Blocks())
		}
	})
	defer s.Observe(nil)
	var wg sync.WaitGroup
	for _, b := range []*driver.Batch{first, second} {
		wg.Go(func() { run(t, d, b) })
	}
	wg.Wait()
	share := float64(min(done[0], done[1])) / n / 256
	t.Logf("when one batch had ended, the other had %.0f %%", share*100)
	if share < 0.75 {
		t.Error("one batch had to wait for the other")
	}
}

// TestCancelCutsOff: of one large request that was cut, a cancel keeps the commands
// from the device that were not sent, and tells how far the others have come.
func TestCancelCutsOff(t *testing.T) {
	cfg := sim.Default(64 * base.MiB)
	cfg.Real = true
	s := model(t, cfg)
	d := opened(t, s, ctrl.Options{Queues: 1, Depth: 8})
	b := reads(t, d, 1, 4*base.MiB)
	s.Hold(true)
	var wg sync.WaitGroup
	wg.Go(func() { submit(t, d, b) })
	for d.Stats().Commands < 8 && !t.Failed() {
		runtime.Gosched()
	}
	b.Cancel()
	wg.Wait()
	if b.Ended() || b.Reqs[0].Segs[0].Region.InFlight() == 0 {
		t.Error("it has ended with commands in flight")
	}
	s.Hold(false)
	wait(t, b)
	if got := b.Reqs[0]; got.Done != 8*128<<10 || !errors.Is(got.Err, context.Canceled) || d.Stats().Commands != 8 {
		t.Errorf("%d bytes, %v, %d commands", got.Done, got.Err, d.Stats().Commands)
	}
	run(t, d, b)
}
