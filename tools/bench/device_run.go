package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

var le = binary.LittleEndian

// measure runs one case: first a part of it that does not count.
func (d *device) measure(ctx context.Context, c *DeviceCase) (row *DeviceRow, err error) {
	mem, err := driver.AllocRegion(int64(c.Threads)*int64(c.window()*c.Batch)*c.Size, "bench requests")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Detach(mem), mem.Close()) }()
	if err := d.Attach(mem); err != nil {
		return nil, err
	}
	threads := make([]*thread, c.Threads)
	for i := range threads {
		threads[i] = newThread(d, c, mem, i)
	}
	if _, _, err = d.pass(ctx, threads, max(c.requests()/16, c.Batch)); err != nil {
		return nil, err
	}
	for _, t := range threads {
		t.reset()
	}
	before := d.Stats()
	cpu0, known := cpuSeconds()
	spent, wall, err := d.pass(ctx, threads, c.requests())
	if err != nil {
		return nil, err
	}
	after := d.Stats()
	row = newDeviceRow(d, c, threads, spent, wall)
	row.roomShare(after.RoomWait-before.RoomWait, spent)
	if cpu1, ok := cpuSeconds(); ok && known && wall >= leastForCPU {
		row.CPU = ptr((cpu1 - cpu0) / float64(row.Requests))
	}
	row.Commands = float64(after.Commands-before.Commands) / float64(row.Requests)
	for _, t := range threads {
		if err := t.verify(ctx); err != nil {
			return nil, err
		}
	}
	row.Compared = d.prepared
	return row, nil
}

// leastForCPU is from how long a measurement on its processor time is told: what a
// running thread has used is known to a tick of the scheduler, up to 10 ms.
const leastForCPU = 100 * time.Millisecond

// pass lets all threads make n requests each, and tells how long that took by the
// clock of the latencies and by that of the wall.
func (d *device) pass(ctx context.Context, threads []*thread, n int) (spent, wall time.Duration, err error) {
	errs := make([]error, len(threads))
	var wg sync.WaitGroup
	begin, from := time.Now(), d.now()
	for i, t := range threads {
		wg.Go(func() { errs[i] = t.run(ctx, n) })
	}
	wg.Wait()
	return d.now() - from, time.Since(begin), errors.Join(append(errs, ctx.Err())...)
}

// thread is one caller: a window of batches, which it waits for in the order in
// which it submitted them. By a model's clock, where looking costs no time, it takes
// them as they end; what ended while it waited for room in Submit it notices then,
// the oldest first.
type thread struct {
	d        *device
	c        *DeviceCase
	rnd      *rand.Rand
	slots    []slot
	blocks   int64 // places of requests on the device
	anyOrder bool

	lat    []time.Duration // of batches
	bytes  int64           // that ended requests have moved
	submit time.Duration   // wall time in Submit, its waits for room included
	wait   time.Duration   // and in Wait
}

// slot is a batch with its memory.
type slot struct {
	b     driver.Batch
	mem   *driver.Region
	off   int64 // of its memory
	began time.Duration
	busy  bool
	// waited: Wait has returned nil already.
	waited bool
}

func newThread(d *device, c *DeviceCase, mem *driver.Region, i int) *thread {
	t := &thread{d: d, c: c, rnd: rand.New(rand.NewPCG(c.Seed, uint64(i))), slots: make([]slot, c.window()),
		blocks: d.span / c.Size, anyOrder: d.virtual}
	for k := range t.slots {
		s := &t.slots[k]
		s.mem, s.off = mem, int64(i*len(t.slots)+k)*int64(c.Batch)*c.Size
		op := driver.OpRead
		if c.Op == OpWrite {
			op = driver.OpWrite
		}
		for j := range c.Batch {
			s.b.Reqs = append(s.b.Reqs, driver.Request{Op: op, Len: c.Size, Segs: []driver.Seg{mem.Seg(s.off+int64(j)*c.Size, c.Size)}})
		}
	}
	return t
}

func (t *thread) reset() {
	t.lat, t.bytes, t.submit, t.wait = make([]time.Duration, 0, t.c.requests()/t.c.Batch), 0, 0, 0
}

// expired is a context that has ended: a wait with it looks once.
var expired = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// run makes n requests and returns with none in flight.
func (t *thread) run(ctx context.Context, n int) error {
	left := (n + t.c.Batch - 1) / t.c.Batch
	var err error
	for k := 0; left > 0 && err == nil; k = (k + 1) % len(t.slots) {
		if ctx.Err() != nil {
			err = ctx.Err()
			break
		}
		s := &t.slots[k]
		if s.busy {
			if t.anyOrder {
				s = t.ended()
			}
			if err = t.end(s); err != nil {
				break
			}
		}
		err = t.begin(ctx, s)
		left--
	}
	for k := range t.slots {
		s := &t.slots[k]
		if t.anyOrder {
			s = t.ended()
		}
		if s != nil && s.busy {
			err = errors.Join(err, t.end(s))
		}
	}
	return err
}

