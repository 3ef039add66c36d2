package ctrl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// The tests of this file are rows of a list of what an NVMe driver must stand;
// docs/testing.md has the list, and names the tests of the other rows.

// memory is a region of n bytes that d knows, filled with bytes that differ.
func memory(t testing.TB, n int64, devs ...*ctrl.Device) *driver.Region {
	t.Helper()
	r, err := driver.AllocRegion(n, "ctrl test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, d := range devs {
		if err := d.Attach(r); err != nil {
			t.Fatal(err)
		}
	}
	stamp(r.CPU(), 1)
	return r
}

// stamp fills b with bytes that tell where they are, and in which round.
func stamp(b []byte, round byte) {
	for i := range b {
		b[i] = byte(i*7+i>>9*3) ^ round
	}
}

// TestRow01Identifiers: identifiers are unique while their commands end in any
// order and the queues wrap many times (the model checks it), and each completion
// that cannot be isolates the device.
func TestRow01Identifiers(t *testing.T) {
	cfg := sim.Default(64 * base.MiB)
	cfg.CAP.MQES = 9 // ten entries: nine commands
	s := model(t, cfg)
	d := opened(t, s, quiet)
	b := reads(t, d, 64, 4096)
	order := []uint64{}
	onEnd(s, func(x *sim.Seen) { order = append(order, x.Command.SLBA()) })
	for range 100 {
		s.Script(sim.Rule{Kind: sim.FaultDelay, Delay: time.Millisecond})
		run(t, d, b)
	}
	s.Observe(nil)
	turned := 0
	for i := range order[1:] {
		if order[i+1] < order[i] {
			turned++
		}
	}
	if len(order) != 6400 || turned < 1000 {
		t.Errorf("%d commands, %d of them ended before an earlier one", len(order), turned)
	}
	for _, kind := range []sim.Kind{sim.FaultDuplicate, sim.FaultUnknownCID, sim.FaultWrongSQID, sim.FaultWildSQHD} {
		before := d.Incarnation()
		s.Script(sim.Rule{Kind: kind, Skip: 20, Count: 1}, sim.Rule{Kind: sim.FaultDelay, Delay: time.Millisecond})
		for range 3 { // a duplicate may come after the batch has ended
			if d.State() == driver.StateReady {
				submit(t, d, b)
				wait(t, b)
			}
		}
		if d.State() != driver.StateIsolated || d.Incarnation() != before+1 {
			t.Errorf("%v: %v, incarnation %d", kind, d.State(), d.Incarnation())
		}
		s.Script()
		if err := d.Reset(bg(t)); err != nil {
			t.Fatal(err)
		}
		run(t, d, b)
	}
}

// TestRow02Shapes: every doorbell stride, and what other shapes the bring-up tests
// do not have.
func TestRow02Shapes(t *testing.T) {
	shapes := map[string]func(c *sim.Config){
		"LBA 512": func(c *sim.Config) { c.Namespaces[0].BlockShift, c.Namespaces[0].Blocks = 9, 1<<15 },
		"thin":    func(c *sim.Config) { c.Namespaces[0].Allocatable = 100 },
		"several": func(c *sim.Config) {
			for id := range uint32(40) {
				c.Namespaces = append(c.Namespaces, sim.Namespace{ID: 2 + 3*id, Blocks: 100, BlockShift: 9, Inactive: true})
			}
		},
		"MPSMIN 8 KiB":  func(c *sim.Config) { c.CAP.MPSMIN = 1 },
		"MQES 0xFFFF":   func(c *sim.Config) { c.CAP.MQES = 0xffff },
		"little of all": func(c *sim.Config) { c.CAP.MQES, c.Identify.MDTS, c.MaxQueues = 1, 1, 1 },
	}
	for d := range uint8(7) {
		shapes[fmt.Sprintf("DSTRD %d", d)] = func(c *sim.Config) { c.CAP.DSTRD = d }
	}
	for name, change := range shapes {
		t.Run(name, func(t *testing.T) {
			cfg := sim.Default(16 * base.MiB)
			change(&cfg)
			d := opened(t, model(t, cfg), quiet)
			if got := d.Info().Capacity; got != 16*base.MiB {
				t.Errorf("capacity %d", got)
			}
			works(t, d)
		})
	}
}

