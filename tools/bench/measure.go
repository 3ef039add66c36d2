package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ugds-store/ugds/internal/base"
)

// subject is an open contestant.
type subject interface {
	// caller makes what one goroutine works with.
	caller() caller
	// settle makes everything durable.
	settle(ctx context.Context) error
	// count reads the contestant's own counters.
	count() counts
	close(ctx context.Context) error
}

// caller works on objects in one call.
type caller interface {
	do(ctx context.Context, op string, ids []int) error
}

// counts are a contestant's own counters; what it does not count is absent.
type counts struct {
	read, written int64 // payload the device moved, without the contestant's own blocks
	hasBytes      bool
	flushes       int64
	hasFlushes    bool
	walSyncs      int64
	hasSyncs      bool
	engine, note  string
}

// tolerance is how far the counters of a contestant may be from what was asked.
const tolerance = 0.01

// RunCase measures one case in this process. It fails when a byte is wrong, when
// the contestant's counters disagree with what was asked, or when ctx ends.
func RunCase(ctx context.Context, c Case) (*Sample, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.Subject == Fio {
		return runFio(ctx, c)
	}
	d, err := newDataset(&c)
	if err != nil {
		return nil, err
	}
	defer d.close()
	s, err := open(ctx, d)
	if err != nil {
		return nil, err
	}
	out, err := measure(ctx, s, d)
	cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err = errors.Join(err, s.close(cctx)); err != nil {
		return nil, err
	}
	return out, nil
}

// closeTimeout bounds the orderly end of a contestant.
const closeTimeout = 3 * time.Minute

// open opens the contestant of a case.
func open(ctx context.Context, d *dataset) (subject, error) {
	switch d.c.Subject {
	case Store:
		return openStore(ctx, d)
	case Raw:
		return openRaw(d)
	case Ring:
		return openRing(ctx, d)
	case Files:
		return openFiles(d)
	case PebbleKV, PebbleSync:
		return openPebble(d)
	case CommitLoop:
		return openLoop(d)
	}
	return nil, base.Errorf("bench", d.c.Subject, base.ErrInvalid, "no such contestant")
}

func measure(ctx context.Context, s subject, d *dataset) (*Sample, error) {
	c := d.c
	ids := d.order()
	if c.Op != OpPut && !c.Ready {
		if err := errors.Join(pass(ctx, s, d, OpPut, ids, nil), s.settle(ctx)); err != nil {
			return nil, err
		}
	}
	if c.Op == OpMixed {
		for i := range c.Objects {
			if putsOf(c, i) {
				d.fill(i, 2)
			}
		}
		if err := d.made(); err != nil {
			return nil, err
		}
	}
	lat := make([]time.Duration, calls(c))
	clear(lat) // its pages are touched before the clock starts
	out := &Sample{Case: *c, Ops: int64(c.Objects), Bytes: int64(c.Objects) * c.Size}
	if c.Op == OpDelete || c.Op == OpExists {
		out.Bytes = 0
	}
	var m0, m1 runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m0)
	profiled, err := profile(c.Profile)
	if err != nil {
		return nil, err
	}
	cpu0, known := cpuSeconds()
	before, begin := s.count(), time.Now()
	err = pass(ctx, s, d, c.Op, ids, lat)
	if err == nil && c.changes() {
		err = s.settle(ctx)
	}
	out.Seconds = time.Since(begin).Seconds()
	after := s.count()
	if cpu1, ok := cpuSeconds(); ok && known {
		out.CPU = ptr((cpu1 - cpu0) / float64(c.Objects))
	}
	err = errors.Join(err, profiled())
	runtime.ReadMemStats(&m1)
	if err != nil {
		return nil, err
	}
	out.Allocs = ptr(float64(m1.Mallocs-m0.Mallocs) / float64(c.Objects))
	out.latencies(lat)
	if err := out.counters(before, after); err != nil {
		return nil, err
	}
	return out, finish(ctx, s, d, ids)
}