// ended gives the oldest batch that has ended, or nil if none is under way. While
// none has, it looks. If it gave any other, some would be passed over again and
// again, and noticed when nothing else is left.
func (t *thread) ended() *slot {
	at := time.Now()
	defer func() { t.wait += time.Since(at) }()
	for {
		var busy, oldest *slot
		for k := range t.slots {
			s := &t.slots[k]
			if !s.busy {
				continue
			}
			busy = s
			if s.b.Ended() && (oldest == nil || s.began < oldest.began) {
				oldest = s
			}
		}
		if oldest != nil || busy == nil {
			return oldest
		}
		if busy.b.Wait(expired) == nil {
			busy.waited = true
		}
	}
}

func (t *thread) begin(ctx context.Context, s *slot) error {
	for j := range s.b.Reqs {
		r := &s.b.Reqs[j]
		r.Off = t.rnd.Int64N(t.blocks) * t.c.Size
		if r.Op == driver.OpWrite {
			stampAll(s.mem.Bytes(r.Segs[0].Off, r.Len), r.Off, t.d.Info().BlockSize)
		}
	}
	at := time.Now()
	s.began = t.d.now()
	err := t.d.Submit(ctx, &s.b)
	t.submit += time.Since(at)
	s.busy = err == nil
	return err
}

// end waits for a batch: whatever became of the caller's context, its memory must
// be free again.
func (t *thread) end(s *slot) error {
	var err error
	if !s.waited {
		at := time.Now()
		err = s.b.Wait(context.Background())
		t.wait += time.Since(at)
	}
	s.busy, s.waited = false, false
	t.lat = append(t.lat, t.d.now()-s.began)
	for j := range s.b.Reqs {
		t.bytes += s.b.Reqs[j].Done
	}
	return errors.Join(err, s.b.Err())
}

// verify compares what the last requests moved.
func (t *thread) verify(ctx context.Context) error {
	if !t.d.prepared {
		return nil
	}
	in := t.d.Info()
	for k := range t.slots {
		s := &t.slots[k]
		for j := range s.b.Reqs {
			r := &s.b.Reqs[j]
			if r.Done == 0 {
				continue // the slot was never used
			}
			if r.Op == driver.OpWrite {
				back := *r
				back.Op = driver.OpRead
				clear(s.mem.Bytes(r.Segs[0].Off, r.Len))
				if err := driver.Do(ctx, t.d, back); err != nil {
					return err
				}
			}
			if err := checkStamps(in.Target, s.mem.Bytes(r.Segs[0].Off, r.Len), r.Off, in.BlockSize); err != nil {
				return err
			}
		}
	}
	return nil
}

func newDeviceRow(d *device, c *DeviceCase, threads []*thread, spent, wall time.Duration) *DeviceRow {
	r := &DeviceRow{DeviceCase: *c, Engine: d.Info().Engine, Clock: d.clock(), Seconds: spent.Seconds(), Wall: wall.Seconds()}
	var lat []time.Duration
	var submit, wait time.Duration
	for _, t := range threads {
		lat = append(lat, t.lat...)
		r.Bytes += t.bytes
		submit += t.submit
		wait += t.wait
	}
	slices.Sort(lat)
	r.Requests = int64(len(lat) * c.Batch)
	r.PerSecond, r.MBPerS = float64(r.Requests)/r.Seconds, float64(r.Bytes)/1e6/r.Seconds
	r.P50, r.P90, r.P99, r.P999 = quantile(lat, 0.5), quantile(lat, 0.9), quantile(lat, 0.99), quantile(lat, 0.999)
	r.Max = lat[len(lat)-1].Seconds()
	all := wall * time.Duration(c.Threads)
	r.Submit, r.Wait = submit.Seconds()/all.Seconds(), wait.Seconds()/all.Seconds()
	return r
}

// roomShare tells the wait for room apart from the work of submitting, as far as both
// are told by the same clock.
func (r *DeviceRow) roomShare(waited, spent time.Duration) {
	r.Room = waited.Seconds() / (spent.Seconds() * float64(r.Threads))
	if r.Clock == wallClock {
		r.Submit = max(r.Submit-r.Room, 0)
	}
}

// oneLine is how a case is called.
func (c *DeviceCase) oneLine() string {
	return c.Op + " " + base.FormatBytes(c.Size)
}