// TestRow04Bounds: memory that begins anywhere and is no whole number of pages, and
// pieces of it, are exact; one block past its end is refused before any transfer.
func TestRow04Bounds(t *testing.T) {
	cfg := sim.Default(16 * base.MiB)
	cfg.Namespaces[0].BlockShift, cfg.Namespaces[0].Blocks = 9, 1<<15
	d := opened(t, model(t, cfg), quiet)
	whole := memory(t, 256*base.KiB)
	const from, size = 4096*3 + 512, 70*base.KiB + 512 // not at 64 KiB, no whole page
	part := driver.NewRegion(whole.CPU()[from : from+size])
	defer part.Close()
	if err := d.Attach(part); err != nil {
		t.Fatal(err)
	}
	before := bytes.Clone(whole.CPU())
	for _, x := range [][2]int64{{0, size}, {512, size - 512}, {4096 - 512, 1024}, {size - 512, 512}, {64*base.KiB - 512, 1024}} {
		copy(whole.CPU(), before)
		err := driver.Do(bg(t), d, driver.Request{Op: driver.OpWrite, Off: 8192, Len: x[1], Segs: []driver.Seg{part.Seg(x[0], x[1])}})
		clear(part.CPU()[x[0] : x[0]+x[1]])
		if err == nil {
			err = driver.Do(bg(t), d, driver.Request{Op: driver.OpRead, Off: 8192, Len: x[1], Segs: []driver.Seg{part.Seg(x[0], x[1])}})
		}
		if err != nil || !bytes.Equal(whole.CPU(), before) {
			t.Errorf("%d bytes at %d: %v, or other bytes changed", x[1], x[0], err)
		}
	}
	sent := d.Stats().Commands
	for _, x := range [][2]int64{{512, size}, {size, 512}, {0, size + 512}, {-512, 1024}} {
		err := driver.Do(bg(t), d, driver.Request{Op: driver.OpRead, Len: x[1],
			Segs: []driver.Seg{{Region: part, Gen: part.Generation(), Off: x[0], Len: x[1]}}})
		if !errors.Is(err, base.ErrOutOfRange) {
			t.Errorf("%d bytes at %d: %v", x[1], x[0], err)
		}
	}
	if d.Stats().Commands != sent || !bytes.Equal(whole.CPU(), before) {
		t.Error("something moved")
	}
}

// TestRow05TimeoutSteps: whatever step a command does not get past, its memory is
// released once, after the controller has stopped; what comes later changes
// nothing, and the device works again.
func TestRow05TimeoutSteps(t *testing.T) {
	steps := map[string]struct {
		rule    sim.Rule
		deaf    bool       // the controller does not hear of it
		when    sim.Moment // the last that is reached
		reached int        // by how many of the eight
	}{
		"before it is fetched":     {deaf: true, when: sim.Fetched},
		"before its data moves":    {sim.Rule{Kind: sim.FaultLose}, false, sim.Fetched, 8},
		"after its data has moved": {sim.Rule{Kind: sim.FaultLoseCompletion}, false, sim.Executed, 8},
		"it ends late":             {sim.Rule{Kind: sim.FaultDelay, Delay: 400 * deadline}, false, sim.Fetched, 8},
	}
	for name, x := range steps {
		t.Run(name, func(t *testing.T) {
			cfg := sim.Default(16 * base.MiB)
			cfg.UnreadyDelay, cfg.NoAborts = time.Second, true
			s := &watched{Sim: model(t, cfg)}
			d := openedOn(t, s, quiet)
			works(t, d) // and the controller has fetched the event requests
			b := reads(t, d, 8, 4096)
			r := b.Reqs[0].Segs[0].Region
			reached := map[sim.Moment]int{}
			s.Observe(func(o sim.Seen) { reached[o.Moment]++ })
			s.Script(x.rule)
			s.deaf.Store(x.deaf)
			submit(t, d, b)
			wait(t, b)
			s.deaf.Store(false)
			s.Observe(nil)
			if reached[x.when] != x.reached || reached[sim.Ended] == len(b.Reqs) {
				t.Errorf("reached %v", reached)
			}
			if d.State() != driver.StateIsolated || r.InFlight() != 0 {
				t.Errorf("%v, %d holds", d.State(), r.InFlight())
			}
			stamp(r.CPU(), 9) // it is ours again
			was := bytes.Clone(r.CPU())
			s.Script()
			if err := d.Reset(bg(t)); err != nil {
				t.Fatal(err)
			}
			for end := s.Now() + 500*deadline; s.Now() < end; {
				s.Pause(end) // whatever was late comes now
			}
			if !bytes.Equal(r.CPU(), was) {
				t.Error("memory that was given back has changed")
			}
			run(t, d, b)
			works(t, d)
		})
	}
}