// finish compares every byte and takes the objects away.
func finish(ctx context.Context, s subject, d *dataset, ids []int) error {
	c := d.c
	if c.Op == OpPut || c.Op == OpMixed {
		d.blank()
		if err := d.made(); err != nil {
			return err
		}
		if err := pass(ctx, s, d, OpGet, ids, nil); err != nil {
			return err
		}
	}
	if c.Op != OpDelete && c.Op != OpExists {
		if err := errors.Join(d.fetched(), d.compare(ids)); err != nil {
			return err
		}
	}
	if c.Keep || c.Op == OpDelete {
		return nil
	}
	return errors.Join(pass(ctx, s, d, OpDelete, ids, nil), s.settle(ctx))
}

func calls(c *Case) int { return (c.Objects + c.Batch - 1) / c.Batch }

// putsOf tells whether OpMixed puts object i.
func putsOf(c *Case, i int) bool { return i/c.Batch%2 == 1 }

// pass lets the callers work through all objects, a call at a time.
func pass(ctx context.Context, s subject, d *dataset, op string, ids []int, lat []time.Duration) error {
	c := d.c
	var next atomic.Int64
	errs := make([]error, c.Callers)
	var wg sync.WaitGroup
	for w := range c.Callers {
		who := s.caller()
		wg.Go(func() {
			for errs[w] == nil {
				k := int(next.Add(1) - 1)
				if k >= calls(c) || ctx.Err() != nil {
					return
				}
				at := k * c.Batch
				do := op
				if op == OpMixed {
					if do = OpGet; putsOf(c, at) {
						do = OpPut
					}
				}
				begin := time.Now()
				errs[w] = who.do(ctx, do, ids[at:min(at+c.Batch, len(ids))])
				if lat != nil {
					lat[k] = time.Since(begin)
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// changed is how many objects a pass puts or deletes.
func changed(c *Case) (n float64) {
	for i := range c.Objects {
		if c.Op != OpMixed || putsOf(c, i) {
			n++
		}
	}
	return n
}

func ptr[T any](v T) *T { return &v }

// quantile of sorted durations, in seconds: the smallest that at least the share
// q of them do not exceed.
func quantile(sorted []time.Duration, q float64) float64 {
	i := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)].Seconds()
}

func (out *Sample) latencies(lat []time.Duration) {
	slices.Sort(lat)
	out.P50, out.P99 = ptr(quantile(lat, 0.5)), ptr(quantile(lat, 0.99))
	out.Max = ptr(lat[len(lat)-1].Seconds())
}

// counters compares the contestant's counters with what was asked of it.
func (out *Sample) counters(a, b counts) error {
	c := &out.Case
	out.Engine, out.Note = b.engine, b.note
	if b.hasFlushes && c.changes() && b.flushes > a.flushes {
		out.PutsPerFlush = ptr(changed(c) / float64(b.flushes-a.flushes))
	}
	if b.hasSyncs && c.changes() && b.walSyncs > a.walSyncs {
		out.PutsPerSync = ptr(changed(c) / float64(b.walSyncs-a.walSyncs))
	}
	if !b.hasBytes {
		return nil
	}
	moved := b.read - a.read + b.written - a.written
	out.DeviceBytes = &moved
	var want int64
	if c.Op != OpDelete && c.Op != OpExists {
		want = c.payload()
	}
	if diff := moved - want; max(diff, -diff) > int64(tolerance*float64(max(want, base.MiB))) {
		return base.Errorf("bench", c.Subject, base.ErrCorrupt,
			"its device counted %d bytes, %d were asked for: %s", moved, want, countersHint)
	}
	return nil
}

var countersHint = fmt.Sprintf("more than %.0f %% apart, so no figure of this run can be trusted", tolerance*100)

// profile writes a CPU profile of what runs until the function that it gives is
// called.
func profile(path string) (stop func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, base.Wrap("write", path, err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(base.Wrap("profile", path, err), f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}
