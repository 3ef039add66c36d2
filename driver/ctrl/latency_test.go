package ctrl_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
)

var (
	measure    = flag.Bool("measure", false, "measure latencies of the completion modes, and first batches in fresh processes")
	firstChild = flag.Bool("first-child", false, "the child process of TestMeasureFirstBatch")
)

// firstBatches times batches of 128 × 128 KiB on the service model, of which the
// first is the first I/O of the device.
func firstBatches(t *testing.T, real bool, n int) []time.Duration {
	cfg := sim.Default(64 * base.MiB)
	cfg.Service, cfg.Real, cfg.FixedPages = sim.ServiceFixed, real, 32
	s := model(t, cfg)
	d := opened(t, s, ctrl.Options{Watch: -1})
	b := reads(t, d, 128, 128<<10)
	clear(b.Reqs[0].Segs[0].Region.CPU()) // resident, as memory is that hardware can reach
	var took []time.Duration
	for range n {
		start := s.Now()
		run(t, d, b)
		took = append(took, s.Now()-start)
	}
	return took
}

func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

// TestFirstBatch: the first batch of a device takes as long as the next hundred, on
// the model's clock: nothing is set up when it comes. TestMeasureFirstBatch tells
// what the processor adds.
func TestFirstBatch(t *testing.T) {
	n := 101
	if testenv.Race {
		n = 6 // the race detector makes it slow
	}
	took := firstBatches(t, false, n)
	first, next := took[0], median(took[1:])
	t.Logf("first batch %v, next %v", first, next)
	if first > next*11/10 {
		t.Error("the first batch is slow")
	}
}

// TestMeasureFirstBatch is the same in 20 fresh processes by the real clock. It
// judges nothing.
func TestMeasureFirstBatch(t *testing.T) {
	if *firstChild {
		took := firstBatches(t, true, 101)
		fmt.Printf("first %d %d\n", took[0], median(took[1:]))
		return
	}
	if !*measure {
		return
	}
	var firsts, nexts []time.Duration
	for range 20 {
		out, err := exec.Command(os.Args[0], "-test.run=^TestMeasureFirstBatch$", "-first-child").Output()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		_, line, _ := strings.Cut(string(out), "first ")
		fields := strings.Fields(line)
		for i, to := range []*[]time.Duration{&firsts, &nexts} {
			n, err := strconv.ParseInt(fields[i], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			*to = append(*to, time.Duration(n))
		}
	}
	first, next := median(firsts), median(nexts)
	t.Logf("median of 20 processes: first batch %v, next %v, ratio %.3f", first, next, float64(first)/float64(next))
}

// TestModesTakeTheSameTime: on the model's clock a read by interrupts takes at most
// 1.1 times as long as a polled one, hybrid at most 1.2 times the better: nothing
// waits for a tick of the watcher, or for a retry. TestMeasureModes tells what the
// processor adds.
func TestModesTakeTheSameTime(t *testing.T) {
	for _, size := range []int64{4096, base.MiB} {
		var took [4]time.Duration
		for _, mode := range []ctrl.Mode{ctrl.Polled, ctrl.Interrupts, ctrl.Hybrid} {
			cfg := sim.Default(64 * base.MiB)
			cfg.Service, cfg.FixedPages = sim.ServiceFixed, 256
			s := model(t, cfg)
			d := opened(t, s, ctrl.Options{Mode: mode, Watch: time.Hour})
			b := reads(t, d, 1, size)
			var all []time.Duration
			for i := range int64(50) {
				b.Reqs[0].Off = i * base.MiB
				start := s.Now()
				run(t, d, b)
				all = append(all, s.Now()-start)
			}
			took[mode] = median(all)
		}
		t.Logf("%d bytes: polled %v, interrupts %v, hybrid %v", size, took[ctrl.Polled], took[ctrl.Interrupts], took[ctrl.Hybrid])
		if took[ctrl.Interrupts] > took[ctrl.Polled]*11/10 || took[ctrl.Hybrid] > min(took[ctrl.Polled], took[ctrl.Interrupts])*12/10 {
			t.Error("a mode waits for something else")
		}
	}
}

// TestMeasureModes measures reads of one requester in each completion mode, with
// the controller on a processor of its own; the modes take turns. It judges
// nothing.
func TestMeasureModes(t *testing.T) {
	if !*measure {
		return
	}
	modes := []ctrl.Mode{ctrl.Polled, ctrl.Interrupts, ctrl.Hybrid}
	for _, size := range []int64{4096, 64 << 10, base.MiB} {
		var lat [4][]time.Duration
		var cpu [4][]time.Duration
		for range 10 {
			for _, mode := range modes {
				l, busy := measureMode(t, mode, size)
				lat[mode], cpu[mode] = append(lat[mode], l...), append(cpu[mode], busy)
			}
		}
		for _, mode := range modes {
			l := slices.Sorted(slices.Values(lat[mode]))
			t.Logf("%7d bytes, %-10v: 10th percentile %8v, median %8v, requester's thread busy %v of 1s",
				size, mode, l[len(l)/10], l[len(l)/2], median(cpu[mode]))
		}
	}
}

func measureMode(t *testing.T, mode ctrl.Mode, size int64) (lat []time.Duration, busy time.Duration) {
	cfg := sim.Default(64 * base.MiB)
	cfg.Service, cfg.Real, cfg.Dedicated, cfg.FixedPages = sim.ServiceFixed, true, true, 256
	s := model(t, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.Serve(ctx) })
	defer func() { cancel(); wg.Wait() }()
	d, err := ctrl.Open(bg(t), s, ctrl.Options{Mode: mode})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(bg(t)); err != nil {
			t.Error(err)
		}
	}()
	r, err := driver.AllocRegion(size, "ctrl test")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b := &driver.Batch{Reqs: []driver.Request{{Op: driver.OpRead, Len: size, Segs: []driver.Seg{r.Seg(0, size)}}}}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var cpu time.Duration
	begin := time.Now()
	for i := range 220 {
		if i == 20 {
			cpu, _ = unix.ThreadCPU()
			begin, lat = time.Now(), nil
		}
		start := time.Now()
		run(t, d, b)
		lat = append(lat, time.Since(start))
	}
	wall := time.Since(begin)
	end, err := unix.ThreadCPU()
	if err != nil {
		t.Fatal(err)
	}
	return lat, time.Duration(float64(end-cpu) / wall.Seconds())
}