// TestRow06Batches: an entry that fails carries the status of its command, a cut one
// the bytes before the failure; a batch in flight is neither submitted again nor
// does its memory go; three batches at a time do not mix.
func TestRow06Batches(t *testing.T) {
	s := model(t, sim.Default(16*base.MiB))
	d := opened(t, s, quiet)
	b := reads(t, d, 40, 256<<10) // two commands each, more than the queues hold
	s.Script(sim.Rule{Kind: sim.FaultStatus, From: 3*64 + 32, To: 3*64 + 33, Status: nvme.StatusUnrecoveredRead | nvme.StatusDNR},
		sim.Rule{Kind: sim.FaultDelay, Delay: time.Millisecond})
	others := []*driver.Batch{reads(t, d, 5, 4096), reads(t, d, 1, base.MiB)}
	others[1].Reqs[0].Off = 12 * base.MiB
	for _, o := range others {
		submit(t, d, o)
	}
	submit(t, d, b)
	if err := d.Submit(bg(t), b); !errors.Is(err, base.ErrBusy) {
		t.Errorf("submitted twice: %v", err)
	}
	if err := b.Reqs[39].Segs[0].Region.Close(); !errors.Is(err, base.ErrBusy) {
		t.Errorf("memory in flight: %v", err)
	}
	wait(t, b)
	for i := range b.Reqs {
		q := &b.Reqs[i]
		var st *nvme.StatusError
		switch {
		case i != 3 && (q.Err != nil || q.Done != q.Len):
			t.Errorf("entry %d: %d bytes, %v", i, q.Done, q.Err)
		case i == 3 && (!errors.As(q.Err, &st) || st.Status.SCT() != nvme.SCTMedia || st.Status.SC() != 0x81 || q.Done != 128<<10):
			t.Errorf("the failed entry: %d bytes, %v", q.Done, q.Err)
		}
	}
	for i, o := range others {
		wait(t, o)
		if o.Err() != nil {
			t.Errorf("batch %d: %v", i, o.Err())
		}
	}
	if err := b.Wait(bg(t)); !errors.Is(err, base.ErrInvalid) {
		t.Errorf("awaited twice: %v", err)
	}
}

// TestRow08HotRemoval: pulled out with a full queue, many waiters: each of them gets
// an answer.
func TestRow08HotRemoval(t *testing.T) {
	for _, faults := range []bool{false, true} {
		cfg := sim.Default(64 * base.MiB)
		cfg.Real, cfg.RemovalFaults = true, faults
		s := model(t, cfg)
		d := opened(t, s, ctrl.Options{Depth: 15})
		s.Hold(true)
		var wg sync.WaitGroup
		for range 8 {
			b := reads(t, d, 1, 64<<10)
			submit(t, d, b)
			wg.Go(func() {
				if err := b.Wait(bg(t)); err != nil || !errors.Is(b.Err(), base.ErrDeviceGone) {
					t.Errorf("%v, %v", err, b.Err())
				}
			})
		}
		s.Remove()
		wg.Wait()
		if d.State() != driver.StateRemoved {
			t.Errorf("%v", d.State())
		}
	}
}

// TestRow09FailsInTheMiddle: the controller reports a fatal status with commands in
// flight, and then RDY does not fall, or does not rise again; it is stopped by
// other means, and is back when it can be.
func TestRow09FailsInTheMiddle(t *testing.T) {
	cfg := sim.Default(16 * base.MiB)
	cfg.NeverUnready = true
	s := model(t, cfg)
	d := opened(t, s, quiet)
	b := reads(t, d, 16, 64<<10)
	s.Script(sim.Rule{Kind: sim.FaultFatal, Skip: 10, Count: 1})
	submit(t, d, b)
	wait(t, b)
	if d.State() != driver.StateIsolated {
		t.Errorf("%v", d.State())
	}
	// An admin command that is never answered fails the reset, not the process.
	s.Script(sim.Rule{Kind: sim.FaultLose, Admin: true, Count: 1})
	start := s.Now()
	if err := d.Reset(bg(t)); !errors.Is(err, base.ErrTimeout) || d.State() != driver.StateIsolated {
		t.Errorf("a reset without an answer: %v, %v", err, d.State())
	}
	if took := s.Now() - start; took > time.Minute {
		t.Errorf("after %v", took)
	}
	if err := d.Reset(bg(t)); err != nil {
		t.Fatal(err)
	}
	run(t, d, b)
}

