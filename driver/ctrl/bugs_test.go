package ctrl_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
)

// The tests of this file are named after public bug reports about programs like
// this one; docs/testing.md lists all that concern a controller.

// TestB11AllGrantedQueues: exactly as many queues as the controller grants, and
// each of them works.
func TestB11AllGrantedQueues(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7} {
		cfg := sim.Default(64 * base.MiB)
		cfg.MaxQueues = uint32(n)
		s := model(t, cfg)
		d := opened(t, s, ctrl.Options{Watch: -1, Queues: ctrl.MaxQueuePairs, Depth: 3})
		used := map[uint16]int{}
		onEnd(s, func(x *sim.Seen) { used[x.Queue]++ })
		var batches []*driver.Batch
		s.Hold(true) // so that each finds the queues of the others longer
		for range n {
			batches = append(batches, reads(t, d, 1, 4096), reads(t, d, 1, 128<<10))
		}
		for _, b := range batches {
			submit(t, d, b)
		}
		s.Hold(false)
		for _, b := range batches {
			wait(t, b)
			if err := b.Err(); err != nil {
				t.Fatal(err)
			}
		}
		s.Observe(nil)
		if len(used) != n {
			t.Errorf("%d queues granted, commands on %v", n, used)
		}
	}
}

// deadUntil is a controller that never answers, on a clock that stands still while
// it is told to.
type deadUntil struct {
	*sim.Sim
	alive chan struct{}
}

func (d *deadUntil) Pause(until time.Duration) {
	<-d.alive
	d.Sim.Pause(until)
}

// TestB15DeadControllers: of four controllers two are dead. The others are up and
// work while the dead are still waited for, and those end within one time-out.
func TestB15DeadControllers(t *testing.T) {
	alive := make(chan struct{})
	var dead sync.WaitGroup
	for range 2 {
		cfg := sim.Default(16 * base.MiB)
		cfg.NeverReady = true
		s := model(t, cfg)
		dead.Go(func() {
			_, err := ctrl.Open(bg(t), &deadUntil{s, alive}, quiet)
			if limit := 11 * time.Second; !errors.Is(err, base.ErrTimeout) || s.Now() > limit { // CAP.TO is 10 s
				t.Errorf("%v after %v", err, s.Now())
			}
		})
	}
	for range 2 {
		works(t, opened(t, model(t, sim.Default(16*base.MiB)), quiet))
	}
	close(alive)
	dead.Wait()
}

// twice are the segments of n bytes in a small region, again and again.
func twice(r *driver.Region, n int64) (segs []driver.Seg) {
	for ; n > 0; n -= r.Size() {
		segs = append(segs, r.Seg(0, min(n, r.Size())))
	}
	return segs
}

// TestC11OneGiB: a write of a gigabyte through four commands of 128 KiB at a time
// allocates no more than one of 16 MiB.
func TestC11OneGiB(t *testing.T) {
	d := opened(t, model(t, sim.Default(base.GiB)), ctrl.Options{Watch: -1, Queues: 1, Depth: 4})
	r := memory(t, base.MiB, d)
	clear(r.CPU()) // takes no memory in the model
	write := func(n int64) float64 {
		b := &driver.Batch{Reqs: []driver.Request{{Op: driver.OpWrite, Len: n, Segs: twice(r, n)}}}
		before := d.Stats().WriteBytes
		run(t, d, b)
		allocs := testing.AllocsPerRun(1, func() { run(t, d, b) })
		if moved := d.Stats().WriteBytes - before; moved != 3*n && !testenv.Race { // AllocsPerRun runs it twice
			t.Errorf("%d bytes moved, want %d", moved, 3*n)
		}
		return allocs
	}
	small, large := write(16*base.MiB), write(base.GiB)
	if !testenv.Race && large > small+8 {
		t.Errorf("%v allocations for a gigabyte, %v for 16 MiB", large, small)
	}
}

