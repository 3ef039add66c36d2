package main

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/unix"
)

// A process times many stretches of about a millisecond, and the shortest counts:
// whatever disturbs makes one longer.
const (
	stretch   = time.Millisecond
	stretches = 100
)

// spread scatters the requests over the device.
const spread = 2654435761

// load is a ring of batches of reads over one region.
type load struct {
	dev     *device
	d       *ctrl.Device
	region  *driver.Region
	batches []*driver.Batch
	ctx     context.Context
}

// newLoad makes depth requests of size bytes, in batches of per.
func newLoad(dev *device, d *ctrl.Device, size int64, per, depth int) (*load, error) {
	r, err := driver.AllocRegion(size*int64(depth), "cref")
	if err != nil {
		return nil, err
	}
	l := &load{dev: dev, d: d, region: r, ctx: context.Background()}
	places := capacity / size
	for i := range int64(depth) {
		if i%int64(per) == 0 {
			l.batches = append(l.batches, new(driver.Batch))
		}
		b := l.batches[len(l.batches)-1]
		b.Reqs = append(b.Reqs, driver.Request{Op: driver.OpRead, Off: i * spread % places * size, Len: size,
			Segs: []driver.Seg{r.Seg(i*size, size)}})
	}
	dev.quiet = true
	return l, d.Attach(r)
}

// turn runs each batch once, the controller between submission and wait.
func (l *load) turn() error {
	for _, b := range l.batches {
		if err := l.d.Submit(l.ctx, b); err != nil {
			return err
		}
		l.dev.ctl.step()
		if err := b.Wait(l.ctx); err != nil {
			return err
		}
	}
	return nil
}

// check tells whether every request of the last turn succeeded.
func (l *load) check() error {
	for _, b := range l.batches {
		if err := b.Err(); err != nil {
			return err
		}
	}
	return nil
}

// counted is turn with the driver's part in functions of their own, in which
// callgrind collects.
func (l *load) counted() error {
	for _, b := range l.batches {
		if err := countedSubmit(l, b); err != nil {
			return err
		}
		l.dev.ctl.step()
		if err := countedWait(l, b); err != nil {
			return err
		}
	}
	return nil
}

//go:noinline
func countedSubmit(l *load, b *driver.Batch) error { return l.d.Submit(l.ctx, b) }

//go:noinline
func countedWait(l *load, b *driver.Batch) error { return b.Wait(l.ctx) }

// fastest times stretches of each of some functions in turn, of which a call is ios
// commands, and gives the nanoseconds a command of the shortest of each.
func fastest(ios int, turns ...func() error) (ns []float64, err error) {
	n := make([]int, len(turns))
	for i, turn := range turns {
		n[i] = 1
		for best := time.Duration(0); best < stretch; { // three times, or a disturbance ends it
			n[i] *= 2
			best = time.Hour
			for range 3 {
				took, err := timed(n[i], turn)
				if err != nil {
					return nil, err
				}
				best = min(best, took)
			}
		}
	}
	ns = slices.Repeat([]float64{math.Inf(1)}, len(turns))
	for range stretches {
		for i, turn := range turns {
			took, err := timed(n[i], turn)
			if err != nil {
				return nil, err
			}
			ns[i] = min(ns[i], float64(took)/float64(n[i])/float64(ios))
		}
	}
	return ns, nil
}

func timed(n int, turn func() error) (time.Duration, error) {
	begin := time.Now()
	for range n {
		if err := turn(); err != nil {
			return 0, err
		}
	}
	return time.Since(begin), nil
}

// model is the controller's part of turn alone, on queues of its own.
func (l *load) model() func() error {
	bell := make([]byte, 64)
	c := controller{sq: make([]nvme.Command, queueSize), cq: make([]byte, queueSize*nvme.CompletionSize),
		bell: bell, size: queueSize, phase: true}
	return func() error {
		for _, b := range l.batches {
			binary.LittleEndian.PutUint32(bell, (c.head+uint32(len(b.Reqs)))%queueSize)
			c.step()
		}
		return nil
	}
}

// duo runs the controller in a thread of its own and gives the nanoseconds a
// command with every batch in flight all the time. The two threads have a processor
// each: on one processor they would take turns, which looks fast and is not.
func (l *load) duo() (ns float64, err error) {
	var stop atomic.Bool
	ended, pinned := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		pinned <- unix.PinThread(1)
		for !stop.Load() {
			for range 64 {
				l.dev.ctl.step()
			}
		}
	}()
	defer func() {
		stop.Store(true)
		<-ended
	}()
	runtime.LockOSThread() // the process ends with this thread
	if err := errors.Join(<-pinned, unix.PinThread(0)); err != nil {
		return 0, err
	}
	ios := 0
	for _, b := range l.batches {
		ios += len(b.Reqs)
		if err := l.d.Submit(l.ctx, b); err != nil {
			return 0, err
		}
	}
	best, err := fastest(ios, func() error {
		for _, b := range l.batches {
			if err := b.Wait(l.ctx); err != nil {
				return err
			}
			if err := l.d.Submit(l.ctx, b); err != nil {
				return err
			}
		}
		return nil
	})
	for _, b := range l.batches {
		if err == nil {
			err = b.Wait(l.ctx)
		}
	}
	if err != nil {
		return 0, err
	}
	return best[0], nil
}