// TestRow11ManyControllers: one region is reached by several controllers, at
// addresses of its own for each, none of which is an address of the process; a file
// behind a model has one owner.
func TestRow11ManyControllers(t *testing.T) {
	var devs []*ctrl.Device
	var models []*addresses
	for i := range 3 {
		cfg := sim.Default(16 * base.MiB)
		cfg.Seed = uint64(i)
		a := &addresses{Sim: model(t, cfg)}
		d, err := ctrl.Open(bg(t), a, quiet)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(bg(t)); err != nil {
				t.Error(err)
			}
		})
		devs, models = append(devs, d), append(models, a)
	}
	r := memory(t, 3*256*base.KiB, devs...)
	for i, d := range devs {
		seg := r.Seg(int64(i)*256*base.KiB, 256*base.KiB)
		if err := driver.Do(bg(t), d, driver.Request{Op: driver.OpWrite, Len: seg.Len, Segs: []driver.Seg{seg}}); err != nil {
			t.Fatal(err)
		}
	}
	want := bytes.Clone(r.CPU())
	clear(r.CPU())
	var wg sync.WaitGroup
	for i, d := range devs {
		wg.Go(func() {
			seg := r.Seg(int64(i)*256*base.KiB, 256*base.KiB)
			if err := driver.Do(bg(t), d, driver.Request{Op: driver.OpRead, Len: seg.Len, Segs: []driver.Seg{seg}}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if !bytes.Equal(r.CPU(), want) {
		t.Error("wrong bytes")
	}
	seen := map[uint64]bool{}
	for i, a := range models {
		for _, seg := range a.segs {
			if seen[seg.Addr] || seg.Addr < 1<<48 {
				t.Errorf("model %d: bus address %#x is of another one, or of the process", i, seg.Addr)
			}
			seen[seg.Addr] = true
		}
	}
	if len(seen) < 3*3*64 {
		t.Errorf("only %d pieces on the bus", len(seen))
	}
	cfg := sim.Default(base.MiB)
	cfg.Path = t.TempDir() + "/ns"
	if err := os.WriteFile(cfg.Path, make([]byte, base.MiB), 0o600); err != nil {
		t.Fatal(err)
	}
	owner := model(t, cfg)
	if _, err := sim.Open(cfg); !errors.Is(err, base.ErrLocked) {
		t.Errorf("a second owner: %v", err)
	}
	if err := owner.Close(); err != nil {
		t.Error(err)
	}
}

// addresses is a model that keeps what it was asked to map.
type addresses struct {
	*sim.Sim
	segs []hw.Seg
}

func (a *addresses) Map(mem []byte) (hw.Mapping, error) {
	m, err := a.Sim.Map(mem)
	if err == nil {
		a.segs = append(a.segs, m.Segments()...)
	}
	return m, err
}

// TestRow12Interrupts: interrupts that mean nothing wake nobody for good, and of
// those that mean something none is lost, with controller and driver at the same
// time.
func TestRow12Interrupts(t *testing.T) {
	for _, mode := range []ctrl.Mode{ctrl.Interrupts, ctrl.Hybrid} {
		cfg := sim.Default(16 * base.MiB)
		cfg.Dedicated, cfg.Real = true, true
		s := model(t, cfg)
		ctx, cancel := context.WithCancel(context.Background())
		var serving sync.WaitGroup
		serving.Go(func() { s.Serve(ctx) })
		t.Cleanup(func() { cancel(); serving.Wait() })
		d := opened(t, s, ctrl.Options{Queues: 2, Mode: mode, Spin: time.Microsecond})
		quit := make(chan struct{})
		var storm, wg sync.WaitGroup
		storm.Go(func() {
			for {
				select {
				case <-quit:
					return
				default:
					for v := range 3 {
						s.Raise(v)
					}
					time.Sleep(50 * time.Microsecond)
				}
			}
		})
		for range 3 {
			b := reads(t, d, 1, 4096)
			wg.Go(func() {
				for range 400 {
					run(t, d, b)
				}
			})
		}
		wg.Wait()
		close(quit)
		storm.Wait()
		if n := d.Stats(); n.Reads != 1200 || n.InFlight != 0 || d.State() != driver.StateReady {
			t.Errorf("%v: %+v", mode, n)
		}
	}
}

// TestRow12Deadlines: where nobody polls, a device deadline D is as exact as where
// somebody does: every entry has ended within 1.1 D of the device's clock, and not
// before D. What ends late, but in time, by an interrupt, has ended well.
func TestRow12Deadlines(t *testing.T) {
	for _, mode := range []ctrl.Mode{ctrl.Interrupts, ctrl.Hybrid} {
		cfg := sim.Default(16 * base.MiB)
		cfg.UnreadyDelay = 200 * time.Millisecond
		s := model(t, cfg)
		d := opened(t, s, ctrl.Options{Mode: mode, Queues: 2, Watch: time.Millisecond})
		b := reads(t, d, 8, 4096)
		s.Script(sim.Rule{Kind: sim.FaultDelay, Delay: deadline * 9 / 10})
		run(t, d, b)
		s.Script(sim.Rule{Kind: sim.FaultLoseCompletion, Count: 1})
		start := s.Now()
		submit(t, d, b)
		wait(t, b)
		if took := s.Now() - start; took < deadline || took > deadline*11/10 {
			t.Errorf("%v: ended after %v", mode, took)
		}
		if d.State() != driver.StateIsolated || !errors.Is(b.Err(), base.ErrTimeout) {
			t.Errorf("%v: %v, %v", mode, d.State(), b.Err())
		}
		s.Script()
		if err := d.Reset(bg(t)); err != nil {
			t.Fatal(err)
		}
		run(t, d, b)
	}
}