// TestC13BeyondFourGiB: a region of more than four gigabytes, at its offsets around
// that border.
func TestC13BeyondFourGiB(t *testing.T) {
	const size = 4*base.GiB + 64*base.KiB
	mem, err := unix.MmapAnon(size)
	if err != nil {
		testenv.Skip(t, "no address space for five gigabytes: "+err.Error())
	}
	defer func() {
		if err := unix.Munmap(mem); err != nil {
			t.Error(err)
		}
	}()
	cfg := sim.Default(16 * base.MiB)
	cfg.FixedPages = 1 << 20
	d := opened(t, model(t, cfg), quiet)
	r := driver.NewRegion(mem)
	defer r.Close()
	if err := d.Attach(r); err != nil {
		t.Fatal(err)
	}
	const border = 4 * base.GiB
	for _, off := range []int64{border - 8192, border - 4096, border, border + 4096} {
		n := int64(8192)
		stamp(r.Bytes(off, n), byte(off>>12))
		want := bytes.Clone(r.Bytes(off, n))
		err := driver.Do(bg(t), d, driver.Request{Op: driver.OpWrite, Len: n, Segs: []driver.Seg{r.Seg(off, n)}})
		clear(r.Bytes(off, n))
		if err == nil {
			err = driver.Do(bg(t), d, driver.Request{Op: driver.OpRead, Len: n, Segs: []driver.Seg{r.Seg(off, n)}})
		}
		if err != nil || !bytes.Equal(r.Bytes(off, n), want) {
			t.Errorf("at %#x: %v, or wrong bytes", off, err)
		}
	}
	if !bytes.Equal(r.Bytes(0, 16384), make([]byte, 16384)) {
		t.Error("the beginning of the region was changed")
	}
}

// TestC18LargeEntries: 16 MiB, a little more, and a gigabyte, in one batch.
func TestC18LargeEntries(t *testing.T) {
	d := opened(t, model(t, sim.Default(2*base.GiB)), quiet)
	r := memory(t, 2*base.MiB+4096, d)
	clear(r.CPU()[4096:])
	b := new(driver.Batch)
	off := int64(0)
	for _, n := range []int64{16 * base.MiB, 16*base.MiB + 4096, base.GiB} {
		segs := []driver.Seg{r.Seg(0, 4096)} // the first page of each tells
		segs = append(segs, twice(driver.NewRegion(r.CPU()[4096:]), n-4096)...)
		b.Reqs = append(b.Reqs, driver.Request{Op: driver.OpWrite, Off: off, Len: n, Segs: segs})
		off += n
	}
	run(t, d, b)
	want := bytes.Clone(r.CPU()[:4096])
	for i := range b.Reqs {
		q := &b.Reqs[i]
		clear(r.CPU()[:4096])
		if err := driver.Do(bg(t), d, driver.Request{Op: driver.OpRead, Off: q.Off, Len: 4096, Segs: []driver.Seg{r.Seg(0, 4096)}}); err != nil {
			t.Fatal(err)
		}
		if q.Done != q.Len || !bytes.Equal(r.CPU()[:4096], want) {
			t.Errorf("entry %d: %d of %d bytes, or wrong bytes", i, q.Done, q.Len)
		}
	}
}

// TestF08CloseUnderLoad: a close at a random moment of many batches: each entry ends
// with its data or the reason, a close that may not wait says so and takes nothing
// away, and memory in flight cannot go.
func TestF08CloseUnderLoad(t *testing.T) {
	rnd := testenv.Seed(t)
	var ops atomic.Int64
	for round := 0; ops.Load() < 10_000; round++ {
		cfg := sim.Default(16 * base.MiB)
		cfg.Real = true
		s := model(t, cfg)
		d, err := ctrl.Open(bg(t), s, ctrl.Options{Queues: 2, Depth: 7})
		if err != nil {
			t.Fatal(err)
		}
		s.Script(sim.Rule{Kind: sim.FaultDelay, Delay: 50 * time.Microsecond})
		var wg sync.WaitGroup
		for range 4 {
			b := reads(t, d, 8, 8192)
			r := b.Reqs[0].Segs[0].Region
			wg.Go(func() {
				for {
					err := d.Submit(bg(t), b)
					if err != nil {
						if !errors.Is(err, base.ErrClosed) {
							t.Errorf("submit: %v", err)
						}
						return
					}
					if r.InFlight() > 0 && !b.Ended() {
						if err := r.Renew(); err == nil && !b.Ended() {
							t.Error("memory in flight was renewed")
						}
					}
					if err := b.Wait(bg(t)); err != nil {
						t.Error(err)
					}
					for i := range b.Reqs {
						if err := b.Reqs[i].Err; err != nil && !errors.Is(err, base.ErrClosed) {
							t.Errorf("entry: %v", err)
						}
						b.Reqs[i].Segs[0].Gen = r.Generation()
					}
					ops.Add(int64(len(b.Reqs)))
				}
			})
		}
		time.Sleep(time.Duration(rnd.IntN(8)) * time.Millisecond)
		ctx, cancel := context.WithCancel(context.Background())
		if round%2 == 0 {
			cancel() // it may not wait at all
		}
		if err := d.Close(ctx); err != nil && !errors.Is(err, base.ErrBusy) && !errors.Is(err, base.ErrTimeout) {
			t.Errorf("close: %v", err)
		}
		cancel()
		if err := d.Close(bg(t)); err != nil {
			t.Errorf("close: %v", err)
		}
		wg.Wait()
	}
}

// TestF11WaitSeesTheEnd: what has ended on the device by the time of the call is
// told by the call, even if it may not wait.
func TestF11WaitSeesTheEnd(t *testing.T) {
	s := model(t, sim.Default(16*base.MiB))
	d := opened(t, s, quiet)
	b := reads(t, d, 4, 4096)
	submit(t, d, b)
	before := s.Counts().Completions
	s.Pause(0) // all are executed
	if n := s.Counts().Completions - before; n < 4 || b.Ended() {
		t.Fatalf("%d completions, reaped: %v", n, b.Ended())
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.Wait(ctx); err != nil || b.Err() != nil {
		t.Errorf("%v, %v", err, b.Err())
	}
}

// TestG01AnyOrder: commands end in another order than they were sent in, and each
// entry has its own answer and its own bytes.
func TestG01AnyOrder(t *testing.T) {
	s := model(t, sim.Default(16*base.MiB))
	d := opened(t, s, quiet)
	const n = 30
	b := reads(t, d, n, 4096)
	r := b.Reqs[0].Segs[0].Region
	for i := range b.Reqs {
		stamp(r.Bytes(int64(i)*4096, 4096), byte(i))
	}
	want := bytes.Clone(r.CPU())
	if err := driver.Do(bg(t), d, driver.Request{Op: driver.OpWrite, Len: n * 4096, Segs: []driver.Seg{r.Seg(0, n*4096)}}); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []uint64{0, 13, n - 1} {
		var order []uint64
		onEnd(s, func(x *sim.Seen) { order = append(order, x.Command.SLBA()) })
		s.Script(sim.Rule{Kind: sim.FaultStatus, From: bad, To: bad + 1, Status: nvme.StatusUnrecoveredRead | nvme.StatusDNR},
			sim.Rule{Kind: sim.FaultDelay, Delay: time.Millisecond})
		clear(r.CPU())
		submit(t, d, b)
		wait(t, b)
		s.Observe(nil)
		if slices.IsSorted(order) {
			t.Error("they ended in order")
		}
		for i := range b.Reqs {
			failed := uint64(i) == bad
			if (b.Reqs[i].Err != nil) != failed {
				t.Errorf("block %d failed: entry %d: %v", bad, i, b.Reqs[i].Err)
			}
			if !failed && !bytes.Equal(r.Bytes(int64(i)*4096, 4096), want[i*4096:(i+1)*4096]) {
				t.Errorf("entry %d has the bytes of another", i)
			}
		}
	}
}

// TestG06BatchAgain: a batch that is submitted again with other data writes the
// other data.
func TestG06BatchAgain(t *testing.T) {
	d := opened(t, model(t, sim.Default(16*base.MiB)), quiet)
	b := reads(t, d, 8, 4096)
	r := b.Reqs[0].Segs[0].Region
	for round := range byte(5) {
		for i := range b.Reqs {
			b.Reqs[i].Op = driver.OpWrite
		}
		stamp(r.CPU(), round)
		want := bytes.Clone(r.CPU())
		run(t, d, b)
		clear(r.CPU())
		for i := range b.Reqs {
			b.Reqs[i].Op = driver.OpRead
		}
		run(t, d, b)
		if !bytes.Equal(r.CPU(), want) {
			t.Errorf("round %d: the medium has other bytes", round)
		}
	}
	if got := d.Stats(); got.Writes != 40 || got.WriteBytes != 40*4096 || got.ReadBytes != 40*4096 {
		t.Errorf("%+v", got)
	}
}

// TestG07ThreeOutcomes: one entry works, one fails, one is pending until the device
// is stopped: three answers. A hundred thousand batches leave nothing behind.
func TestG07ThreeOutcomes(t *testing.T) {
	cfg := sim.Default(16 * base.MiB)
	cfg.Real = true
	s := model(t, cfg)
	d := opened(t, s, quiet)
	b := reads(t, d, 3, 4096)
	s.Script(sim.Rule{Kind: sim.FaultStatus, From: 1, To: 2, Status: nvme.StatusGuard | nvme.StatusDNR}, sim.Rule{Kind: sim.FaultLose, From: 2, To: 3})
	submit(t, d, b)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := b.Wait(ctx); err == nil {
		t.Error("a pending entry has ended")
	}
	s.Fatal()
	wait(t, b)
	var st *nvme.StatusError
	if b.Reqs[0].Err != nil || b.Reqs[0].Done != 4096 || !errors.As(b.Reqs[1].Err, &st) || st.Status.Code() != nvme.StatusGuard ||
		!errors.Is(b.Reqs[2].Err, base.ErrIsolated) {
		t.Errorf("%v, %v, %v", b.Reqs[0].Err, b.Reqs[1].Err, b.Reqs[2].Err)
	}
	s.Script()
	if err := d.Reset(bg(t)); err != nil {
		t.Fatal(err)
	}
	run(t, d, b)
	before := dma.Usage()
	rounds := 100_000
	if testenv.Race {
		rounds = 10_000
	}
	for range rounds {
		run(t, d, b)
	}
	if after := dma.Usage(); !slices.Equal(before, after) {
		t.Errorf("off-heap memory %v became %v", before, after)
	}
}

// TestG09CanceledWaits: a thousand waits that were given up cost no place in the
// queues.
func TestG09CanceledWaits(t *testing.T) {
	const places = 31
	cfg := sim.Default(16 * base.MiB)
	cfg.Real = true
	s := model(t, cfg)
	d := opened(t, s, ctrl.Options{Watch: -1, Queues: 1, Depth: places})
	b := reads(t, d, 8, 4096)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 1000 {
		s.Script(sim.Rule{Kind: sim.FaultDelay, Delay: time.Microsecond})
		submit(t, d, b)
		_ = b.Wait(ctx) // given up, or seen
		if !b.Ended() {
			wait(t, b)
		}
	}
	s.Hold(true)
	all := reads(t, d, places, 4096)
	short, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	if err := d.Submit(short, all); err != nil {
		t.Fatal(err)
	}
	if n := d.Stats().InFlight; n != int64(len(all.Reqs)) {
		t.Errorf("%d in flight", n)
	}
	s.Hold(false)
	wait(t, all)
	if err := all.Err(); err != nil {
		t.Error(err)
	}
}

// TestG10IllegalTransitions: what comes at a wrong time has a defined answer.
func TestG10IllegalTransitions(t *testing.T) {
	s := model(t, sim.Default(16*base.MiB))
	d, err := ctrl.Open(bg(t), s, quiet)
	if err != nil {
		t.Fatal(err)
	}
	b := reads(t, d, 2, 4096)
	r := b.Reqs[0].Segs[0].Region
	over, cancel := context.WithCancel(context.Background())
	cancel()
	expect := func(what string, err, class error) {
		t.Helper()
		if class == nil && err != nil || class != nil && !errors.Is(err, class) {
			t.Errorf("%s: %v, want %v", what, err, class)
		}
	}
	expect("wait before a submit", b.Wait(bg(t)), base.ErrInvalid)
	expect("reset of a device that is ready", d.Reset(bg(t)), nil)
	s.Hold(true)
	submit(t, d, b)
	expect("submit of a batch in flight", d.Submit(bg(t), b), base.ErrBusy)
	expect("detach of memory in flight", d.Detach(r), base.ErrBusy)
	expect("close of memory in flight", r.Close(), base.ErrBusy)
	expect("close of a busy device", d.Close(over), base.ErrBusy)
	expect("a device that was not closed takes requests", d.Attach(r), nil)
	s.Hold(false)
	wait(t, b)
	expect("wait twice", b.Wait(bg(t)), base.ErrInvalid)
	expect("detach", d.Detach(r), nil)
	expect("detach twice", d.Detach(r), nil)
	expect("close", d.Close(bg(t)), nil)
	expect("close twice", d.Close(bg(t)), nil)
	expect("submit after the close", d.Submit(bg(t), b), base.ErrClosed)
	expect("attach after the close", d.Attach(r), base.ErrClosed)
	expect("reset after the close", d.Reset(bg(t)), base.ErrClosed)
}

// pulled is a model that is pulled out at the n-th access from now on.
type pulled struct {
	*sim.Sim
	left atomic.Int64
}

func (p *pulled) access() {
	if p.left.Add(-1) == 0 {
		p.Remove()
	}
}

func (p *pulled) Load32(off uint64) (uint32, error) { p.access(); return p.Sim.Load32(off) }
func (p *pulled) Load64(off uint64) (uint64, error) { p.access(); return p.Sim.Load64(off) }
func (p *pulled) Store32(off uint64, v uint32) error {
	p.access()
	return p.Sim.Store32(off, v)
}

func (p *pulled) Store64(off, v uint64) error {
	p.access()
	return p.Sim.Store64(off, v)
}

func (p *pulled) Start(ctx context.Context) error { p.access(); return p.Sim.Start(ctx) }
func (p *pulled) Stop(ctx context.Context) error  { p.access(); return p.Sim.Stop(ctx) }

func (p *pulled) Doorbell(off uint64) (hw.Doorbell, error) {
	b, err := p.Sim.Doorbell(off)
	return pulledBell{b, p}, err
}

type pulledBell struct {
	hw.Doorbell
	p *pulled
}

func (b pulledBell) Ring(v uint32) error { b.p.access(); return b.Doorbell.Ring(v) }

// TestH05RemovalAtEachStep: pulled out at each access of an open, a reset and a
// close, the device is an error within a bound, and nothing is left (goroutines are
// counted by the test binary); put in again, it works.
func TestH05RemovalAtEachStep(t *testing.T) {
	gone := func(err error) bool {
		return err == nil || errors.Is(err, base.ErrDeviceGone) || errors.Is(err, base.ErrTimeout) || errors.Is(err, base.ErrIsolated)
	}
	for _, faults := range []bool{false, true} {
		for name, do := range map[string]func(p *pulled, d *ctrl.Device) error{
			"open":  nil,
			"reset": func(p *pulled, d *ctrl.Device) error { return d.Reset(bg(t)) },
			"close": func(p *pulled, d *ctrl.Device) error { return d.Close(bg(t)) },
		} {
			steps := int64(0)
			for at := int64(1); ; at++ {
				cfg := sim.Default(16 * base.MiB)
				cfg.RemovalFaults = faults
				p := &pulled{Sim: model(t, cfg)}
				if do == nil {
					p.left.Store(at)
				}
				d, err := ctrl.Open(bg(t), p, quiet)
				if err == nil && do != nil {
					if name == "reset" {
						p.Fatal()
						b := reads(t, d, 1, 4096)
						submit(t, d, b)
						wait(t, b)
					}
					p.left.Store(at)
					err = do(p, d)
				}
				if !gone(err) || p.Now() > 2*time.Minute {
					t.Fatalf("%s, access %d: %v after %v", name, at, err, p.Now())
				}
				done := p.left.Load() > 0
				if d != nil {
					p.left.Store(0)
					if err := d.Close(bg(t)); !gone(err) {
						t.Errorf("%s, access %d: close: %v", name, at, err)
					}
				}
				if done {
					steps = at
					break
				}
				p.Insert()
				works(t, opened(t, p.Sim, quiet))
			}
			t.Logf("%s: %d accesses", name, steps)
			if steps < 5 {
				t.Errorf("%s: only %d accesses", name, steps)
			}
		}
	}
}
